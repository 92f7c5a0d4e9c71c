"""Implementations by name: how what a file refers to is found again."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof.properties.cases import reading
from shardproof.properties.communication.sizes import names_of
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.programs.overlap import Overlap
from shardproof.properties.runner.given import Given, GivenError, check_signature
from shardproof.properties.runner.named import Named, NotAFailure, attribute, source_file
from shardproof.properties.runner.programs import Program

LONGEST = 200
"""The most characters of what an import raises that a refusal repeats."""


def built_in(name: Named) -> Implementation | None:
    """The implementation of this project with this name, if there is one."""
    return next((i for i in IMPLEMENTATIONS if (i.contract, i.name) == (name.contract, name.name)), None)


@dataclass(frozen=True)
class Lookup:
    """A function or program that a file names, and how it may be found.

    Arguments:
        name: what the file says.
        given: what `--impl` names, which is imported from wherever Python finds it.
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
        wanted = ("" if self.name.program else self.name.contract, self.name.module, self.name.qualname)
        return next((one for one in self.given if (one.contract, one.module, one.function) == wanted), None)

    def _imported(self) -> Implementation:
        given, name = self._named_by_user(), self.name
        try:
            if name.program:
                return self._program(given)
            found = given.load().function if given is not None else _import_from(source_file(name), name)
            check_signature(name.contract, found)
        except GivenError as error:
            raise NotAFailure(reading.one_line(str(error))) from error
        expectation = Expectation.parse(name.expectation, names_of(name.contract)) if name.expectation else None
        overlap = Overlap.parse(name.overlap, names_of(name.contract)) if name.overlap else None
        return Implementation(
            name.contract,
            name.name,
            found,
            frozenset(name.features),
            name.invariant,
            communication=expectation,
            overlap=overlap,
            whole=CONTRACTS[name.contract].whole,
        )

    def _program(self, given: Given | None) -> Implementation:
        name = self.name
        program = given.load().program if given is not None else _import_from(source_file(name), name)
        if program.name != name.contract:
            raise NotAFailure(f"{name} is a program called {program.name} now: expected {name.contract}")
        try:
            return program.implementation
        except ValueError as error:  # as when it is checked
            raise NotAFailure(f"{name}: {reading.one_line(str(error))}") from error

    def __str__(self) -> str:
        return str(self.name) if self.name.program else f"{self.name.contract}={self.name}"


def implementation_of(name: Named, given: tuple[Given, ...] = ()) -> Implementation:
    """The implementation that a file names.

    Raises:
        NotAFailure: if it cannot be found, or is not to be imported.
    """
    return Lookup(name, given).load()


def _import_from(path: Path, name: Named) -> Any:
    """Imports a module from a file, and finds the function or program in it.

    Raises:
        NotAFailure: if the module is not that of the file, cannot be imported, or has nothing such.
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
        raise NotAFailure(f"{name}: Python finds another module {first!r} than that of {path}")
    try:
        module = importlib.import_module(name.module)
    except (Exception, SystemExit) as error:  # whatever an import raises is why the function is not there
        reason = reading.one_line(f"{type(error).__name__}: {error}")
        raise NotAFailure(f"{name} cannot be imported: {reason[:LONGEST]}") from error
    found = attribute(module, name.qualname)
    if name.program:
        if not isinstance(found, Program):
            raise NotAFailure(f"{name} is not a Program")
        return found
    if not callable(found) or isinstance(found, type) or getattr(found, "__module__", None) != name.module:
        raise NotAFailure(f"{name} is not a function")
    return found
