"""What dispatches send where it depends on routing: the formulas by counts of kept pairs, of drawn and worst cases."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.oracles.communication import NOTHING, built_in
from shardproof.oracles.moe import costs
from shardproof.oracles.moe.dropping import Dispatch, dispatch
from shardproof.oracles.moe.routing import route
from shardproof.properties.communication.counted import of_record
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.simulate.record import Record

P_, TOKENS, EXPERTS, OUTPUTS, TOP_K = 4, 6, 8, 3, 2
ROUTINGS = ("even", "drawn", "one receiver")
ROOMS = ((None, "position"), (2, "probability"), (1, "sender"), (3, "choice"))


def logits(routing: str) -> np.ndarray:
    """Logits of all tokens, which are the tokens: spread, any, or the highest for two experts of one participant."""
    every = np.random.default_rng(3).permutation(P_ * TOKENS * EXPERTS).reshape(-1, EXPERTS) / 50
    if routing == "even":
        first = TOP_K * np.arange(len(every)) % EXPERTS
        for choice in range(TOP_K):
            every[np.arange(len(every)), first + choice] += 10 - choice
    if routing == "one receiver":
        every[:, 4:6] += 10
    return every.astype(np.float32)


def recorded(function: Any, routing: str, *, gradient: bool = False, **options: Any) -> Record:
    """What was sent on a mesh of four."""
    mesh = AbstractMesh((P_,), ("ep",), axis_types=(AxisType.Auto,))
    specs = (P("ep"), P(), P("ep"))
    layer = jax.shard_map(lambda *xs: function(*xs, "ep", **options), mesh=mesh, in_specs=specs, out_specs=P("ep"))

    def derived(*xs: Any) -> Any:
        result, pull = jax.vjp(layer, *xs)
        return pull(jax.numpy.ones_like(result))

    arrays = [logits(routing), np.eye(EXPERTS, dtype=np.float32), np.ones((EXPERTS, EXPERTS, OUTPUTS), np.float32)]
    shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
    program = prepare(derived if gradient else layer, *shapes).live()
    record: Record = program.run_recorded(*arrays)[1]
    return record


def right_one(routing: str, capacity: int | None, policy: str) -> Dispatch:
    """What becomes of all pairs."""
    return dispatch(route(logits(routing).astype(float), TOP_K), P_, EXPERTS, capacity=capacity, policy=policy)


def sizes(capacity: int | None, policy: str) -> costs.Sizes:
    """Those of the layer."""
    return costs.Sizes(P_, TOKENS, EXPERTS, OUTPUTS, EXPERTS // P_, TOP_K, capacity, policy, bits=32, wide=32)


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(("capacity", "policy"), ROOMS)
def test_rounds_of_chunks(capacity: int | None, policy: str, gradient: bool) -> None:
    """A loop takes as many rounds as the longest queue of any pair has chunks, forward and back."""
    for routing, chunk in itertools.product(ROUTINGS, (None, 1, 5)):
        record = recorded(
            moe.chunked_moe, routing, gradient=gradient, top_k=TOP_K, capacity=capacity, policy=policy, chunk=chunk
        )
        of = sizes(capacity, policy)
        size = costs.even_share(of) if chunk is None else chunk
        rounds = costs.rounds_of(right_one(routing, capacity, policy).kept, size)
        router = built_in("all_reduce", EXPERTS * EXPERTS, bits=32) if gradient else NOTHING
        expected = costs.chunked_cost(of, size, rounds, gradient) + router
        counted = of_record(record).cost
        assert counted is not None
        assert (counted.counts, counted.operand_bytes) == (expected.counts, expected.operand_bytes), (routing, chunk)
        assert rounds <= costs.most_rounds(of, size)
        if routing == "one receiver" and capacity is None:
            assert rounds == costs.most_rounds(of, size)


@pytest.mark.parametrize(("capacity", "policy"), ROOMS)
def test_what_is_ragged_travels_once(capacity: int | None, policy: str) -> None:
    """Of a ragged exchange just the kept pairs leave their participant, there and back, whatever the operands hold."""
    for routing in ROUTINGS:
        record = recorded(moe.ragged_moe, routing, top_k=TOP_K, capacity=capacity, policy=policy)
        ways = [c for c in record.collectives if c.kind == "ragged_all_to_all"]
        left = [sum(size for source, target, size in c.traffic if source != target) for c in ways]
        leaving = sum(pair.sender != pair.receiver for pair in right_one(routing, capacity, policy).kept)
        assert sum(left) == costs.kept_bytes(leaving, features=EXPERTS, outputs=OUTPUTS), routing
        assert max(c.operand_bytes for c in ways) <= costs.ragged_cost(sizes(capacity, policy)).total_bytes
