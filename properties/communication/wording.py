"""What is sent, in words."""

from collections.abc import Mapping
from fractions import Fraction

from shardproof.oracles.communication import Cost
from shardproof.properties.programs.expectation import Expectation, Terms


def worded(cost: Cost, *, beside: Cost | None = None) -> str:
    """`4 permutes of 64 bytes in all`; after such a cost of the same kind, `beside`: `3 of 48`."""
    kinds = [kind for kind, _ in cost.counts]
    if not kinds:
        return "no communication" if beside is None else "none"
    if beside is not None and kinds == [kind for kind, _ in beside.counts] and len(kinds) == 1:
        return f"{cost.count(kinds[0])} of {cost.bytes_in(kinds[0]):,}"
    return " and ".join(
        f"{cost.count(kind)} {kind}{'s' * (cost.count(kind) != 1)} of {cost.bytes_in(kind):,} bytes"
        + " in all" * (cost.count(kind) != 1)
        for kind in kinds
    )


def worded_expectation(expectation: Expectation, terms: Terms, sizes: Mapping[str, int]) -> str:
    """`permute=3, bytes=48 (from permute=p-1,bytes=(p-1)*n/p with p=4, n=64)`; p and n always, others if named."""
    counts, size, steps = terms.counts(sizes), terms.bytes(sizes), terms.steps(sizes)
    told = {name: sizes[name] for name in sizes if name in ("p", "n") or name in terms.names()}
    parts = [f"{kind}={number(count)}" for kind, count in counts.items() if count]
    parts += [] if size is None else [f"bytes={number(size)}"]
    parts += [] if steps is None else [f"steps={number(steps)}"]
    return f"{', '.join(parts) or 'none'} (from {expectation} with {', '.join(f'{k}={v}' for k, v in told.items())})"


def number(value: Fraction) -> str:
    """A whole number as such, another one as a decimal."""
    return f"{value.numerator}" if value.denominator == 1 else f"{float(value):g}"
