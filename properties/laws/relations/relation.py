"""What a relation is: two calls of which one's results say the other's; and how it says that they do not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.relations.call import Call, Runs
from shardproof.properties.programs.implementations import Implementation


@dataclass(frozen=True)
class Finding:
    """The first thing that is not as a relation says.

    Arguments:
        what: what is wrong, in a sentence that says how many are.
        shown: what was seen, by what it is.
    """

    what: str
    shown: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Pair:
    """Two calls of a layer, or one, and what holds of their results.

    Arguments:
        calls: the calls.
        change: what the second has otherwise, in words.
        rows: of each call, the tokens that are compared, which correspond in this order.
        bound: how far a result of the first call may be off the second's: `[N, F]`, by the tokens of the first.
        details: what else a relation has to know.
    """

    calls: tuple[Call, ...]
    change: str
    rows: tuple[np.ndarray, np.ndarray]
    bound: np.ndarray
    details: dict[str, np.ndarray] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.calls[0]}; {self.change}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints of it: no numbers."""
        printer.text(str(self))


class Differs(AssertionError):
    """A relation does not hold of a layer; the message names all that it takes to see it."""


Finder = Callable[[Pair, Runs], Finding | None]


@dataclass(frozen=True)
class Relation:
    """A relation between calls of a layer.

    Arguments:
        name: its name.
        sentence: what holds.
        drawn: what is drawn for an implementation.
        finding: what is wrong with the results, if anything is.
        run: what runs the calls: results, or gradients as well.
    """

    name: str
    sentence: str
    drawn: Callable[[Implementation, Scope], st.SearchStrategy[Pair]]
    finding: Finder
    run: Callable[[Implementation, Engine, Pair], Runs]

    def pairs(self, implementation: Implementation, scope: Scope) -> st.SearchStrategy[Pair]:
        """The pairs for an implementation, none of which is made of parts of others (see `laws.drawing.unrelated`)."""
        single = st.lists(self.drawn(implementation, scope), min_size=1, max_size=1, unique_by=str)
        return single.map(lambda pairs: pairs[0])

    def check(self, implementation: Implementation, engine: Engine, pair: Pair) -> None:
        """The relation holds of a pair.

        Raises:
            Differs: if it does not.
        """
        found = self.finding(pair, self.run(implementation, engine, pair))
        if found is not None:
            raise Differs(_told(self, implementation, engine, pair, found))


def _told(relation: Relation, implementation: Implementation, engine: Engine, pair: Pair, found: Finding) -> str:
    width = max((len(name) for name, _ in found.shown), default=0)
    shown = [f"  {name + ':':{width + 1}} {value}" for name, value in found.shown]
    lines = [f"{implementation}: {relation.name}: {found.what}", "", *shown, *([""] if shown else [])]
    lines += [f"  expected: {relation.sentence}", f"  call: {pair.calls[0]}"]
    lines += [f"  {'other call' if len(pair.calls) > 1 else 'in it'}: {pair.change}"]
    return "\n".join([*lines, f"  engine: {engine.name}"])


def different_rows(pair: Pair, results: Sequence[np.ndarray]) -> Finding | None:
    """The first token whose results differ by more than their roundings."""
    first, second = pair.rows
    one, other = results[0][first].astype(np.float64), results[1][second].astype(np.float64)
    wrong = ~(np.abs(one - other) <= pair.bound[first]).all(axis=1)
    if not wrong.any():
        return None
    at = int(np.flatnonzero(wrong)[0])
    return Finding(
        f"token {first[at]} differs: {wrong.sum()} of {len(wrong)} do",
        (
            (f"token {first[at]}", numbers(one[at])),
            (f"in the other call, as token {second[at]}", numbers(other[at])),
            ("largest difference that roundings make", f"{pair.bound[first[at]].max():.1e}"),
        ),
    )


def numbers(values: np.ndarray) -> str:
    """A few numbers of a row, as text."""
    shown = " ".join(f"{float(v):.7g}" for v in np.ravel(values)[:12])
    return f"[{shown}{' …' if np.size(values) > 12 else ''}]"
