"""What a collective costs: how many operations of which kind, over how many steps, with how many bytes.

Bytes are those of the operands of all collectives of a kind together, on one device: what a ring of
p - 1 permutes of a block sends is p - 1 times the block. Formulas are in p, the number of members, and
n, the bytes of the *full vector*: an all-gather's result; a reduce-scatter's, an all-reduce's, an
all-to-all's, a broadcast's operand. Each states its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("permute", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "ragged_all_to_all")


@dataclass(frozen=True)
class Cost:
    """The communication of one program, as each of its devices sees it.

    Arguments:
        counts: how many collectives of each kind; kinds that do not occur are left out.
        operand_bytes: the bytes of their operands in all, by kind.
        steps: how many of them must follow one another; None where one operation does all, in steps of its own.
    """

    counts: tuple[tuple[str, int], ...] = ()
    operand_bytes: tuple[tuple[str, int], ...] = ()
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
        """How many collectives of a kind there are."""
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
