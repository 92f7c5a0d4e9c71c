"""The rules of the rooms: what each may import."""

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_end

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "impl": {"shardproof.impl", "jax", "numpy", "jaxtyping"} | sys.stdlib_module_names,
    "oracles": {"shardproof.oracles", "numpy", "ml_dtypes", "jaxtyping"} | sys.stdlib_module_names,
}
SHARED = {"mesh", "dtypes"}
"""The oracles' modules that the engines may use: definitions of data, by which nothing is judged."""
DYNAMIC_IMPORTS = {"import_module", "__import__"}


def sources(*rooms: str) -> list[Path]:
    """The Python files of the rooms, relative to the root."""
    return sorted(path.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.py"))


def package(module: str) -> str:
    """The top-level package of a module, and of this project's own the room."""
    first, _, rest = module.partition(".")
    return f"shardproof.{rest.partition('.')[0]}" if first == "shardproof" and rest else first


def imported(source: str) -> set[str]:
    """The top-level packages and rooms that a source imports, at its head or anywhere else in it.

    A relative import counts as `.`, and one of a name that is computed as the function that imports it.
    """
    packages = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            packages |= {package(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            packages.add("." if node.level else package(str(node.module)))
        elif isinstance(node, ast.Name | ast.Attribute):
            packages |= {node.id if isinstance(node, ast.Name) else node.attr} & DYNAMIC_IMPORTS
    return packages


@pytest.mark.parametrize("path", sources(*MAY_IMPORT), ids=str)
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    """A file imports the standard library, its own room and the packages of its room's row, by absolute names."""
    room = path.parts[0]
    forbidden = imported((ROOT / path).read_text(encoding="utf-8")) - MAY_IMPORT[room]
    assert not forbidden, f"{path} imports {', '.join(sorted(forbidden))}: {room}/ may not"


def oracles_in(source: str) -> set[str]:
    """The modules of the oracles that a source imports."""
    nodes = [*ast.walk(ast.parse(source))]
    modules = {f"{node.module}.{x.name}" for node in nodes if isinstance(node, ast.ImportFrom) for x in node.names}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {f"{module}.".split(".")[2] for module in modules if f"{module}.".startswith("shardproof.oracles.")}


@pytest.mark.parametrize("path", sources("properties/engines"), ids=str)
def test_engines_share_nothing_with_what_judges_them(path: Path) -> None:
    """An engine imports of the oracles what meshes and dtypes are, and nothing else."""
    assert oracles_in((ROOT / path).read_text(encoding="utf-8")) <= SHARED
