"""Functions that users bring: named on the command line, or handed to `check`."""

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
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.expectation import Expectation, ExpectationError, Overlap, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.stated import GivenError, check_kinds, named

SAID = ("--expect-communication", "--claims", "--expect-overlap", "--data-kinds")
"""What is said of the functions that `--impl` names, each option once for every function."""

ALL = "all"
"""What claims every feature of a contract."""


@dataclass(frozen=True)
class Given:
    """A function by its name, as `--impl` takes it: `CONTRACT=MODULE:FUNCTION`, or `MODULE:PROGRAM` of a `Program`."""

    contract: str
    module: str
    function: str
    expectation: Expectation | None = None
    features: frozenset[str] = frozenset()
    overlap: Overlap | None = None
    data: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        text: str,
        expectation: str | None = None,
        claims: str | None = None,
        overlap: str | None = None,
        data: str | None = None,
    ) -> "Given":
        """Reads `CONTRACT=MODULE:FUNCTION`, of which something may be expected, and which may claim features.

        A program, `MODULE:PROGRAM`, says all of that itself.

        Raises:
            GivenError: if the text has another form, the contract or a feature is unknown, or the expectation cannot
                be read.
        """
        contract, _, target = text.rpartition("=")
        module, colon, function = target.partition(":")
        if not (colon and module and function) or text.startswith("="):
            forms = "CONTRACT=MODULE:FUNCTION, as in all_gather=mine:gather, or MODULE:PROGRAM"
            raise GivenError(f"--impl={text}: expected {forms}")
        if not contract:
            for option, said in zip(SAID, (expectation, claims, overlap, data), strict=True):
                if said is not None:
                    raise GivenError(f"{option}={said}: expected none of {text}: a Program says it itself")
            return cls("", module, function)
        check_contract(contract, said=f"--impl={text}: contract")
        names = [name.strip() for name in (claims or "").split(",") if name.strip()]
        try:
            known = names_of(CONTRACTS[contract])
            expected = None if expectation is None else Expectation.parse(expectation, known, SAID[0])
            hides = None if overlap is None else Overlap.parse(overlap, known, SAID[2])
        except ExpectationError as error:
            raise GivenError(str(error)) from error
        kinds = named("data", data, ())
        check_kinds(kinds)
        return cls(contract, module, function, expected, claimed(contract, names), hides, kinds)

    def imported(self) -> Any:
        """Imports the function or program, from the current directory as well; raises GivenError if it cannot."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            target: Any = importlib.import_module(self.module)
        except (Exception, SystemExit) as error:  # whatever an import raises is why the function is not there
            raise GivenError(f"--impl={self}: cannot import {self.module}: {type(error).__name__}: {error}") from error
        for part in self.function.split("."):
            if not hasattr(target, part):
                raise GivenError(f"--impl={self}: module {self.module} has no {self.function}")
            target = getattr(target, part)
        return target

    def load(self) -> Implementation:
        """The function or program, imported, as an implementation.

        Raises:
            GivenError: if it cannot be imported, or called as its contract demands.
        """
        target = self.imported()
        if not self.contract:
            return self._of(target)
        check_signature(self.contract, target, self.features)
        contract = CONTRACTS[self.contract]
        return Implementation(
            contract,
            self.function,
            target,
            self.features,
            communication=self.expectation,
            overlap=self.overlap,
            given=self,
            whole=contract.whole,
            data=self.data,
        )

    def _of(self, program: Any) -> Implementation:
        if not isinstance(program, Program):
            raise GivenError(f"--impl={self}: expected a Program, got {type(program).__name__}; or CONTRACT={self}")
        try:
            return dataclasses.replace(program.implementation, given=self)
        except ValueError as error:
            raise GivenError(f"--impl={self}: {error}") from error

    def __str__(self) -> str:
        return f"{self.contract}={self.module}:{self.function}".removeprefix("=")


def parse_all(functions: Sequence[str], *said: Sequence[str]) -> list[Given]:
    """What `--impl` names, the first with the first of each of `SAID`, and so on.

    Raises:
        GivenError: if one cannot be read, or more is said by an option than there are functions, or there is none.
    """
    for option, texts in zip(SAID, said, strict=False):
        if texts and not functions:
            raise GivenError(f"{option}={texts[0]}: expected --impl as well, whose function it is said of")
        if len(texts) > len(functions):
            raise GivenError(f"{option}={texts[len(functions)]}: expected no more of them than of --impl")
    return [Given.parse(*one) for one in zip_longest(functions, *said)]


def claimed(contract: str, names: Iterable[str]) -> frozenset[str]:
    """The features of a contract with these names; `all` stands for all that draw something more.

    Raises:
        GivenError: for another name; the message suggests the nearest one.
    """
    known = CONTRACTS[contract].features
    found: set[str] = set()
    for name in names:
        if name == ALL:
            found |= known - CONCESSIONS
        elif name in known:
            found.add(name)
        else:
            what = f"{contract} has no such feature" if name in FEATURES else "no such feature"
            if " " in name.strip() or "," in name:
                raise GivenError(f"claims={name!r}: expected one name, or several in a tuple")
            hint = suggestion.did_you_mean(name, [ALL, *sorted(known)], of="some of")
            raise GivenError(f"claims={name!r}: {what}; {hint}")
    return frozenset(found)


def check_contract(contract: object, said: str = "contract") -> None:
    """The contract exists.

    Arguments:
        said: where that was said.

    Raises:
        GivenError: if not; the message suggests the nearest one.
    """
    if callable(contract):
        raise GivenError(f"{said}={contract!r}: expected the contract's name first, and the function after it")
    if not isinstance(contract, str):
        raise GivenError(f"{said}={contract!r}: expected the name of one: {', '.join(CONTRACTS)}")
    if contract not in CONTRACTS:
        raise GivenError(f"{said}={contract!r}: no such contract; {suggestion.did_you_mean(contract, CONTRACTS)}")


def check_signature(contract: str, function: Callable[..., Any], features: Collection[str] = ()) -> None:
    """The function can be called as the contract says, and as what it claims demands.

    Raises:
        GivenError: if it cannot; the message shows both signatures.
    """
    operands, keywords = CONTRACTS[contract].call.arrays, list(CONTRACTS[contract].call.parameters)
    keywords += sorted({KEYWORDS[feature] for feature in features if feature in KEYWORDS})
    axes, keyword_axes = _axes(contract)
    wanted = _listed([*operands, *axes], [*keyword_axes, *keywords])
    if not callable(function):
        raise GivenError(f"{contract}: {function!r} is not callable: expected a function {wanted}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables in C do not tell
        return
    name = getattr(function, "__name__", repr(function))
    try:
        signature.bind(*operands, *axes, **dict.fromkeys([*keyword_axes, *keywords]))
    except TypeError as error:
        raise GivenError(f"{contract}: {name}{signature} cannot be called as {wanted}: {error}") from error
    for keyword, right in defaults(contract).items():
        parameter = signature.parameters.get(keyword)
        if parameter is not None and parameter.default not in (parameter.empty, right):
            told = f"{keyword}={parameter.default!r} by default: expected {right!r}, as in {signature_of(contract)}"
            raise GivenError(f"{contract}: {name} has {told}")


def defaults(contract: str) -> dict[str, Any]:
    """The defaults of the contract's keyword arguments: those of this project's first implementation."""
    first = next(one for one in IMPLEMENTATIONS if one.contract.name == contract)
    parameters = inspect.signature(first.function).parameters
    return {name: parameters[name].default for name in CONTRACTS[contract].call.parameters if name in parameters}


def signature_of(contract: str) -> str:
    """How a contract's functions are called: `(x, axis_name, *, op='sum')`."""
    known = defaults(contract)
    keywords = [name if known[name] is inspect.Parameter.empty else f"{name}={known[name]!r}" for name in known]
    axes, keyword_axes = _axes(contract)
    return _listed([*CONTRACTS[contract].call.arrays, *axes], [*keyword_axes, *keywords])


def _axes(contract: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameters for axes, by place and by keyword; and that for the mesh, of functions of global arrays."""
    by_place, by_keyword = CONTRACTS[contract].call.axis_names
    return by_place, (*["mesh"] * CONTRACTS[contract].whole, *by_keyword)


def _listed(by_place: Sequence[str], by_keyword: Sequence[str]) -> str:
    """A list of parameters: `(x, axis_name, *, op='sum')`."""
    return f"({', '.join([*by_place, *(['*', *by_keyword] if by_keyword else [])])})"
