"""What a planted bug is, and how it enters the catalogue."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.contract import Communication
from shardproof.properties.laws.law import LAWS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import IMPLEMENTATIONS
from shardproof.properties.runner.budgets import SHARES

Function = TypeVar("Function", bound=Callable[..., Any])
Said = str | Expectation | Communication
"""What is said of communication: as text, as text that was read, or by a formula."""

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
        form: whose budget it is hunted at: that of the form of implementation that it is a bug of.
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
    form: str = "user"
    whole: bool = False

    def __post_init__(self) -> None:
        for argument, known in (("contract", CONTRACTS), ("law", LAWS), ("runs", RUNS), ("form", SHARES)):
            value = getattr(self, argument)
            if value not in known:
                raise ValueError(f"mutant {self.name}: {argument}={value!r}: expected one of {', '.join(known)}")
        if not self.sentence.endswith("."):
            raise ValueError(f"mutant {self.name}: sentence={self.sentence!r}: expected a docstring of one sentence")

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


FORMS = {
    "doublings": "algorithm",
    "not_finite": "overlapped",
    "products": "overlapped",
    "products_both_ways": "overlapped",
    "rings": "algorithm",
}
"""The form that the bugs of a module are bugs of, where it is not a user's function."""

MUTANTS: dict[str, Mutant] = {}
"""Every planted bug by its name."""


def _form_of(contract: str) -> str:
    """The form of a contract's implementations, where it names them itself; else that of what a user brings."""
    return CONTRACTS[contract].form if contract in CONTRACTS and CONTRACTS[contract].implementations else "user"


def formula_of(contract: str, implementation: str) -> Said:
    """What an implementation is said to send, for a bug that sends something else."""
    found = {one.name: one.communication for one in IMPLEMENTATIONS if one.contract == contract}[implementation]
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
    form: str | None = None,
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
            name,
            contract,
            sentence,
            law,
            smallest,
            function,
            runs,
            communication,
            claims,
            overlap,
            form or ("whole" if whole else FORMS.get(function.__module__.rpartition(".")[2], _form_of(contract))),
            whole,
        )
        return function

    return enter
