"""Implementations by name: how a file refers to a function, and how it is found again."""

import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from properties.communication.expectation import Expectation
from properties.implementations import IMPLEMENTATIONS, Implementation


class NotAFailure(ValueError):
    """A file is no failure that this version can run again; the message says why."""


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
        path = Path(inspect.getfile(function)).resolve()
    except (TypeError, OSError):
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
    if not name.module or not name.qualname or "<" in name.qualname or name.module == "__main__":
        return False
    found: Any = sys.modules.get(name.module)
    if found is not None:
        for part in name.qualname.split("."):
            found = getattr(found, part, None)
        return callable(found)
    return True


def built_in(name: Named) -> Implementation | None:
    """The implementation of this project with this name, if there is one."""
    return next((i for i in IMPLEMENTATIONS if (i.contract, i.name) == (name.contract, name.name)), None)


def implementation_of(name: Named) -> Implementation:
    """The implementation itself; a user's function is imported by its name, as for a run of the laws.

    Raises:
        NotAFailure: if it cannot be found.
    """
    own = built_in(name)
    if own is not None and own.function.__module__ == name.module:
        return own
    if not importable(name):
        raise NotAFailure(
            f"{name.qualname or name.name} is not a function of a module: run the script beside this file"
        )
    for folder in (str(Path.cwd()), source_root(name)):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    try:
        found: Any = importlib.import_module(name.module)
        for part in name.qualname.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever an import raises is why the function is not there
        raise NotAFailure(
            f"{name.module}:{name.qualname} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise NotAFailure(f"{name.module}:{name.qualname} is not a function")
    expectation = Expectation.parse(name.expectation) if name.expectation else None
    return Implementation(
        name.contract, name.name, found, frozenset(name.features), name.invariant, expectation=expectation
    )


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
