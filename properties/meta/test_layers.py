"""Imports between the rooms, and between the layers of `properties`, go one way and in no circle."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.either_end

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "shardproof.properties"

MAY_IMPORT = {
    "impl": {"shardproof.impl", "jax", "numpy", "jaxtyping"} | sys.stdlib_module_names,
    "oracles": {"shardproof.oracles", "numpy", "ml_dtypes", "jaxtyping"} | sys.stdlib_module_names,
}
SHARED = {"shardproof.oracles.mesh", "shardproof.oracles.dtypes"}
"""The oracles' modules that the engines may use: definitions of data, by which nothing is judged."""
DYNAMIC_IMPORTS = {"import_module", "__import__"}


def imported(source: str) -> Iterator[str]:
    """The dotted names that a source imports, at its head or anywhere else in it.

    A relative import counts as `.`, and one of a name that is computed as the function that imports it.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ("." if node.level else f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from {node.id if isinstance(node, ast.Name) else node.attr} & DYNAMIC_IMPORTS


def package(name: str) -> str:
    """The top-level package of a dotted name, and of this project's own the room."""
    first, _, rest = name.partition(".")
    return f"shardproof.{rest.partition('.')[0]}" if first == "shardproof" and rest else first or name


def sources(*rooms: str) -> list[Path]:
    """The Python files of the rooms, relative to the root."""
    return sorted(path.relative_to(ROOT) for room in rooms for path in (ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("path", sources(*MAY_IMPORT), ids=str)
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    """A file imports the standard library, its own room and the packages of its room's row, by absolute names."""
    room = path.parts[0]
    forbidden = {*map(package, imported((ROOT / path).read_text(encoding="utf-8")))} - MAY_IMPORT[room]
    assert not forbidden, f"{path} imports {', '.join(sorted(forbidden))}: {room}/ may not"


@pytest.mark.parametrize("path", sources("properties/engines"), ids=str)
def test_engines_share_nothing_with_what_judges_them(path: Path) -> None:
    """An engine imports of the oracles what meshes and dtypes are, and nothing else."""
    names = [name for name in imported((ROOT / path).read_text(encoding="utf-8")) if "shardproof.oracles" in name]
    assert {".".join(name.split(".")[:3]) for name in names} <= SHARED


LAYERS: tuple[tuple[str, ...], ...] = (
    ("cases",),
    ("contracts",),
    ("programs",),
    ("engines",),
    ("precision",),
    ("references",),
    ("communication",),
    ("performance",),
    ("laws",),
    ("runner", "known_defects"),
    ("mutants",),
    ("conformance",),
    ("report",),
    ("performance.commands", "performance.measured"),
)
"""The folders of each layer, which import from their own and from those before.

The model of `performance` stands before the laws, one of which uses it; commands stand last.
"""

BESIDE = {"given", "meta", "suite"}
"""Folders beside the layers, which use all of them: what is measured, and the tests."""


EACH_OTHER = ("cases.case", "contracts.contract")
"""A case carries its contract, which is about cases: the first imports the type of the second, and no more."""


def modules() -> dict[str, str]:
    """The sources of all modules by their names within `properties`; its own is empty."""
    found = {}
    for path in sources("properties"):
        parts = path.with_suffix("").parts[1:]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (ROOT / path).read_text(encoding="utf-8")
    return found


def imports(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of `properties` that a source imports."""
    for name in imported(source):
        inner = name.removeprefix(f"{PACKAGE}.")
        if inner != name:
            yield inner if inner in known else inner.rpartition(".")[0]


def graph() -> dict[str, set[str]]:
    """The imports of each module in a layer."""
    found = modules()
    known = {name: {*imports(source, found)} for name, source in found.items() if level(name) is not None}
    known[EACH_OTHER[0]].remove(EACH_OTHER[1])
    return known


def level(module: str) -> int | None:
    """The number of the layer that a module is in; None for what stands beside them."""
    levels = {folder: number for number, folders in enumerate(LAYERS) for folder in folders}
    parts = module.split(".")
    inner_first = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((levels[folder] for folder in inner_first if folder in levels), None)


def against(imported: Mapping[str, set[str]]) -> list[str]:
    """The imports against the direction of the layers."""
    found = []
    for name, others in imported.items():
        own = level(name)
        assert own is not None
        for other in sorted(others):
            at = level(other)
            if at is None or at > own:
                found.append(f"{name} imports {other or PACKAGE}")
    return found


def circle(imported: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle of imports, if there is one."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_has_its_place() -> None:
    """A folder of `properties` is in a layer, or stands beside them."""
    folders = {path.parts[1] for path in sources("properties") if len(path.parts) > 2}
    assert folders == {folder.partition(".")[0] for layer in LAYERS for folder in layer} | BESIDE


def test_imports_go_one_way() -> None:
    """No module imports from a layer after its own, or from what stands beside the layers."""
    assert not against(graph())


def test_there_is_no_circle() -> None:
    """No module imports itself, by however many others, wherever in their sources."""
    assert not circle(graph())


def test_what_breaks_the_rules_is_found() -> None:
    """An import inside a function counts as well, and a circle through three modules is one."""
    known = dict.fromkeys(["cases.case", "laws.law", "runner.search", "meta.brief"])
    late = "def f():\n    from shardproof.properties.runner import search"
    typed = "if TYPE_CHECKING:\n    from shardproof.properties.meta.brief import marked"
    assert [*imports(late, known)] == ["runner.search"]
    assert against({"laws.law": {*imports(late, known)}}) == ["laws.law imports runner.search"]
    assert against({"laws.law": {*imports(typed, known)}}) == ["laws.law imports meta.brief"]
    assert not against({"runner.search": {"laws.law", "cases.case"}})
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


MOST_MODULES = 130
"""The most modules of this project that are imported before a user's own program is checked."""


def test_a_program_imports_no_contract() -> None:
    """Checking a user's own program imports no contract of this project, and no implementation of one."""
    code = "import sys, shardproof\nshardproof.check_program\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in done.stdout.split() if name.startswith("shardproof.")]
    assert len(loaded) <= MOST_MODULES
    assert not {f"{PACKAGE}.programs.built_in", f"{PACKAGE}.contracts.collectives"} & {*loaded}
