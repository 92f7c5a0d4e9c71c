"""From a case to the plain numbers that formulas of communication are in, for the contracts that name theirs."""

import math
from collections.abc import Callable, Iterable

from shardproof.oracles.communication import NOTHING, Cost, summed_replicas
from shardproof.oracles.dtypes import NARROW, width
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.contract import Communication
from shardproof.properties.contracts.floats import float32_accumulator

COUNTED = Data("exact", 0)
"""What the interpreter runs on where communication is counted: only what a loop sends may depend on it."""


def elements(case: Case, place: int = 0) -> int:
    """The elements of an operand's block."""
    return math.prod(case.operands[place].block)


def bits(case: Case) -> int:
    """The bits of an element of the first operand."""
    return width(case.operands[0].numpy_dtype)


def sum_bits(case: Case) -> int:
    """The bits of what elements of the first operand are added up in, if 16-bit floats are in float32."""
    return width(float32_accumulator(case.operands[0].numpy_dtype))


def with_replicas(communication: Communication, *places: int) -> Communication:
    """The cost together with the sums of the gradients of operands that are cast as they come in: block by block."""

    def cost(case: Case, backward: bool) -> Cost:
        own = communication(case, backward)
        for place in places if backward else ():
            own += replicas(case, place, elements(case, place), bits(case))
        return own

    return cost


def replicas(case: Case, place: int, n: int, bits: int) -> Cost:
    """What adding up the gradient of an operand costs that is the same along axes along which another one varies.

    Arguments:
        case: the case.
        place: the operand's.
        n: the elements of what is cast.
        bits: those of an element while it is added up.
    """
    along = set(case.axes).union(*(operand.placement.axes for operand in case.operands))
    return summed_replicas(n, bits=bits) if is_replica(case.operands[place], along) else NOTHING


def is_replica(operand: Operand, along: Iterable[str]) -> bool:
    """Whether an operand is the same along one of the axes, or more of them."""
    return bool(set(along) - operand.placement.axes)


def something(*places: int) -> Callable[[Case], int]:
    """A lower bound where how much must be sent is not certain, but that something must be.

    That is one byte if there are several participants, nothing is empty, and each holds a part of these operands.
    """

    def least(case: Case) -> int:
        split = all(set(case.axes) <= case.operands[place].placement.axes for place in places)
        whole = all(0 not in o.block and o.dtype not in NARROW for o in case.operands)
        return int(case.group_size > 1 and split and whole)

    return least
