"""The communication of one program, counted three ways: by formula, by the interpreter, by the compiler."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from shardproof.oracles.communication import Cost
from shardproof.properties.communication.hlo import Branch, CompiledCollective, Loop, collectives
from shardproof.properties.engines import Prepared
from shardproof.properties.engines.simulate.record import Record
from shardproof.properties.programs.expectation import OF_KIND, Expectation, Stated


@dataclass(frozen=True)
class Counted:
    """What one device sends in one run of a program.

    Arguments:
        cost: counts and bytes by kind, of the types that the program asked for; None where it is not known.
        unknown: why it is not.
        separate: the same, every array of a combined collective counted by itself.
        sent: the same, with the bytes of the types that the compiler sends in their place.
        participants: (kind, participants of a group, bytes) of each collective, as often as it runs.
        rounds: how many must at least follow one another; None where the count does not tell.
        rewritten: whether a compiler was at work: one may leave out what moves nothing.
        notes: what a reader should know of the numbers.
    """

    cost: Cost | None
    unknown: str = ""
    separate: Cost | None = None
    sent: Cost | None = None
    participants: tuple[tuple[str, int, int], ...] = ()
    rounds: int | None = None
    rewritten: bool = False
    notes: tuple[str, ...] = ()


class Unknown(Exception):
    """A count that cannot be told; the message says why."""


def count(prepared: Prepared, arrays: Sequence[np.ndarray]) -> Counted:
    """What a program sends, forward or whatever it computes, on these global arrays."""
    evidence = prepared.evidence(arrays)
    return of_compiled(evidence) if isinstance(evidence, str) else of_record(evidence)


def of_record(record: Record) -> Counted:
    """What the interpreter saw executed.

    Where devices go separate ways, it is what one does in the mean; unknown if that is no whole number.
    """
    shares = [(c, Fraction(c.devices * c.count, c.mesh.size)) for c in record.collectives]
    totals: dict[tuple[str, int, int], Fraction] = {}
    for c, share in shares:
        what = (c.kind, c.participants, c.operand_bytes)
        totals[what] = totals.get(what, Fraction(0)) + share
    if any(share.denominator != 1 for share in totals.values()):
        return Counted(None, "devices execute different collectives")
    cost = _cost([(kind, int(share), int(share) * size) for (kind, _, size), share in totals.items()])
    participants = tuple(what for what, share in totals.items() for _ in range(int(share)))
    return Counted(cost, separate=cost, sent=cost, participants=participants, rounds=record.rounds)


def of_compiled(text: str) -> Counted:
    """What a compiled program's text says that it sends.

    Raises:
        HloError: if the text cannot be read.
    """
    found = collectives(text)
    promoted = sum(c.operand_bytes != c.own_bytes for c in found)
    notes = []
    if promoted:
        wide, own = sum(c.operand_bytes for c in found), sum(c.own_bytes for c in found)
        notes.append(f"{promoted} of {len(found)} collectives are sent in a wider type: {wide:,} for {own:,} bytes")
    try:
        runs = _runs([(c, c.path) for c in found])
    except Unknown as error:
        return Counted(None, str(error), rewritten=True, notes=tuple(notes))
    ordered = [(c, times) for c, times in runs.items() if times]
    return Counted(
        cost=_cost([(c.kind, times, times * c.own_bytes) for c, times in ordered]),
        separate=_cost([(c.kind, times * c.operands, times * c.own_bytes) for c, times in ordered]),
        sent=_cost([(c.kind, times, times * c.operand_bytes) for c, times in ordered]),
        participants=tuple((c.kind, _participants(c), c.operand_bytes) for c, times in ordered for _ in range(times)),
        rewritten=True,
        notes=tuple(notes),
    )


def _cost(parts: Sequence[tuple[str, int, int]]) -> Cost:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, count, size in parts:
        counts[kind] += count
        sizes[kind] += size
    return Cost.of(counts, sizes)


def _participants(collective: CompiledCollective) -> int:
    if collective.pairs is not None:
        return len({device for pair in collective.pairs for device in pair})
    return max((len(group) for group in collective.groups or ()), default=0)


def _runs(
    placed: Sequence[tuple[CompiledCollective, tuple[Loop | Branch, ...]]],
) -> Counter[CompiledCollective]:
    """How often each collective runs, given what is left of its path.

    Raises:
        Unknown: if a loop does not say how often, or the branches of a conditional do not cost the same.
    """
    runs: Counter[CompiledCollective] = Counter()
    inside: dict[Loop | Branch, list[tuple[CompiledCollective, tuple[Loop | Branch, ...]]]] = {}
    for collective, path in placed:
        if path:
            inside.setdefault(path[0], []).append((collective, path[1:]))
        else:
            runs[collective] += 1
    for step, contents in inside.items():
        within = _runs(contents)
        if isinstance(step, Loop):
            if step.trips is None:
                raise Unknown(f"the compiled text does not say how often the loop {step.name} runs")
            for collective, times in within.items():
                runs[collective] += times * step.trips
            continue
        costs = [_branch(inside.get(Branch(step.conditional, index, step.of), [])) for index in range(step.of)]
        if any(cost != costs[0] for cost in costs):
            raise Unknown(f"the branches of {step.conditional} send different things")
        if step.index == 0:
            runs += within
    return runs


def _branch(contents: Sequence[tuple[CompiledCollective, tuple[Loop | Branch, ...]]]) -> Cost:
    return _cost([(c.kind, times, times * c.own_bytes) for c, times in _runs(contents).items()])


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
