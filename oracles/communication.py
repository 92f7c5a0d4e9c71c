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
        """The cost with these counts and bytes by kind.

        Raises:
            ValueError: for a kind that is none of `KINDS`.
        """
        unknown = (set(counts) | set(operand_bytes)) - set(KINDS)
        if unknown:
            raise ValueError(f"kind={sorted(unknown)[0]!r}: expected one of {', '.join(KINDS)}")
        some = {kind: count for kind, count in counts.items() if count}
        return cls(tuple(sorted(some.items())), tuple(sorted((k, operand_bytes.get(k, 0)) for k in some)), steps)

    @classmethod
    def permutes(cls, count: int, operand_bytes: int, steps: int | None = None) -> "Cost":
        """The cost of an algorithm that is built of permutes alone; `steps` is their number unless some overlap."""
        return cls.of({"permute": count}, {"permute": operand_bytes}, count if steps is None else steps)

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


NOTHING = Cost.permutes(0, 0)
"""No collective, in no step."""


def lower_bound(contract: str, p: int, n: int | Fraction, *, ports: int = 1) -> tuple[int, Fraction]:
    """The fewest steps, and the fewest bytes that a device must send, of a collective of n bytes.

    Steps: after k steps at most (ports + 1)**k participants can know of one participant's data, so whatever
    makes every participant depend on every other takes ceil(log p) steps to that base. Bytes: a
    participant must get what it lacks, (p-1)n/p; an all-reduce must besides hand in its share of the terms,
    as much again; of a broadcast, all n (Chan et al. 2007, section 3; for more than one port, Bruck et
    al. 1997, section 2). Permutes may be identities and are bounded by nothing.

    It holds for algorithms out of permutes; what a built-in collective sends is not what its operand holds.

    Arguments:
        contract: the operation's name.
        p: the number of participants.
        n: the bytes of the full vector.
        ports: how many participants a participant can send to in one step.

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
    return next(k for k in range(p) if (ports + 1) ** k >= p), sent


OTHER_KINDS = {"all_gather_invariant": "all_gather", "ring_shift": "permute", "broadcast": "all_gather"}
"""Contracts that are served by a collective of another kind."""
