"""Functions that users bring: named on the command line, or handed to `check`."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from properties.communication.expectation import Expectation, ExpectationError
from properties.contracts import CONTRACTS
from properties.implementations import Implementation


class GivenError(ValueError):
    """What was given cannot be checked; the message says why in one line."""


@dataclass(frozen=True)
class Given:
    """A function by its name: `CONTRACT=MODULE:FUNCTION`, as `--impl` takes it."""

    contract: str
    module: str
    function: str
    expectation: Expectation | None = None

    @classmethod
    def parse(cls, text: str, expectation: Expectation | None = None) -> "Given":
        """Reads `CONTRACT=MODULE:FUNCTION`, of which a communication may be expected.

        Raises:
            GivenError: if the text has another form, or the contract is unknown.
        """
        contract, equals, target = text.partition("=")
        module, colon, function = target.partition(":")
        if not (equals and colon and module and function):
            raise GivenError(f"--impl={text}: expected CONTRACT=MODULE:FUNCTION, as in all_gather=mine:gather")
        check_contract(contract)
        return cls(contract, module, function, expectation)

    def load(self) -> Implementation:
        """Imports the function, from the current directory as well.

        Raises:
            GivenError: if it cannot be imported, or called as its contract demands.
        """
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            target: Any = importlib.import_module(self.module)
        except Exception as error:
            raise GivenError(f"--impl={self}: cannot import {self.module}: {type(error).__name__}: {error}") from error
        for part in self.function.split("."):
            if not hasattr(target, part):
                raise GivenError(f"--impl={self}: module {self.module} has no {self.function}")
            target = getattr(target, part)
        check_signature(self.contract, target)
        return Implementation(self.contract, self.function, target, expectation=self.expectation, given=self)

    def __str__(self) -> str:
        return f"{self.contract}={self.module}:{self.function}"


def parse_all(functions: Sequence[str], expectations: Sequence[str]) -> list[Given]:
    """What `--impl` names, the first with the first `--expect-communication`, and so on.

    Raises:
        GivenError: if one cannot be read, or there are more expectations than functions.
    """
    if len(expectations) > len(functions):
        raise GivenError(
            f"--expect-communication={expectations[len(functions)]}: expected no more of them than of --impl"
        )
    try:
        expected = [Expectation.parse(text) for text in expectations]
    except ExpectationError as error:
        raise GivenError(str(error)) from error
    missing = [None] * (len(functions) - len(expected))
    return [Given.parse(*pair) for pair in zip(functions, [*expected, *missing], strict=True)]


def check_contract(contract: str) -> None:
    """The contract exists.

    Raises:
        GivenError: if not; the message suggests the nearest one.
    """
    if contract not in CONTRACTS:
        near = difflib.get_close_matches(contract, CONTRACTS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(CONTRACTS)}"
        raise GivenError(f"contract={contract!r}: no such contract; {hint}")


def check_signature(contract: str, function: Callable[..., Any]) -> None:
    """The function can be called as the contract says.

    Raises:
        GivenError: if it cannot; the message shows both signatures.
    """
    operands, keywords = CONTRACTS[contract].operands, CONTRACTS[contract].parameters
    wanted = f"({', '.join([*operands, 'axis_name', *(['*', *keywords] if keywords else [])])})"
    if not callable(function):
        raise GivenError(f"{contract}: {function!r} is not callable: expected a function {wanted}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables in C do not tell
        return
    try:
        signature.bind(*operands, "axis_name", **dict.fromkeys(keywords))
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise GivenError(f"{contract}: {name}{signature} cannot be called as {wanted}: {error}") from error
