"""Names of functions and programs: how a file refers to one, and the file that defines it, found without importing."""

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof.properties.cases import reading
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.programs import Program


class NotAFailure(ValueError):
    """A file is no failure that this version can run again; the message says why."""


@dataclass(frozen=True)
class Named:
    """A function, or the program that it is, by name, which is all that a file says of it.

    Arguments:
        contract: the contract that it claims to satisfy.
        name: what reports call it.
        module: where it is imported from.
        qualname: its name there.
        path: the file of a user's module; empty for this project's own.
        features: what it serves beyond the contract's signature.
        invariant: how its result is declared to be typed.
        expectation: what its user expects of its communication; empty if nothing.
        overlap: what its user claims of how it hides that; empty if nothing.
        program: whether that name is of a `Program`, which says what the function means.
    """

    contract: str
    name: str
    module: str
    qualname: str
    path: str = ""
    features: tuple[str, ...] = ()
    invariant: bool | None = None
    expectation: str = ""
    overlap: str = ""
    program: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


def named(implementation: Implementation) -> Named:
    """An implementation by name: by that of its program, if it is one that a module holds."""
    if implementation.program is not None and (held := held_by_a_module(implementation.program)) is not None:
        return held
    return named_function(implementation)


def held_by_a_module(program: Program) -> Named | None:
    """The name of a program in the module that defines it, if that is an imported one."""
    for module, loaded in list(sys.modules.items()):
        if module == "__main__" or not isinstance(loaded, types.ModuleType):
            continue
        for name, value in list(vars(loaded).items()):
            path = getattr(loaded, "__file__", None) if value is program else None
            if path and _defines(Path(path), name, program=True):
                return Named(program.name, program.name, module, name, str(Path(path).resolve()), program=True)
    return None


def named_function(implementation: Implementation) -> Named:
    """The function of an implementation by name."""
    function, said = implementation.function, implementation.communication
    module = str(getattr(function, "__module__", ""))
    try:
        path = Path(inspect.getfile(inspect.unwrap(function))).resolve()
    except (TypeError, OSError, ValueError):
        path = Path()
    own = Path(__file__).resolve().parents[2]
    inside = path.parent in (own / "impl", *(own / "impl").iterdir()) or own / "properties" in path.parents
    return Named(
        implementation.contract,
        implementation.name,
        module,
        str(getattr(function, "__qualname__", "")),
        "" if inside or path == Path() else str(path),
        tuple(sorted(implementation.features)),
        implementation.invariant,
        str(said) if isinstance(said, Expectation) and implementation.form == "user" else "",
        "" if implementation.overlap is None or path == Path() or inside else str(implementation.overlap),
    )


def importable(name: Named) -> bool:
    """Whether it can be found by its name: not so for lambdas and functions inside functions."""
    try:
        reading.dotted("module", name.module)
        reading.dotted("qualname", name.qualname)
    except ValueError:
        return False
    if name.module == "__main__":
        return False
    loaded = sys.modules.get(name.module)
    if loaded is None:
        return True
    found = attribute(loaded, name.qualname)
    return isinstance(found, Program) if name.program else callable(found)


def source_text(function: Any) -> str:
    """The text that defines a function, or what tells it from others; the same in every run."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return "" if code is None else code.co_code.hex() + repr(code.co_names)


def attribute(module: Any, qualname: str) -> Any:
    """What a module holds by a dotted name, classes included; None if nothing."""
    found = module
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found.__func__ if isinstance(found, staticmethod) else found


def source_file(name: Named) -> Path:
    """The file below the working directory that defines the function or program; found without importing anything.

    Hidden folders (`.shardproof`, `.venv`) and installed packages are not looked into.

    Raises:
        NotAFailure: if there is none.
    """
    if not importable(name):
        told = reading.shown(name.qualname or name.name)
        kind = "Program" if name.program else "function"
        raise NotAFailure(f"{told} is not a {kind} of a module: run the script beside this file")
    if name.module.partition(".")[0] in sys.stdlib_module_names:
        raise NotAFailure(f"{name} is of Python's own library, where no implementation is")
    inside = Path(*name.module.split("."))
    for root in (source_root(name), str(Path.cwd()), *sys.path):
        for path in (Path(root, f"{inside}.py"), Path(root, inside, "__init__.py")):
            if root and is_below_here(path) and _defines(path, name.qualname, program=name.program):
                return path.absolute()  # a link that the module is found by is part of its place
    raise NotAFailure(
        f"{name} is not defined below {Path.cwd()}, from where alone a file may have it imported: "
        f"name it with --impl {name if name.program else f'{name.contract}={name}'}"
    )


def is_below_here(path: Path) -> bool:
    """Whether a file is the user's own: below the working directory, in no hidden folder and no installed package."""
    try:
        here, path = Path.cwd().resolve(), path.resolve()
    except (OSError, RuntimeError):  # a loop of links, a name that is too long
        return False
    if here not in path.parents:
        return False
    folders = path.relative_to(here).parts[:-1]
    return not any(folder.startswith(".") or folder in ("site-packages", "dist-packages") for folder in folders)


def _defines(path: Path, qualname: str, *, program: bool = False) -> bool:
    """Whether a file says `def` of the function, or gives the program its name: others are not imported to look."""
    try:
        body: list[ast.stmt] = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    *outer, last = qualname.split(".")
    for part in outer:
        classes = [found for found in _statements(body) if isinstance(found, ast.ClassDef) and found.name == part]
        body = [inner for found in classes for inner in found.body]
    if program:
        return not outer and last in _assigned(body)
    return any(isinstance(found, ast.FunctionDef) and found.name == last for found in _statements(body))


def _assigned(body: list[ast.stmt]) -> set[str]:
    """The names that statements give to what they compute."""
    targets = [
        target
        for found in _statements(body)
        if isinstance(found, ast.Assign | ast.AnnAssign)
        for target in (found.targets if isinstance(found, ast.Assign) else [found.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, those under `if` and `try` as well."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])


def source_root(name: Named) -> str:
    """The folder to import a user's module from, if its file says so; empty otherwise."""
    if not name.path:
        return ""
    path = Path(name.path)
    parts = name.module.split(".")
    parts = [*parts, "__init__"] if path.name == "__init__.py" else parts
    if list(path.with_suffix("").parts[-len(parts) :]) != parts or "site-packages" in path.parts:
        return ""
    return str(path.parents[len(parts) - 1])
