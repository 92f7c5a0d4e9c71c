"""`python -m shardproof.properties.reports.draw NAME --mesh tp=4`: prints and draws who sends what to whom."""

import argparse
import difflib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import jax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.counting import steps
from shardproof.properties.counting.examples import EXAMPLES, example
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.reports import svg
from shardproof.properties.runner.given import Given, GivenError

LONGEST = 120
"""The most characters of a function's name in that of its picture."""
NAME = (
    "the implementation: its name, contract[name], a contract that has only one, or a function of yours as "
    "CONTRACT=MODULE:FUNCTION"
)


class DrawError(ValueError):
    """What was asked for cannot be drawn; the message says why in one line."""


def find(name: str, contracts: Collection[str] = EXAMPLES) -> Implementation:
    """The implementation called `name`, `contract[name]`, or the only one of the contract `name`, one of `contracts`.

    A name such as `ring_shift=mine:shift` is that of a user's function, as `--impl` takes it.

    Raises:
        DrawError: if there is none, or more than one.
        GivenError: if a user's function cannot be imported, or called as its contract demands.
    """
    if "=" in name:
        return Given.parse(name).load()
    known = [i for i in IMPLEMENTATIONS if i.contract in contracts]
    exact = [i for i in known if str(i) == name]
    found = exact or [i for i in known if name in (i.name, i.contract)]
    if len(found) == 1:
        return found[0]
    if found:
        raise DrawError(f"name={name!r}: there are several: {', '.join(map(str, found))}")
    names = [text for i in known for text in (str(i), i.name, i.contract)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(map(str, known))}"
    raise DrawError(f"name={name!r}: no such implementation; {hint}")


def parse_mesh(text: str) -> MeshCase:
    """The mesh that `dp=2,tp=4` describes.

    Raises:
        DrawError: if it describes none.
    """
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name.strip().isidentifier() and size.strip().isdecimal() for name, _, size in parts):
        raise DrawError(f"--mesh={text}: expected names and sizes of axes, as in tp=4 or dp=2,tp=4")
    try:
        return MeshCase(tuple(name.strip() for name, _, _ in parts), tuple(int(size) for _, _, size in parts))
    except ValueError as error:
        raise DrawError(f"--mesh={text}: {error}") from error


def parse_axes(text: str, mesh: MeshCase) -> tuple[str, ...]:
    """The axis tuple that `tp,dp` names; all axes of the mesh if the text is empty.

    Raises:
        DrawError: if one is not an axis of the mesh, or named twice.
    """
    axes = tuple(text.split(",")) if text else mesh.axis_names
    if not set(axes) <= set(mesh.axis_names) or len(set(axes)) != len(axes):
        raise DrawError(f"--axis={text}: expected different axes of the mesh {mesh}")
    return axes


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the steps and writes the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.properties.reports.draw", description=__doc__)
    parser.add_argument("name", help=NAME)
    parser.add_argument("--mesh", default="tp=4", metavar="AXES", help="names and sizes of axes (default: tp=4)")
    parser.add_argument("--axis", default="", metavar="NAMES", help="the axis tuple, as in tp,dp (default: all axes)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the picture (default: NAME.svg)")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    try:
        implementation, mesh = find(options.name), parse_mesh(options.mesh)
        axes = parse_axes(options.axis, mesh)
        case = example(implementation.contract, mesh, axes if len(axes) > 1 else axes[0])
        found = steps.steps(implementation, case)
        print(steps.text(implementation, case, found))
        path = options.output or Path(f"{implementation.contract}-{implementation.name[:LONGEST]}.svg")
        svg.write(path, f"{implementation} on mesh {mesh}, axis {case.axis_name!r}", found, svg.columns(mesh, axes))
        print(f"wrote {path}")
    except NotImplementedError as error:
        print(f"error: {options.name} does not serve --mesh={options.mesh}: {error}", file=sys.stderr)
        return 2
    except (DrawError, GivenError) as error:
        print(f"error: {str(error).removeprefix('--impl=')}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: no picture: {error}; pip install 'shardproof[draw]'", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: --output={options.output}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
