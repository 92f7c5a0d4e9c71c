"""What claims to satisfy a contract."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import KINDS
from shardproof.properties.contracts.contract import CONCESSIONS, Communication, Contract
from shardproof.properties.programs.expectation import Expectation, Overlap, names_of

OF_PROGRAMS = ("exact", "real")
"""The kinds of data that programs of users' own are run on."""


@dataclass(frozen=True)
class Implementation:
    """A function that claims to satisfy a contract.

    Arguments:
        function: the device-local function.
        features: what it serves beyond the contract's signature (see `FEATURES`).
        invariant: whether its result is typed invariant along the axis tuple; None: whatever the
            trace says (a user's function declares nothing).
        communication: what it is said to send, forward and for its gradient alone: in words, or by a formula of a case;
            None: nothing is said.
        overlap: what is claimed of how it hides its communication; None: nothing.
        built_in: whether it is this project's own.
        serves: whether it serves a case; others are not drawn for it. None: all, or as it then says itself.
        given: where the function was found, for one that a user named on the command line.
        whole: whether it is a function of global arrays, which gets the mesh as `mesh`, and not of blocks.
        layouts: how it wants its arguments laid out, if not as its contract describes them (see `Claim`).
        check_vma: whether `shard_map` may check its types.
        program: the program of a user's own that it is, if its contract is in no list.
        accumulator: the dtype in which it carries sums of narrower floats; empty: as its contract says.
        within: what it may be off by design, relative to the largest number of an array.
        by_row: whether that is relative to the largest number of each row, along the last dimension.
        data: the kinds of data that it is run on, of `KINDS`; empty: all.
    """

    contract: Contract
    name: str
    function: Callable[..., Any]
    features: frozenset[str] = field(default=frozenset())
    invariant: bool | None = None
    communication: Expectation | Communication | None = None
    overlap: Overlap | None = None
    built_in: bool = False
    serves: Callable[[Case], bool] | None = None
    given: Any = None
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    check_vma: bool = True
    program: Any = None
    accumulator: str = ""
    within: float = 0.0
    by_row: bool = False
    data: tuple[str, ...] = ()

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The features of the contract that it does not claim, so that nothing of them is drawn."""
        return tuple(sorted(self.contract.features - self.features - CONCESSIONS))

    @property
    def stated(self) -> tuple[str, ...]:
        """What it is said to need, in words."""
        known = KINDS if self.program is None else OF_PROGRAMS
        declined = ", ".join(kind for kind in known if self.data and kind not in self.data)
        of_data = (f"data: {', '.join(self.data)}, and not {declined}",) if declined else ()
        return (*of_data, *(() if self.program is None else self.program.stated))

    def __str__(self) -> str:
        return called(self.contract.name, self.name)


def called(contract: str, name: str) -> str:
    """What an implementation of a contract is called: `all_gather[ring]`, or just `mlp` where it has its own."""
    return name if name == contract else f"{contract}[{name}]"


def said(communication: str | Communication | None, contract: Contract) -> Expectation | Communication | None:
    """The claim of an implementation of a contract."""
    return Expectation.parse(communication, names_of(contract)) if isinstance(communication, str) else communication
