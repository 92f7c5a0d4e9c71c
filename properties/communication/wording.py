"""What is sent, in words."""

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

from shardproof.oracles.communication import Cost
from shardproof.properties.programs.expectation import OF_KIND, Expectation, Stated


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


def worded_stated(stated: Stated, said: object, names: Collection[str], sizes: Mapping[str, Any]) -> str:
    """`permute=3, bytes=48 (from permute=p-1,bytes=(p-1)*n/p with p=4, n=64)`; p and n always, others if named.

    Arguments:
        stated: what is said, in numbers.
        said: the expectation; anything else is a formula, which no words are known of.
        names: the names that it speaks of.
        sizes: what they stand for.
    """
    parts = [f"{kind}={number(count)}" for kind, count in stated.counts.items() if count]
    if stated.bytes is None:
        parts += [f"{kind}{OF_KIND}={number(size)}" for kind, size in stated.sizes.items() if size]
    else:
        parts += [f"bytes={number(stated.bytes)}"]
    parts += [] if stated.steps is None else [f"steps={number(stated.steps)}"]
    text = ", ".join(parts) or "none"
    if not isinstance(said, Expectation):
        return f"{text} (formula)"
    told = {name: size for name, size in sizes.items() if name in ("p", "n") or name in names}
    return f"{text} (from {said} with {', '.join(f'{name}={number(Fraction(size))}' for name, size in told.items())})"


def number(value: Fraction) -> str:
    """A whole number as such, another one as a decimal."""
    return f"{value.numerator}" if value.denominator == 1 else f"{float(value):g}"
