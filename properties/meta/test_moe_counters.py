"""Who is kept, by every policy and every dispatch, and what is counted of it: all by the oracle."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.oracles.moe.counters import count_drops
from shardproof.oracles.moe.dropping import POLICIES, Dispatch, dispatch
from shardproof.oracles.moe.routing import Routing, route
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.simulate import simulate

SIZES = {"dp": 2, "ep": 2}
EXPERTS, TOKENS, TOP_K = 8, 16, 3
AXES = (("ep",), ("ep", "dp"))
LIMITS = (*itertools.product((None, 0, 1, 2, 16), (None, 1)),)
"""Capacities, and those of each sender."""

DISPATCHES = {name: claim.function for name, claim in CONTRACTS["moe_layer"].implementations.items()}
Told = tuple[np.ndarray, moe.Counters]


def mesh() -> AbstractMesh:
    """Two by two."""
    return AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


def routed(over: str = "chosen") -> tuple[np.ndarray, Routing]:
    """Logits of 16 tokens for 8 experts, of which two are often the highest, and what is chosen."""
    logits = np.random.default_rng(1).integers(0, 4, (TOKENS, EXPERTS)).astype(np.float32)
    logits[:, :2] += 2
    return logits, route(logits.astype(np.float64), TOP_K, over=over)


def right_one(axes: tuple[str, ...], capacity: int | None, policy: str, each: int | None) -> Dispatch:
    """What becomes of all pairs, if participants are those over `axes`."""
    places = int(np.prod([SIZES[name] for name in axes]))
    _, routing = routed()
    return dispatch(routing, places, EXPERTS, capacity=capacity, policy=policy, capacity_per_sender=each)


def told(axes: tuple[str, ...], policy: str) -> Iterator[Told]:
    """What is said of every one of `LIMITS`, on a mesh where other axes have copies."""

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
    for (capacity, each), (kept, counters) in zip(LIMITS, told(axes, policy), strict=True):
        right = right_one(axes, capacity, policy, each)
        assert {(int(t), int(c)) for t, c in zip(*np.nonzero(kept), strict=True)} == {
            (pair.token, pair.choice) for pair in right.kept
        }, (capacity, each)
        assert not mistaken(counters, right), (capacity, each)


PLANTED: dict[str, Callable[[Any], moe.Counters]] = {
    "sent are those that are kept": lambda c: replace(c, sent=c.kept),
    "receivers drop what senders drop": lambda c: replace(c, dropped_by_receiver=c.chosen - c.kept),
    "senders drop what is not kept": lambda c: replace(c, dropped_by_sender=c.chosen - c.kept),
    "chosen are those that are sent": lambda c: replace(c, chosen=c.sent),
    "kept are those that are sent": lambda c: replace(c, kept=c.sent),
    "drops are counted by participant": lambda c: replace(
        c, dropped_by_receiver=np.repeat(c.dropped_by_receiver.reshape(2, -1).sum(1), EXPERTS // 2)
    ),
    "padding is that of all": lambda c: replace(c, padded=np.full_like(c.padded, c.padded.sum())),
    "what is dropped is padding": lambda c: replace(
        c, padded=c.padded + c.dropped_by_receiver.reshape(len(c.padded), -1).sum(1)
    ),
}
"""Planted bugs of the counters."""


@pytest.fixture(scope="module")
def numbers() -> list[tuple[moe.Counters, Dispatch]]:
    """Right counters of one policy, and the oracle's."""
    return [
        (counters, right_one(("ep",), capacity, "choice", each))
        for (capacity, each), (_, counters) in zip(LIMITS, told(("ep",), "choice"), strict=True)
    ]


@pytest.mark.parametrize("bug", PLANTED)
def test_wrong_counters_are_told(bug: str, numbers: list[tuple[moe.Counters, Dispatch]]) -> None:
    """For some capacity each of them is another number than the oracle's."""
    assert any(mistaken(PLANTED[bug](counters), right) for counters, right in numbers)


class Setting(NamedTuple):
    """Capacities, and over which logits the gates are taken."""

    capacity: int | None
    capacity_per_sender: int | None
    over: str


SETTINGS = (Setting(2, None, "chosen"), Setting(None, 1, "all"), Setting(3, 1, "chosen"))


@pytest.mark.parametrize("name", DISPATCHES)
def test_every_dispatch_keeps_the_same(name: str) -> None:
    """Of experts that say who they are, a token gets the gates of those that keep it, by every policy."""
    experts = np.zeros((EXPERTS, EXPERTS + 1, EXPERTS), np.float32)
    experts[:, EXPERTS] = np.eye(EXPERTS)  # of a token's last feature, which is 1, each makes its own number
    router = np.eye(EXPERTS + 1, EXPERTS, dtype=np.float32)
    specs = (P("ep"), P(), P("ep"))
    logits, _ = routed()
    tokens = np.concatenate([logits, np.ones((TOKENS, 1), np.float32)], axis=1)

    def all_settings(*xs: Any) -> list[Any]:
        every = itertools.product(POLICIES, SETTINGS)
        return [DISPATCHES[name](*xs, "ep", top_k=TOP_K, policy=p, **settings._asdict()) for p, settings in every]

    mapped = jax.shard_map(all_settings, mesh=mesh(), in_specs=specs, out_specs=P("ep"))
    found = simulate(mapped, tokens, router, experts)
    for (policy, (capacity, each, over)), result in zip(itertools.product(POLICIES, SETTINGS), found, strict=True):
        _, routing = routed(over)
        options: dict[str, Any] = {"capacity": capacity, "policy": policy, "capacity_per_sender": each}
        wanted = np.zeros((TOKENS, EXPERTS))
        for pair in dispatch(routing, SIZES["ep"], EXPERTS, **options).kept:
            wanted[pair.token, pair.expert] = pair.gate
        np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-5, atol=0, err_msg=f"{policy}, {options}")
