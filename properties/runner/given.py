"""Users' functions: named on the command line, or handed to `check`."""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from shardproof.properties.cases import suggestion
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import CONCESSIONS, FEATURES, KEYWORDS
from shardproof.properties.programs.expectation import Expectation, ExpectationError, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.stated import GivenError, check_kinds, split_names

SAID = {
    "--expect-communication": "communication",
    "--claims": "",
    "--expect-overlap": "overlap",
    "--data-kinds": "data",
}
"""The options about the functions that `--impl` names, each once for every function; which argument of a `Program` says
the same."""


@dataclass(frozen=True)
class Given:
    """A function by its name, as `--impl` takes it: `CONTRACT=MODULE:FUNCTION`, or `MODULE:PROGRAM` of a `Program`."""

    contract: str
    module: str
    function: str
    claims: tuple[tuple[str, Any], ...] = ()  # as `read_claims` returns them

    @classmethod
    def parse(
        cls,
        text: str,
        expectation: str | None = None,
        claims: str | None = None,
        overlap: str | None = None,
        data: str | None = None,
    ) -> "Given":
        """Reads `CONTRACT=MODULE:FUNCTION`, or `MODULE:PROGRAM`, which states the rest itself.

        Raises:
            GivenError: for another form, an unknown contract or feature, or an expectation that cannot be read.
        """
        contract, _, target = text.rpartition("=")
        module, colon, function = target.partition(":")
        if module.endswith(".py") and Path(module).is_file():
            file, here = Path(module).resolve(), Path.cwd().resolve()
            if not file.is_relative_to(here):
                raise GivenError(f"--impl={text}: {module}: expected a file below the working directory, {here}")
            module = ".".join(file.relative_to(here).with_suffix("").parts)
        if not (colon and module and function) or text.startswith("="):
            forms = "CONTRACT=MODULE:FUNCTION, as in all_gather=mine:gather, or MODULE:PROGRAM"
            raise GivenError(f"--impl={text}: expected {forms}")
        if not contract:
            for (option, own), said in zip(SAID.items(), (expectation, claims, overlap, data), strict=True):
                if said is not None:
                    instead = f"{own}={said!r} in its own arguments" if own else "no claims, which only a contract has"
                    raise GivenError(f"{option}={said}: {text} is a Program: expected {instead}")
            return cls("", module, function)
        check_contract(contract, said=f"--impl={text}: contract")
        try:
            names = "--expect-communication", "--expect-overlap"
            found = read_claims(contract, expectation, overlap, claims, data, said=names)
        except ExpectationError as error:
            raise GivenError(str(error)) from error
        return cls(contract, module, function, tuple(found.items()))

    def import_target(self) -> Any:
        """Imports the function or program, from the current directory as well; raises GivenError if it cannot."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            target: Any = importlib.import_module(self.module)
        except (Exception, SystemExit) as error:  # whatever an import raises is why the function is not there
            if self.module.endswith(".py"):
                raise GivenError(f"--impl={self}: no such file: {self.module}") from error
            raise GivenError(f"--impl={self}: cannot import {self.module}: {type(error).__name__}: {error}") from error
        for part in self.function.split("."):
            if not hasattr(target, part):
                near = suggestion.near(part, (name for name in dir(target) if not name.startswith("_")))
                hint = f"; {near}" if near else ""
                raise GivenError(f"--impl={self}: module {self.module} has no {self.function}{hint}")
            target = getattr(target, part)
        return target

    def load(self) -> Implementation:
        """The function or program as an implementation; raises GivenError if it cannot be imported or called so."""
        target = self.import_target()
        if not self.contract:
            if not isinstance(target, Program):
                raise GivenError(f"--impl={self}: expected a Program, got {type(target).__name__}; or CONTRACT={self}")
            try:
                return dataclasses.replace(target.implementation, given=self)
            except ValueError as error:
                raise GivenError(f"--impl={self}: {error}") from error
        claims = dict(self.claims)
        check_signature(self.contract, target, claims.get("features", ()))
        contract = CONTRACTS[self.contract]
        return Implementation(contract, self.function, target, given=self, whole=contract.whole, **claims)

    def __str__(self) -> str:
        return f"{self.contract}={self.module}:{self.function}".removeprefix("=")


def user_implementation(contract: str, function: Callable[..., Any], claims: Iterable[str] = ()) -> Implementation:
    """A user's function, with no features but those that it claims; raises ValueError for an unknown one."""
    name = getattr(function, "__name__", type(function).__name__)
    of = CONTRACTS[contract]
    return Implementation(of, name, function, find_features(contract, claims), whole=of.whole)


def parse_all(functions: Sequence[str], *said: Sequence[str]) -> list[Given]:
    """The functions of `--impl`, the first with the first value of each of `SAID`, and so on.

    Raises:
        GivenError: if one cannot be read, or an option has more values than there are functions.
    """
    for option, texts in zip(SAID, said, strict=False):
        if texts and not functions:
            raise GivenError(f"{option}={texts[0]}: expected --impl as well, whose function it is said of")
        if len(texts) > len(functions):
            raise GivenError(f"{option}={texts[len(functions)]}: expected no more of them than of --impl")
    return [Given.parse(*one) for one in zip_longest(functions, *said)]


