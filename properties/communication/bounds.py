"""The least that any program must send in a case, where that is certain: the oracle's bound, with its conditions."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles.communication import lower_bound as least
from shardproof.oracles.dtypes import width
from shardproof.properties.cases.case import Case


@dataclass(frozen=True)
class Bound:
    """What a collective costs at least: operations after one another, and bytes that pass each device."""

    steps: int
    bytes: Fraction


NOTHING = Bound(0, Fraction(0))
PARTS = {"all_gather": 1, "all_gather_invariant": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
"""Of the contracts that exchange parts: how often all but one's own of the p parts pass a device."""


KNOWN = (*PARTS, "broadcast", "permute", "ring_shift")
"""The contracts that have a bound."""


def lower_bound(contract: str, p: int, n: float | Fraction) -> Bound:
    """The bound of a collective of p participants on n bytes; nothing for one participant or no bytes.

    A permute is taken to move at least one block to another device, and a shift not to wrap to where
    it started; see `needed` for cases.

    Raises:
        ValueError: for a contract without a bound.
    """
    if contract in ("permute", "ring_shift"):
        return NOTHING if p < 2 or n == 0 else Bound(1, Fraction(n))
    return Bound(*least(contract, p, Fraction(n)))


def operand_bits(case: Case, *, packed: bool) -> int:
    """The bits of all operands' blocks on one device; a bool counts as 8, or `packed` as the one that it is."""
    total = 0
    for operand in case.operands:
        bits = 1 if packed and operand.dtype == "bool" else width(operand.numpy_dtype)
        total += math.prod(operand.block) * bits
    return total


def full_bytes(case: Case) -> int:
    """n: the bytes of the full vector, as `shardproof.oracles.communication` defines it."""
    gathers = case.contract.name in ("all_gather", "all_gather_invariant")
    return math.ceil(operand_bits(case, packed=False) / 8) * (case.group_size if gathers else 1)


def needed(case: Case) -> Bound:
    """The bound of a case: nothing where nothing must be sent, or where it is not certain.

    Operands that are replicated along the axis tuple are known everywhere. A permute that gives every
    participant its own block or none moves nothing, nor does a shift by a multiple of p. A bool may be sent
    as a bit. A contract may know a bound of its own.
    """
    params = case.keywords
    own = case.contract.least
    if own is not None:
        least_bytes = Fraction(own(case))
        return Bound(min(1, math.ceil(least_bytes)), least_bytes)
    if case.contract.name not in KNOWN or not all(
        set(case.axes) <= operand.placement.axes for operand in case.operands
    ):
        return NOTHING
    if case.contract.name == "permute" and all(source == target for source, target in params["perm"]):
        return NOTHING
    if case.contract.name == "ring_shift" and params["offset"] % case.participants == 0:
        return NOTHING
    gathers = case.contract.name in ("all_gather", "all_gather_invariant")
    p = case.group_size
    bits = operand_bits(case, packed=True) * (p if gathers else 1)
    return lower_bound(case.contract.name, p, Fraction(bits, 8))


def nothing_must_move(case: Case) -> bool:
    """Whether every participant has all that it needs: it is alone, all is empty, it keeps its block, or all have it.

    Products need nothing as soon as one operand is empty: what is left of them is zeros.
    """
    params, axes = case.keywords, set(case.axes)
    alone = case.group_size == 1
    empty = any(0 in operand.block for operand in case.operands)
    kept = case.contract.name == "permute" and all(source == target for source, target in params["perm"])
    turned = case.contract.name == "ring_shift" and params["offset"] % case.participants == 0
    known = case.contract.name in KNOWN and not any(axes & operand.placement.axes for operand in case.operands)
    return alone or empty or kept or turned or known


def moved(collectives: Iterable[tuple[str, int, int]]) -> Fraction | None:
    """The bytes that pass a device in collectives of (kind, participants, operand bytes), each at its own bound.

    None where one is among them whose traffic depends on data.
    """
    total = Fraction(0)
    for kind, p, size in collectives:
        if kind == "ragged_all_to_all":
            return None
        if kind in ("permute", "broadcast"):
            total += size
        elif kind == "all_gather":
            total += (p - 1) * size
        else:
            total += PARTS[kind] * Fraction(p - 1, max(p, 1)) * size
    return total
