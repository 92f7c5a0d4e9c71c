"""Implementations by name: how a file refers to a function, and how it is found again."""

import ast
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof.properties.cases import reading
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.runner.given import Given, GivenError, check_signature


class NotAFailure(ValueError):
    """A file is no failure that this version can run again; the message says why."""


LONGEST = 200
"""The most characters of what an import raises that a refusal repeats."""


@dataclass(frozen=True)
class Named:
    """A function by name, which is all that a file says of it.

    Arguments:
        contract: the contract that it claims to satisfy.
        name: what reports call it.
        module: where it is imported from.
        qualname: its name there.
        path: the file of a user's module; empty for this project's own.
        features: what it serves beyond the contract's signature.
        invariant: how its result is declared to be typed.
        expectation: what its user expects of its communication; empty if nothing.
    """

    contract: str
    name: str
    module: str
    qualname: str
    path: str = ""
    features: tuple[str, ...] = ()
    invariant: bool | None = None
    expectation: str = ""


def named(implementation: Implementation) -> Named:
    """An implementation by name."""
    function = implementation.function
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
        "" if implementation.expectation is None else str(implementation.expectation),
    )


def importable(name: Named) -> bool:
    """Whether the function can be found by its name: not so for lambdas and functions inside functions."""
    try:
        reading.dotted("module", name.module)
        reading.dotted("qualname", name.qualname)
    except ValueError:
        return False
    if name.module == "__main__":
        return False
    loaded = sys.modules.get(name.module)
    return loaded is None or callable(_attribute(loaded, name.qualname))


def built_in(name: Named) -> Implementation | None:
    """The implementation of this project with this name, if there is one."""
    return next((i for i in IMPLEMENTATIONS if (i.contract, i.name) == (name.contract, name.name)), None)


@dataclass(frozen=True)
class Lookup:
    """A function that a file names, and how it may be found.

    Arguments:
        name: what the file says.
        given: the functions that `--impl` names, which are imported from wherever Python finds them.
    """

    name: Named
    given: tuple[Given, ...] = ()

    def load(self) -> Implementation:
        """The implementation itself: this project's own, one that `--impl` names, or one below the working directory.

        Raises:
            NotAFailure: if it cannot be found, or is not to be imported.
        """
        return self._built_in() or self._imported()

    def source(self) -> Path | None:
        """The file that is imported, for what is neither this project's own nor named by `--impl`.

        Raises:
            NotAFailure: if it is not to be imported.
        """
        return None if self._built_in() or self._named_by_user() else source_file(self.name)

    def _built_in(self) -> Implementation | None:
        own = built_in(self.name)
        modules = [self.name.module]
        if not self.name.path:  # in files from before this project was a package, `impl.collectives` is its own
            modules.append(f"shardproof.{self.name.module}")
        return own if own is not None and own.function.__module__ in modules else None

    def _named_by_user(self) -> Given | None:
        wanted = (self.name.contract, self.name.module, self.name.qualname)
        return next((one for one in self.given if (one.contract, one.module, one.function) == wanted), None)

    def _imported(self) -> Implementation:
        given, name = self._named_by_user(), self.name
        try:
            found = given.load().function if given is not None else _import_from(source_file(name), name)
            check_signature(name.contract, found)
        except GivenError as error:
            raise NotAFailure(reading.one_line(str(error))) from error
        expectation = Expectation.parse(name.expectation) if name.expectation else None
        return Implementation(
            name.contract, name.name, found, frozenset(name.features), name.invariant, expectation=expectation
        )

    def __str__(self) -> str:
        return f"{self.name.contract}={self.name.module}:{self.name.qualname}"


def implementation_of(name: Named, given: tuple[Given, ...] = ()) -> Implementation:
    """The implementation that a file names.

    Raises:
        NotAFailure: if it cannot be found, or is not to be imported.
    """
    return Lookup(name, given).load()


def _import_from(path: Path, name: Named) -> Any:
    """Imports a module from a file, and finds the function in it.

    Raises:
        NotAFailure: if the module is not that of the file, cannot be imported, or has no such function.
    """
    folder = str(path.parents[name.module.count(".") + (path.name == "__init__.py")])
    if folder not in sys.path:
        sys.path.insert(0, folder) if Path(folder) == Path.cwd() else sys.path.append(folder)
    first = name.module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)  # which imports nothing
    except ValueError:  # what is loaded already does not say where from
        spec = None
    places = [] if spec is None else list(spec.submodule_search_locations or [spec.origin or "/"])
    above = {place.resolve() for place in (path, *path.parents)}
    if not places or not all(Path(place).resolve() in above for place in places):
        raise NotAFailure(f"{_told(name)}: Python finds another module {first!r} than that of {path}")
    try:
        module = importlib.import_module(name.module)
    except (Exception, SystemExit) as error:  # whatever an import raises is why the function is not there
        reason = reading.one_line(f"{type(error).__name__}: {error}")
        raise NotAFailure(f"{_told(name)} cannot be imported: {reason[:LONGEST]}") from error
    found = _attribute(module, name.qualname)
    if not callable(found) or isinstance(found, type) or getattr(found, "__module__", None) != name.module:
        raise NotAFailure(f"{_told(name)} is not a function")
    return found


def _attribute(module: Any, qualname: str) -> Any:
    found = module
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    return found.__func__ if isinstance(found, staticmethod) else found


def _told(name: Named) -> str:
    return f"{name.module}:{name.qualname}"


def source_file(name: Named) -> Path:
    """The file below the working directory that defines the function; found without importing anything.

    Hidden folders (`.shardproof`, `.venv`) and installed packages are not looked into.

    Raises:
        NotAFailure: if there is none.
    """
    if not importable(name):
        told = reading.shown(name.qualname or name.name)
        raise NotAFailure(f"{told} is not a function of a module: run the script beside this file")
    if name.module.partition(".")[0] in sys.stdlib_module_names:
        raise NotAFailure(f"{_told(name)} is of Python's own library, where no implementation is")
    inside = Path(*name.module.split("."))
    for root in (source_root(name), str(Path.cwd()), *sys.path):
        for path in (Path(root, f"{inside}.py"), Path(root, inside, "__init__.py")):
            if root and is_below_here(path) and _defines(path, name.qualname):
                return path.absolute()  # a link that the module is found by is part of its place
    raise NotAFailure(
        f"{_told(name)} is not defined below {Path.cwd()}, from where alone a file may have it imported: "
        f"name it with --impl {name.contract}={_told(name)}"
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


def _defines(path: Path, qualname: str) -> bool:
    """Whether a file says `def` of the function: one that does not is not imported to look for it."""
    try:
        body: list[ast.stmt] = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    *outer, last = qualname.split(".")
    for part in outer:
        classes = [found for found in _statements(body) if isinstance(found, ast.ClassDef) and found.name == part]
        body = [inner for found in classes for inner in found.body]
    return any(isinstance(found, ast.FunctionDef) and found.name == last for found in _statements(body))


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
