"""The cost of collectives: how many operations of which kind, over how many steps, with how many bytes.

Bytes are those of the operands of all collectives of a kind together, on one device: what a ring of
p - 1 permutes of a block sends is p - 1 times the block. Bounds are in p, the number of participants, and
n, the bytes of the *full vector*: an all-gather's result; a reduce-scatter's, an all-reduce's, an
all-to-all's, a broadcast's operand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

KINDS = ("permute", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "ragged_all_to_all")


@dataclass(frozen=True)
class Cost:
    """The communication of one program, as each of its devices sees it."""

    counts: tuple[tuple[str, int], ...] = ()  # how many collectives of each kind; kinds that do not occur are left out
    operand_bytes: tuple[tuple[str, int], ...] = ()  # the bytes of their operands in all, by kind
    # how many of them must follow one another; None where one operation does all, in steps of its own
    steps: int | None = None

    @classmethod
    def of(cls, counts: Mapping[str, int], operand_bytes: Mapping[str, int], steps: int | None = None) -> "Cost":
        """The cost with these counts and bytes by kind; ValueError for a kind that is none of `KINDS`."""
        unknown = (set(counts) | set(operand_bytes)) - set(KINDS)
        if unknown:
            raise ValueError(f"kind={sorted(unknown)[0]!r}: expected one of {', '.join(KINDS)}")
        some = {kind: count for kind, count in counts.items() if count}
        return cls(tuple(sorted(some.items())), tuple(sorted((k, operand_bytes.get(k, 0)) for k in some)), steps)

    def count(self, kind: str) -> int:
        """The number of collectives of a kind."""
        return dict(self.counts).get(kind, 0)

    def bytes_in(self, kind: str) -> int:
        """The bytes of the operands of a kind."""
        return dict(self.operand_bytes).get(kind, 0)

    @property
    def total_bytes(self) -> int:
        """The bytes of all operands."""
        return sum(size for _, size in self.operand_bytes)

    def __add__(self, other: "Cost") -> "Cost":
        """One after the other."""
        kinds = {*dict(self.counts), *dict(other.counts)}
        steps = None if self.steps is None or other.steps is None else self.steps + other.steps
        return Cost.of(
            {kind: self.count(kind) + other.count(kind) for kind in kinds},
            {kind: self.bytes_in(kind) + other.bytes_in(kind) for kind in kinds},
            steps,
        )

    def __str__(self) -> str:
        parts = [f"{kind}={count} ({self.bytes_in(kind):,} bytes)" for kind, count in self.counts]
        return ", ".join(parts) or "no communication"


NOTHING = Cost(steps=0)
"""No collective, in no step."""


def lower_bound(contract: str, p: int, n: int | Fraction) -> tuple[int, Fraction]:
    """The fewest steps, and the fewest bytes that a device must send, for p participants and a full vector of n bytes.

    Steps: after k steps at most 2**k participants can depend on one participant's data, so a collective takes
    ceil(log2 p). Bytes: a participant must get what it lacks, (p-1)n/p; in an all-reduce it must also send its share of
    the terms, as much again; in a broadcast, all n (Chan et al. 2007, section 3). Permutes may be identities and are
    bounded by nothing. Bounds are of algorithms out of permutes: a built-in collective does not send its operand.

    Raises:
        ValueError: if there is no such contract.
    """
    kind = OTHER_KINDS.get(contract, contract)
    if kind not in KINDS:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(sorted({*KINDS, *OTHER_KINDS}))}")
    if kind == "permute" or p == 1 or n == 0:
        return 0, Fraction(0)
    times = 2 if contract == "all_reduce" else 1
    sent = Fraction(n) if contract == "broadcast" else times * Fraction(p - 1, p) * n
    return (p - 1).bit_length(), sent


OTHER_KINDS = {"all_gather_invariant": "all_gather", "ring_shift": "permute", "broadcast": "all_gather"}
"""Contracts that are served by a collective of another kind."""
