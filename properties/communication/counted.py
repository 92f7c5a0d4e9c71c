"""The communication of one program: counted from its run or its compiled text, stated, and the lower bound of its case.

The bound is the oracle's, with its conditions. An expectation may use the participants of a case, and the bytes of
operands and results.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.oracles.communication import KINDS
from shardproof.oracles.communication import lower_bound as least
from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.hlo import CompiledCollective, collectives
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.engines import Prepared
from shardproof.properties.engines.simulate.env import Record
from shardproof.properties.programs.expectation import OF_KIND, Block, Expectation, Stated, Terms


@dataclass(frozen=True)
class Bound:
    """The least cost of a collective: operations one after another, and bytes that each device sends or receives."""

    steps: int
    bytes: Fraction


NOTHING = Bound(0, Fraction(0))
PARTS = {"all_gather": 1, "all_gather_invariant": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
"""How often a contract moves all but a device's own of the p parts past it."""

KNOWN = (*PARTS, "broadcast", "permute", "ring_shift")
"""The contracts that have a bound."""


def lower_bound(contract: str, p: int, n: float | Fraction) -> Bound:
    """The bound of a collective of p participants on n bytes; raises ValueError for a contract without one.

    A permute is assumed to move at least one block to another device, and a shift not to wrap to its start; see
    `needed_bound` for cases.
    """
    if contract in ("permute", "ring_shift"):
        return NOTHING if p < 2 or n == 0 else Bound(1, Fraction(n))
    return Bound(*least(contract, p, Fraction(n)))


def operand_bits(case: Case, *, packed: bool) -> int:
    """The bits of all operands' blocks on one device; a bool has 8, or 1 if `packed`."""
    widths = [1 if packed and o.dtype == "bool" else width(o.numpy_dtype) for o in case.operands]
    return sum(math.prod(o.block) * bits for o, bits in zip(case.operands, widths, strict=True))


def full_bytes(case: Case) -> int:
    """n: the bytes of the full vector, as `shardproof.oracles.communication` defines it."""
    gathers = case.contract.name in ("all_gather", "all_gather_invariant")
    return math.ceil(operand_bits(case, packed=False) / 8) * (case.group_size if gathers else 1)


def needed_bound(case: Case) -> Bound:
    """The bound of a case: nothing where nothing must be sent, or where that is uncertain.

    Operands replicated along the axis tuple need no sending, nor does a permute that gives every participant its own
    block or none, nor a shift by a multiple of p. A bool may be sent as a bit. A contract may have its own bound.
    """
    own = case.contract.least
    if own is not None:
        least_bytes = Fraction(own(case))
        return Bound(min(1, math.ceil(least_bytes)), least_bytes)
    divided = all(set(case.axes) <= operand.placement.axes for operand in case.operands)
    if case.contract.name not in KNOWN or not divided or _stays(case):
        return NOTHING
    gathers = case.contract.name in ("all_gather", "all_gather_invariant")
    p = case.group_size
    bits = operand_bits(case, packed=True) * (p if gathers else 1)
    return lower_bound(case.contract.name, p, Fraction(bits, 8))


def _stays(case: Case) -> bool:
    """True for a permute in which every participant keeps its block, and a shift by a multiple of p."""
    if case.contract.name == "permute":
        return all(source == target for source, target in case.keywords["perm"])
    return case.contract.name == "ring_shift" and case.keywords["offset"] % case.participants == 0


def nothing_must_move(case: Case) -> bool:
    """True if every participant has all that it needs: p is 1, an operand is empty, or blocks are replicated or stay.

    A product with an empty operand is empty, or zeros.
    """
    alone, empty = case.group_size == 1, any(0 in operand.block for operand in case.operands)
    replicated = not any(set(case.axes) & operand.placement.axes for operand in case.operands)
    return alone or empty or _stays(case) or (case.contract.name in KNOWN and replicated)


