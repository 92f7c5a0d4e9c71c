"""Relations between calls of a mixture of experts: of each, what one call's results say of another's.

They need no reference. A relation is data: its name, the pairs of calls that it draws for an implementation, and what
is wrong with their results. Of which policy it holds, and why, is said where its pairs are drawn.
"""

from shardproof.properties.engines import Engine
from shardproof.properties.laws.relations.call import Runs, run, run_backward
from shardproof.properties.laws.relations.gradients import (
    learned,
    spread,
    with_a_token_of_nan,
    with_idle_experts,
)
from shardproof.properties.laws.relations.padding import counted, padded
from shardproof.properties.laws.relations.relation import Differs, Finding, Pair, Relation, different_rows
from shardproof.properties.laws.relations.tokens import elsewhere, lost, permuted, relabelled, with_more_room
from shardproof.properties.programs.implementations import Implementation

__all__ = ["RELATIONS", "Differs", "Relation"]


def _results(implementation: Implementation, engine: Engine, pair: Pair) -> Runs:
    return run(implementation, engine, pair.calls)


def _gradients(implementation: Implementation, engine: Engine, pair: Pair) -> Runs:
    return run_backward(implementation, engine, pair.calls, pair.details["cotangents"])


def _same(pair: Pair, runs: Runs) -> Finding | None:
    """The first token whose result is another."""
    return different_rows(pair, [run[0] for run in runs])


RELATIONS = (
    Relation("permuted tokens", "permuted tokens have permuted results", permuted, _same, _results),
    Relation("relabelled experts", "experts under other numbers give the same results", relabelled, _same, _results),
    Relation("another mesh", "results do not depend on the mesh", elsewhere, _same, _results),
    Relation("more room", "what is kept with less room is kept with more", with_more_room, lost, _results),
    Relation("padding", "rows of padding change no token's result", padded, counted, _results),
    Relation("idle experts", "experts without tokens have gradients of zeros", with_idle_experts, learned, _gradients),
    Relation(
        "a token of NaN",
        "a token of NaN is in no other token's gradient, and in no expert's that does not keep it",
        with_a_token_of_nan,
        spread,
        _gradients,
    ),
)
