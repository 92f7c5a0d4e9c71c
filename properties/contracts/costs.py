"""What contracts say their bounds and costs in: numbers of a case, and parts of claims (see `Expectation.parse`)."""

from collections.abc import Callable

from shardproof.oracles.dtypes import NARROW, width
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data

COUNTED = Data("exact", 0)
"""What the interpreter runs on where communication is counted: only what a loop sends may depend on it."""


def bits(case: Case) -> int:
    """The bits of an element of the first operand."""
    return width(case.operands[0].numpy_dtype)


def something(*places: int) -> Callable[[Case], int]:
    """A lower bound where how much must be sent is not certain, but that something must be.

    That is one byte if there are several participants, nothing is empty, and each holds a part of these operands.
    """

    def least(case: Case) -> int:
        split = all(set(case.axes) <= case.operands[place].placement.axes for place in places)
        whole = all(0 not in o.block and o.dtype not in NARROW for o in case.operands)
        return int(case.group_size > 1 and split and whole)

    return least


NOTHING = "bytes=0;grad:bytes=0"
"""What sends nothing."""


def transposed(text: str) -> str:
    """What a collective sends whose gradient sends as much: a permute's transpose is a permute."""
    return f"{text};grad:{text}"


def added_up(*names: str, wide: bool = False) -> str:
    """The sums of the gradients of replicas: an operand is cast to varying where it meets what varies.

    Arguments:
        names: the operands, each of which is cast as it comes in.
        wide: whether they are in the accumulator's dtype by then.
    """
    return f"all_reduce={replicas(*names)},all_reduce_bytes={replica_bytes(*names, wide=wide)}"


def replicas(*names: str) -> str:
    """How many of the operands are replicated."""
    return "+".join(f"replicated({name})" for name in names)


def replica_bytes(*names: str, wide: bool = False) -> str:
    """The bytes of those."""
    return "+".join(
        f"replicated({name})*{f'elements({name})*sum_itemsize({name})' if wide else name}" for name in names
    )
