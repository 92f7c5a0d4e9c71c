"""Arguments of the commands that draw: an implementation, a mesh, an axis tuple, a dtype."""

from collections.abc import Collection

from shardproof.oracles.dtypes import as_dtype
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases import suggestion
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import EXAMPLES
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.given import Given

LONGEST = 120
"""The most characters of a function's name in that of its picture."""


def find(name: str, contracts: Collection[str] = EXAMPLES) -> Implementation:
    """The implementation called `name`, `contract[name]`, or the only one of the contract `name`, one of `contracts`.

    A name such as `ring_shift=mine:shift` is that of a user's function, as `--impl` takes it. Raises RequestError if
    there is none, or more than one.
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
    hint = suggestion.did_you_mean(name, names, instead=map(str, known))
    raise RequestError(f"name={name!r}: no such implementation; {hint}")


def parse_mesh(text: str) -> MeshCase:
    """The mesh that `dp=2,tp=4` describes; raises RequestError if it describes none."""
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name.strip().isidentifier() and size.strip().isdecimal() for name, _, size in parts):
        raise RequestError(f"--mesh={text}: expected names and sizes of axes, as in tp=4 or dp=2,tp=4")
    try:
        return MeshCase(tuple(name.strip() for name, _, _ in parts), tuple(int(size) for _, _, size in parts))
    except ValueError as error:
        raise RequestError(f"--mesh={text}: {error}") from error


def parse_axes(text: str, mesh: MeshCase) -> tuple[str, ...]:
    """The axis tuple that `tp,dp` names, by default all axes; raises RequestError unless they are axes of the mesh."""
    axes = tuple(text.split(",")) if text else mesh.axis_names
    if not set(axes) <= set(mesh.axis_names) or len(set(axes)) != len(axes):
        raise RequestError(f"--axis={text}: expected different axes of the mesh {mesh}")
    return axes


def parse_dtype(text: str) -> str:
    """The name of a dtype; raises RequestError if there is none."""
    try:
        return as_dtype(text).name
    except ValueError as error:
        raise RequestError(f"--{error}") from error