def read_claims(
    contract: str,
    communication: str | None,
    overlap: str | None,
    features: str | Iterable[str] | None,
    data: str | Iterable[str] | None,
    said: tuple[str, str] = ("communication", "overlap"),
) -> dict[str, Any]:
    """The arguments of `Implementation` for claims about a function of a contract; `said` names those in errors."""
    known, kinds = names_of(CONTRACTS[contract]), split_names("data", data)
    check_kinds(kinds)
    return {
        "features": find_features(contract, split_names("claims", features)),
        "communication": None if communication is None else Expectation.parse(communication, known, said[0]),
        "overlap": None if overlap is None else Overlap.parse(overlap, known, said[1]),
        "data": kinds,
    }


def find_features(contract: str, names: Iterable[str]) -> frozenset[str]:
    """The features of a contract with these names, `all` being those that draw something more; raises GivenError."""
    known = CONTRACTS[contract].features
    found: set[str] = set()
    for name in names:
        if name == "all":
            found |= known - CONCESSIONS
        elif name in known:
            found.add(name)
        else:
            what = f"{contract} has no such feature" if name in FEATURES else "no such feature"
            if " " in name.strip() or "," in name:
                raise GivenError(f"claims={name!r}: expected one name, or several in a tuple")
            hint = suggestion.did_you_mean(name, ["all", *sorted(known)], of="some of")
            raise GivenError(f"claims={name!r}: {what}; {hint}")
    return frozenset(found)


def check_contract(contract: object, said: str = "contract") -> None:
    """Raises GivenError unless the contract exists; `said` is where it was named."""
    if callable(contract):
        raise GivenError(f"{said}={contract!r}: expected the contract's name first, and the function after it")
    if not isinstance(contract, str):
        raise GivenError(f"{said}={contract!r}: expected the name of one: {', '.join(CONTRACTS)}")
    if contract not in CONTRACTS:
        raise GivenError(f"{said}={contract!r}: no such contract; {suggestion.did_you_mean(contract, CONTRACTS)}")


def check_signature(contract: str, function: Callable[..., Any], features: Collection[str] = ()) -> None:
    """Raises GivenError, with both signatures, unless a function takes the arguments of a contract and its claims."""
    operands, keywords = CONTRACTS[contract].call.arrays, list(CONTRACTS[contract].call.parameters)
    keywords += sorted({KEYWORDS[feature] for feature in features if feature in KEYWORDS})
    axes, keyword_axes = _axes(contract)
    wanted = _list([*operands, *axes], [*keyword_axes, *keywords])
    if not callable(function):
        raise GivenError(f"{contract}: {function!r} is not callable: expected a function {wanted}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables in C have no signature
        return
    name = getattr(function, "__name__", repr(function))
    try:
        signature.bind(*operands, *axes, **dict.fromkeys([*keyword_axes, *keywords]))
    except TypeError as error:
        raise GivenError(f"{contract}: {name}{signature} cannot be called as {wanted}: {error}") from error
    for keyword, right in defaults(contract).items():
        parameter = signature.parameters.get(keyword)
        if parameter is not None and parameter.default not in (parameter.empty, right):
            found = f"{keyword}={parameter.default!r} by default: expected {right!r}, as in {signature_of(contract)}"
            raise GivenError(f"{contract}: {name} has {found}")


def defaults(contract: str) -> dict[str, Any]:
    """The defaults of the contract's keyword arguments: those of this project's first implementation."""
    from shardproof.properties.programs.built_in import IMPLEMENTATIONS  # which a program has no need of

    first = next(one for one in IMPLEMENTATIONS if one.contract.name == contract)
    parameters = inspect.signature(first.function).parameters
    return {name: parameters[name].default for name in CONTRACTS[contract].call.parameters if name in parameters}


def signature_of(contract: str) -> str:
    """The signature of a contract's functions: `(x, axis_name, *, op='sum')`."""
    known = defaults(contract)
    keywords = [name if known[name] is inspect.Parameter.empty else f"{name}={known[name]!r}" for name in known]
    axes, keyword_axes = _axes(contract)
    return _list([*CONTRACTS[contract].call.arrays, *axes], [*keyword_axes, *keywords])


def _axes(contract: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameters for axes, by place and by keyword; and that for the mesh, of functions of global arrays."""
    by_place, by_keyword = CONTRACTS[contract].call.axis_names
    return by_place, (*["mesh"] * CONTRACTS[contract].whole, *by_keyword)


def _list(by_place: Sequence[str], by_keyword: Sequence[str]) -> str:
    """A list of parameters: `(x, axis_name, *, op='sum')`."""
    return f"({', '.join([*by_place, *(['*', *by_keyword] if by_keyword else [])])})"