def bytes_moved(collectives: Iterable[tuple[str, int, int]]) -> Fraction | None:
    """The bytes that pass a device in collectives of (kind, participants, operand bytes), each at its own bound.

    None if the traffic of one of them depends on data.
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


OUT = "out"


def sizes_of(case: Case, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """The values of names in a case: participants, also of a role, and bytes of the full vector and of blocks.

    `x` and `out` of a pytree are the sums over all leaves.

    Arguments:
        wanted: the names that need a value; None: all.
    """
    contract = case.contract
    along = set(case.axes).union(*(operand.placement.axes for operand in case.operands))
    blocks = []
    for operand in case.operands:
        dtype, replicated = operand.numpy_dtype, bool(along - operand.placement.axes)
        bits, wide = width(dtype), width(float32_accumulator(dtype))
        blocks.append(Block(_bytes(operand.block, dtype), operand.block, bits, wide, replicated=replicated))
    names = contract.call.operands if case.tree else contract.call.names(case)
    own: dict[str, Any] = {
        "p": case.group_size,
        "n": full_bytes(case),
        **dict(zip(names, [sum(blocks)] if case.tree else blocks, strict=True)),
        **{role: case.mesh.axis_size(as_axes(axes)) for role, axes in case.roles},
    }
    if wanted is None or OUT in wanted:
        own[OUT] = _results(case)
    own["axes"] = Block(case.participants, tuple(case.mesh.shape[axis] for axis in case.axes))
    options = {name: one for name, one in case.keywords.items() if isinstance(one, int | float)}
    named = {name: size(case) for name, size in contract.sizes.items() if wanted is None or name in wanted}
    return {**own, **{name: one for name, one in options.items() if name not in own}, **named}


def stated_values(terms: Terms, case: Case) -> Stated:
    """The values of terms in a case; for a tree, those of each leaf by itself."""
    leaves = [dataclasses.replace(case, operands=(o,), tree=False) for o in case.operands] if case.tree else [case]
    first, *others = (terms.stated(sizes_of(leaf, terms.names())) for leaf in leaves)
    for other in others:
        first = first.beside(other)
    return first


def _results(case: Case) -> int:
    """The block of the result, or the bytes of all of them."""
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    each = []
    for result in case.contract.oracle.value(case, zeros):
        block = result.shape[len(case.mesh.sizes) :]
        each.append(Block(_bytes(block, result.dtype), block, width(result.dtype)))
    return each[0] if len(each) == 1 else sum(each)


def _bytes(block: tuple[int, ...], dtype: np.dtype) -> int:
    return math.ceil(math.prod(block) * width(dtype) / 8)


@dataclass(frozen=True)
class Cost:
    """The communication of one program, as each of its devices sees it; of the kinds that occur.

    Bytes are those of the operands of all collectives of a kind together, on one device: what a ring of p - 1 permutes
    of a block sends is p - 1 times the block.
    """

    counts: Counter[str]  # how many collectives of each kind
    bytes: Counter[str]  # of their operands in all, by kind

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int, int]]) -> "Cost":
        """The cost of collectives of (kind, number, bytes of all); raises ValueError for a kind not in `KINDS`."""
        counts, sizes = Counter[str](), Counter[str]()
        for kind, number, size in sorted(parts):
            if kind not in KINDS:
                raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
            counts[kind] += number
            sizes[kind] += size
        return cls(+counts, sizes)

    def __str__(self) -> str:
        parts = [f"{kind}={count} ({self.bytes[kind]:,} bytes)" for kind, count in self.counts.items()]
        return ", ".join(parts) or "no communication"


@dataclass(frozen=True)
class Counted:
    """The communication of one device in one run of a program.

    Arguments:
        cost: counts and bytes by kind, in the types of the program.
        separate: the same, with every array of a combined collective counted separately.
        sent: the same, in the types that the compiler sends in their place.
        participants: (kind, participants of a group, bytes) of each collective, as often as it runs.
        rounds: the length of the longest chain of collectives that need one another; None if unknown.
        rewritten: whether it is compiled; a compiler may leave out collectives that move nothing.
        notes: explanations of the numbers for a reader.
    """

    cost: Cost
    separate: Cost
    sent: Cost
    participants: tuple[tuple[str, int, int], ...]
    rounds: int | None = None
    rewritten: bool = False
    notes: tuple[str, ...] = ()


class Unknown(Exception):
    """A count that is not known; the message says why."""


def count(prepared: Prepared, arrays: Sequence[np.ndarray]) -> Counted:
    """The communication of a program on these global arrays; raises Unknown if it is not known."""
    evidence = prepared.evidence(arrays)
    return of_compiled(evidence) if isinstance(evidence, str) else of_record(evidence)


def of_record(record: Record) -> Counted:
    """The mean communication of devices in an interpreted run; raises Unknown if it is not a whole number."""
    totals: dict[tuple[str, int, int], Fraction] = defaultdict(Fraction)
    for c in record.collectives:
        totals[c.kind, c.participants, c.operand_bytes] += Fraction(c.devices, c.mesh.size)
    if any(share.denominator != 1 for share in totals.values()):
        raise Unknown("devices execute different collectives")
    cost = Cost.of([(kind, int(share), int(share) * size) for (kind, _, size), share in totals.items()])
    participants = tuple(what for what, share in totals.items() for _ in range(int(share)))
    return Counted(cost, cost, cost, participants, record.rounds)


def of_compiled(text: str) -> Counted:
    """The communication in a compiled program's text.

    Raises HloError if it cannot be read, and Unknown if a loop's trips are not known, or if the branches of a
    conditional do not send the same.
    """
    found = collectives(text)
    for one in found:
        if one.unknown:
            raise Unknown(one.unknown)
    promoted = sum(c.operand_bytes != c.own_bytes for c in found)
    notes = []
    if promoted:
        wide, own = sum(c.operand_bytes for c in found), sum(c.own_bytes for c in found)
        notes.append(f"{promoted} of {len(found)} collectives are sent in a wider type: {wide:,} for {own:,} bytes")
    run = [c for c in found if c.times]
    return Counted(
        cost=Cost.of([(c.kind, c.times, c.times * c.own_bytes) for c in run]),
        separate=Cost.of([(c.kind, c.times * c.operands, c.times * c.own_bytes) for c in run]),
        sent=Cost.of([(c.kind, c.times, c.times * c.operand_bytes) for c in run]),
        participants=tuple((c.kind, _participants(c), c.operand_bytes) for c in run for _ in range(c.times)),
        rewritten=True,
        notes=tuple(notes),
    )


def _participants(collective: CompiledCollective) -> int:
    if collective.pairs is not None:
        return len({device for pair in collective.pairs for device in pair})
    return max((len(group) for group in collective.groups or ()), default=0)


def describe_cost(cost: Cost) -> str:
    """`4 permutes of 64 bytes in all`."""
    parts = []
    for kind, count in cost.counts.items():
        several = ("s", " in all") if count != 1 else ("", "")
        parts.append(f"{count} {kind}{several[0]} of {cost.bytes[kind]:,} bytes{several[1]}")
    return " and ".join(parts) or "no communication"


def describe_stated(stated: Stated, said: Expectation, names: Collection[str], sizes: Mapping[str, Any]) -> str:
    """`permute=3, bytes=48 (from permute=p-1,bytes=(p-1)*n/p with p=4, n=64)`; p and n always, others if named."""
    parts = [f"{kind}={number(count)}" for kind, count in stated.counts.items() if count]
    if stated.bytes is None:
        parts += [f"{kind}{OF_KIND}={number(size)}" for kind, size in stated.sizes.items() if size]
    else:
        parts += [f"bytes={number(stated.bytes)}"]
    parts += [] if stated.steps is None else [f"steps={number(stated.steps)}"]
    text = ", ".join(parts) or "none"
    shown = {name: size for name, size in sizes.items() if name in ("p", "n") or name in names}
    return f"{text} (from {said} with {', '.join(f'{name}={number(Fraction(size))}' for name, size in shown.items())})"


def number(value: Fraction) -> str:
    """A whole number as such, another one as a decimal."""
    return f"{value.numerator}" if value.denominator == 1 else f"{float(value):g}"
