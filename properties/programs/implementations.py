"""Functions that claim to satisfy a contract."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import KINDS
from shardproof.properties.contracts.contract import CONCESSIONS, Contract
from shardproof.properties.programs.expectation import Expectation, Overlap

OF_PROGRAMS = ("exact", "real")
"""The kinds of data that programs of users' own are run on."""

WHERE_ASKED = ("special", "nan", "large")
"""Those that they are run on where they ask for them: what is right of such data only its author knows."""


@dataclass(frozen=True)
class Implementation:
    """A function that claims to satisfy a contract. See `Claim`."""

    contract: Contract
    name: str
    function: Callable[..., Any]
    features: frozenset[str] = field(default=frozenset())
    # whether its result is typed invariant along the axis tuple; None: however it is traced (a user's declares nothing)
    invariant: bool | None = None
    communication: Expectation | None = None
    overlap: Overlap | None = None
    built_in: bool = False  # whether it is this project's own
    serves: Callable[[Case], bool] | None = None
    given: Any = None  # where the function was found, for one that a user named on the command line
    whole: bool = False
    layouts: tuple[Any, ...] = field(default=(), hash=False)
    check_vma: bool = True  # whether `shard_map` may check its types
    program: Any = None  # the user's program that it is, if its contract is not in `CONTRACTS`
    accumulator: str = ""  # the dtype in which it carries sums of narrower floats; empty: that of its contract
    within: float = 0.0  # what it may be off by design, relative to the largest number of an array
    by_row: bool = False  # whether that is relative to the largest number of each row, along the last dimension
    data: tuple[str, ...] = ()  # the kinds of data that it is run on, of `KINDS`; empty: all

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The features of the contract that it does not claim, so that nothing of them is drawn."""
        return tuple(sorted(self.contract.features - self.features - CONCESSIONS))

    @property
    def stated(self) -> tuple[str, ...]:
        """Its restrictions, in words."""
        known = KINDS if self.program is None else OF_PROGRAMS
        declined = ", ".join(kind for kind in known if self.data and kind not in self.data)
        of_data = (f"data: {', '.join(self.data)}, and not {declined}",) if declined else ()
        return (*of_data, *(() if self.program is None else self.program.stated))

    def __str__(self) -> str:
        return full_name(self.contract.name, self.name)


def full_name(contract: str, name: str) -> str:
    """The name of an implementation with its contract: `all_gather[ring]`; just `mlp` where it has its own."""
    return name if name == contract else f"{contract}[{name}]"
