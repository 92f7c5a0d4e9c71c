"""Which pairs are kept under every policy, and their counters, by the oracle."""

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.oracles.moe.dropping import POLICIES, Dispatch, count_drops, dispatch
from shardproof.oracles.moe.routing import Routing, route
from shardproof.properties.engines.simulate import simulate

SIZES = {"dp": 2, "ep": 2}
EXPERTS, TOKENS, TOP_K = 8, 16, 3
AXES = (("ep",), ("ep", "dp"))
LIMITS = (*itertools.product((None, 0, 1, 2, 16), (None, 1)),)
"""Capacities, and those of each sender."""

Counted = tuple[np.ndarray, moe.Counters]


def mesh() -> AbstractMesh:
    """Two by two."""
    return AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


def routed(over: str = "chosen") -> tuple[np.ndarray, Routing]:
    """Logits of 16 tokens for 8 experts, of which two are often the highest, and what is chosen."""
    logits = np.random.default_rng(1).integers(0, 4, (TOKENS, EXPERTS)).astype(np.float32)
    logits[:, :2] += 2
    return logits, route(logits.astype(np.float64), TOP_K, over=over)


def right_one(axes: tuple[str, ...], capacity: int | None, policy: str, each: int | None) -> Dispatch:
    """The counts of all pairs, if participants are those over `axes`."""
    places = int(np.prod([SIZES[name] for name in axes]))
    _, routing = routed()
    return dispatch(routing, places, EXPERTS, capacity=capacity, policy=policy, capacity_per_sender=each)


def text(axes: tuple[str, ...], policy: str) -> Iterator[Counted]:
    """The kept pairs and the counts under each of `LIMITS`, on a mesh where other axes have copies."""

    def all_limits(logits: Any) -> list[Any]:
        routing = moe.route(logits, jnp.eye(EXPERTS), TOP_K)
        pairs = routing.experts, routing.gates, EXPERTS
        rooms = [moe.Room(capacity, policy, each) for capacity, each in LIMITS]
        return [(moe.kept(*pairs, room, axes), moe.count_drops(*pairs, room, axes)) for room in rooms]

    mapped = jax.shard_map(all_limits, mesh=mesh(), in_specs=P(axes), out_specs=[(P(axes), P())] * len(LIMITS))
    for kept, counters in simulate(mapped, routed()[0]):
        yield np.asarray(kept), jax.tree.map(np.asarray, counters)


def mistaken(counters: moe.Counters, right: Dispatch) -> list[str]:
    """The counters that are not those of the oracle."""
    exact = count_drops(right, EXPERTS)
    names = [field.name for field in fields(moe.Counters)]
    return [n for n in names if np.asarray(getattr(counters, n)).tolist() != getattr(exact, n).tolist()]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_who_is_kept_is_counted(axes: tuple[str, ...], policy: str) -> None:
    """Kept pairs, and all counters, are those of the oracle, for every capacity of experts and of senders."""
    for (capacity, each), (kept, counters) in zip(LIMITS, text(axes, policy), strict=True):
        right = right_one(axes, capacity, policy, each)
        assert {(int(t), int(c)) for t, c in zip(*np.nonzero(kept), strict=True)} == {
            (pair.token, pair.choice) for pair in right.kept
        }, (capacity, each)
        assert not mistaken(counters, right), (capacity, each)
