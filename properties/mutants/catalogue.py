"""The catalogues of planted bugs, and of right functions that look odd, and the entry of functions into them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.laws import LAWS
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.expectation import Expectation

Function = TypeVar("Function", bound=Callable[..., Any])
Said = str | Expectation
"""A claim of communication, as text or parsed."""

RUNS = ("drawn", "large", "isolated")
"""Where a bug shows: on meshes that every run draws, only on large ones, or not without ending the process."""


@dataclass(frozen=True, kw_only=True)
class RightOne:
    """A right implementation that no law may report.

    Arguments:
        name: the function's name.
        contract: the contract that it satisfies.
        sentence: what is odd about it.
        function: the device-local function, or any other callable.
        claims: the features that it claims.
        whole: whether it takes global arrays, and the mesh.

    Raises:
        ValueError: if the contract is not known, or the sentence is missing.
    """

    name: str
    contract: str
    sentence: str
    function: Callable[..., Any]
    claims: tuple[str, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        for argument, known in (("contract", CONTRACTS), ("law", LAWS), ("runs", RUNS)):
            value = getattr(self, argument, None)
            if value is not None and value not in known:
                raise ValueError(f"{self.name}: {argument}={value!r}: expected one of {', '.join(known)}")
        if not self.sentence.endswith("."):
            raise ValueError(f"{self.name}: sentence={self.sentence!r}: expected a docstring of one sentence")

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


@dataclass(frozen=True, kw_only=True)
class Mutant(RightOne):
    """A wrong implementation that the suite must report; its sentence says what is wrong.

    Arguments:
        law: the law that catches it.
        smallest: the sizes of the smallest mesh on which it is wrong: fewest devices, then fewest axes.
            In which order they stand makes none of them smaller.
        runs: one of `RUNS`.
        communication: what it is said to send, for one that sends something else.
        overlap: what its user claims of how it hides that, for one that does not.
    """

    law: str = "value"
    smallest: tuple[int, ...]
    runs: str = "drawn"
    communication: Said | None = None
    overlap: str = ""


MUTANTS: dict[str, Mutant] = {}
"""Every planted bug by its name."""

RIGHT_ONES: dict[str, RightOne] = {}
"""Every right function by its name."""


def formula_of(contract: str, implementation: str) -> Said:
    """The claimed communication of an implementation, for a bug that sends something else."""
    found = {one.name: one.communication for one in IMPLEMENTATIONS if one.contract.name == contract}[implementation]
    assert found is not None
    return found


def _entering(catalogue: dict[str, Any], kind: type[RightOne], about: Any) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        name, sentence = function.__name__, " ".join((function.__doc__ or "").split())
        if name in catalogue:
            raise ValueError(f"{name}: expected a name that no other has")
        catalogue[name] = kind(name=name, sentence=sentence, function=function, **about)
        return function

    return enter


def mutant(contract: str, **about: Any) -> Callable[[Function], Function]:
    """Enters a wrong function into the catalogue; its docstring says in one sentence what is wrong.

    Raises:
        ValueError: if the name is taken, or see `Mutant`, whose arguments it takes.
    """
    return _entering(MUTANTS, Mutant, {"contract": contract, **about})


def right(contract: str, **about: Any) -> Callable[[Function], Function]:
    """Enters a right function in the same way; its docstring says what is odd about it."""
    return _entering(RIGHT_ONES, RightOne, {"contract": contract, **about})
