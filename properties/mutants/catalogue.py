"""The planted bugs' class, and their registration."""

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


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation that the suite must report.

    Arguments:
        name: the function's name.
        contract: the contract that it breaks.
        sentence: what is wrong with it.
        law: the law that catches it.
        smallest: the sizes of the smallest mesh on which it is wrong: fewest devices, then fewest axes.
            In which order they stand makes none of them smaller.
        function: the device-local function, or one of global arrays.
        runs: one of `RUNS`.
        communication: what it is said to send, for one that sends something else.
        claims: the features that it claims, for one that is wrong in one of them.
        overlap: what its user claims of how it hides that, for one that does not.
        whole: whether it takes global arrays, and the mesh.

    Raises:
        ValueError: if one of them is not known to the suite, or the sentence is missing.
    """

    name: str
    contract: str
    sentence: str
    law: str
    smallest: tuple[int, ...]
    function: Callable[..., Any]
    runs: str = "drawn"
    communication: Said | None = None
    claims: tuple[str, ...] = ()
    overlap: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        for argument, known in (("contract", CONTRACTS), ("law", LAWS), ("runs", RUNS)):
            value = getattr(self, argument)
            if value not in known:
                raise ValueError(f"mutant {self.name}: {argument}={value!r}: expected one of {', '.join(known)}")
        if not self.sentence.endswith("."):
            raise ValueError(f"mutant {self.name}: sentence={self.sentence!r}: expected a docstring of one sentence")

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


MUTANTS: dict[str, Mutant] = {}
"""Every planted bug by its name."""


def formula_of(contract: str, implementation: str) -> Said:
    """The claimed communication of an implementation, for a bug that sends something else."""
    found = {one.name: one.communication for one in IMPLEMENTATIONS if one.contract.name == contract}[implementation]
    assert found is not None
    return found


def mutant(
    contract: str,
    *,
    smallest: tuple[int, ...],
    law: str = "value",
    runs: str = "drawn",
    communication: Said | None = None,
    claims: tuple[str, ...] = (),
    overlap: str = "",
    whole: bool = False,
) -> Callable[[Function], Function]:
    """Enters a function into the catalogue; its docstring says in one sentence what is wrong.

    Raises:
        ValueError: if the name is taken, or see `Mutant`.
    """

    def enter(function: Function) -> Function:
        name = function.__name__
        if name in MUTANTS:
            raise ValueError(f"mutant {name}: expected a name that no other has")
        sentence = " ".join((function.__doc__ or "").split())
        MUTANTS[name] = Mutant(
            name, contract, sentence, law, smallest, function, runs, communication, claims, overlap, whole
        )
        return function

    return enter
