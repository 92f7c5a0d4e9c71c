"""What the commands that draw are told: an implementation, a mesh, an axis tuple, a machine; and how they end."""

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import jax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases import suggestion
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import CHIPS
from shardproof.properties.performance.routes import Untold
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import EXAMPLES
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.stated import GivenError

LONGEST = 120
"""The most characters of a function's name in that of its picture."""


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """The mesh, the axis tuple, and the picture."""
    parser.add_argument("--mesh", default="tp=4", metavar="AXES", help="names and sizes of axes (default: tp=4)")
    parser.add_argument("--axis", default="", metavar="NAMES", help="the axis tuple, as in tp,dp (default: all axes)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the picture (default: named after what it is of)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """The machine, the dtype, and whether the gradient is asked for."""
    parser.add_argument("--machine", default="v5e", metavar="CHIP", help=f"one of {', '.join(CHIPS)} (default: v5e)")
    parser.add_argument("--dtype", default="bfloat16", help="of all floating arrays (default: bfloat16)")
    parser.add_argument("--gradient", action="store_true", help="with its gradient")


def exit_code(command: Callable[[argparse.Namespace], None], options: argparse.Namespace, name: str) -> int:
    """Runs a command on the CPU: 0, 1 without drawsvg for an `--output`, 2 for what cannot be had. A line says why."""
    jax.config.update("jax_platforms", "cpu")
    try:
        command(options)
    except NotImplementedError as error:
        told = f"{name} does not support --mesh={options.mesh}: {error}"
    except Untold as error:
        told = f"{name}: it cannot be told what hides what: {error}"
    except (RequestError, GivenError) as error:
        told = str(error).removeprefix("--impl=")
    except ModuleNotFoundError as error:
        if error.name != "drawsvg":
            raise
        asked = options.output is not None
        print(f"{'error' if asked else 'note'}: no picture: {error}; pip install 'shardproof[draw]'", file=sys.stderr)
        return int(asked)
    except OSError as error:
        told = f"--output={options.output}: {error}"
    else:
        return 0
    print(f"error: {told}", file=sys.stderr)
    return 2


def find(name: str, contracts: Collection[str] = EXAMPLES) -> Implementation:
    """The implementation called `name`, `contract[name]`, or the only one of the contract `name`, one of `contracts`.

    A name such as `ring_shift=mine:shift` is that of a user's function, as `--impl` takes it.

    Raises:
        RequestError: if there is none, or more than one.
        GivenError: if a user's function cannot be imported, or called as its contract demands.
    """
    if "=" in name:
        return Given.parse(name).load()
    known = [i for i in IMPLEMENTATIONS if i.contract.name in contracts]
    exact = [i for i in known if str(i) == name]
    found = exact or [i for i in known if name in (i.name, i.contract.name)]
    if found[1:]:
        raise RequestError(f"name={name!r}: there are several: {', '.join(map(str, found))}")
    if found:
        return found[0]
    names = [text for i in known for text in (str(i), i.name, i.contract.name)]
    hint = suggestion.meant(name, names, instead=map(str, known))
    raise RequestError(f"name={name!r}: no such implementation; {hint}")


def parse_mesh(text: str) -> MeshCase:
    """The mesh that `dp=2,tp=4` describes.

    Raises:
        RequestError: if it describes none.
    """
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name.strip().isidentifier() and size.strip().isdecimal() for name, _, size in parts):
        raise RequestError(f"--mesh={text}: expected names and sizes of axes, as in tp=4 or dp=2,tp=4")
    try:
        return MeshCase(tuple(name.strip() for name, _, _ in parts), tuple(int(size) for _, _, size in parts))
    except ValueError as error:
        raise RequestError(f"--mesh={text}: {error}") from error


def parse_axes(text: str, mesh: MeshCase) -> tuple[str, ...]:
    """The axis tuple that `tp,dp` names; all axes of the mesh if the text is empty.

    Raises:
        RequestError: if one is not an axis of the mesh, or named twice.
    """
    axes = tuple(text.split(",")) if text else mesh.axis_names
    if not set(axes) <= set(mesh.axis_names) or len(set(axes)) != len(axes):
        raise RequestError(f"--axis={text}: expected different axes of the mesh {mesh}")
    return axes


def parse_dtype(text: str) -> str:
    """The name of a dtype.

    Raises:
        RequestError: if there is none of that name.
    """
    try:
        return as_dtype(text).name
    except ValueError as error:
        raise RequestError(f"--{error}") from error
