"""A published layer: a mixture of experts with token dropping, its batch over `dp`, its sequence over `ep`.

From "JAX Sharding and Parallel Computing": a softmax over the chosen logits, experts that are square matrices, and a
capacity of 1.2 times the even share, by which every *sender* drops what it has too many of for an expert, the highest
gates first. So an expert may get that many tokens from each of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import count_drops, dispatch
from shardproof.oracles.moe.layer import MoeLayer
from shardproof.oracles.moe.routing import route
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.suite.test_published_examples import place

SIZES = {"dp": 2, "ep": 4}
BATCH, SEQUENCE, HIDDEN, EXPERTS, TOP_K, FACTOR = 8, 16, 4, 16, 2, 1.2
SPECS = (P("dp", "ep", None), P(), P("ep"))
TOKENS = BATCH // SIZES["dp"] * SEQUENCE
"""Those of all participants of one group."""

DISPATCHES: dict[str, Callable[..., jax.Array]] = {
    "all_gather": moe.all_gather_moe,
    "all_to_all": moe.all_to_all_moe,
    "ragged": moe.ragged_moe,
    "ring": moe.ring_moe,
    "sorted": moe.sorted_moe,
}
NUMBERS = ("chosen", "sent", "dropped_by_sender", "dropped_by_receiver", "kept")
"""The drop counters."""

CLOSE = 2e-5
"""Of the largest number of a token, or of an expert."""


def room() -> int:
    """The most that each sender may send to an expert."""
    return moe.capacity_of(TOKENS, EXPERTS, TOP_K, FACTOR)


def layer(dispatch: Callable[..., jax.Array], mesh: Any) -> Callable[..., jax.Array]:
    """The layer on sequences `[batch, sequence, hidden]`."""

    def local(sequences: jax.Array, router: jax.Array, experts: jax.Array) -> jax.Array:
        tokens = sequences.reshape(-1, HIDDEN)
        settings = {"top_k": TOP_K, "policy": "probability", "capacity": None, "capacity_per_sender": room()}
        return dispatch(tokens, router, experts, "ep", **settings).reshape(sequences.shape)

    return jax.shard_map(local, mesh=mesh, in_specs=SPECS, out_specs=SPECS[0])


def arrays() -> list[np.ndarray]:
    """Sequences, a router, experts, and cotangents; two experts are everyone's favourites, and logits are exact."""
    rng = np.random.default_rng(5)
    sequences = rng.integers(-2, 3, (BATCH, SEQUENCE, HIDDEN)).astype(np.float32)
    sequences[..., 0] = 1
    router = rng.integers(0, 2, (HIDDEN, EXPERTS)).astype(np.float32)
    router[0, :2] += 4
    experts = rng.integers(-3, 4, (EXPERTS, HIDDEN, HIDDEN)).astype(np.float32)
    return [sequences, router, experts, rng.normal(size=sequences.shape).astype(np.float32)]


def blocks(sequences: np.ndarray) -> np.ndarray:
    """Blocks `[dp, ep, tokens, hidden]` of sequences."""
    dp, ep = SIZES.values()
    cut = sequences.reshape(dp, BATCH // dp, ep, SEQUENCE // ep, HIDDEN)
    return cut.transpose(0, 2, 1, 3, 4).reshape(dp, ep, -1, HIDDEN).astype(np.float64)


def unblocked(held: np.ndarray) -> np.ndarray:
    """The inverse of `blocks`."""
    dp, ep = SIZES.values()
    cut = held.reshape(dp, ep, BATCH // dp, SEQUENCE // ep, HIDDEN)
    return cut.transpose(0, 2, 1, 3, 4).reshape(BATCH, SEQUENCE, HIDDEN)


def expected() -> list[np.ndarray]:
    """The result, and the gradients of sequences, router and experts, by the oracle."""
    sequences, router, experts, ct = arrays()
    dp, ep = SIZES.values()
    mesh, oracle = MeshCase(tuple(SIZES), (dp, ep)), MoeLayer()
    options = {"top_k": TOP_K, "capacity_per_sender": room()}
    routers = np.broadcast_to(router.astype(np.float64), (dp, ep, *router.shape))
    shared = experts.astype(np.float64).reshape(ep, -1, HIDDEN, HIDDEN)
    operands = [blocks(sequences), routers, np.broadcast_to(shared, (dp, *shared.shape))]
    (result,) = oracle.value(operands, mesh, ("ep",), **options)
    tokens, of_router, of_experts = oracle.pullback(operands, [blocks(ct)], mesh, ("ep",), **options)
    return [unblocked(result), unblocked(tokens), of_router.sum((0, 1)), of_experts.sum(0).reshape(experts.shape)]


def with_gradients(function: Callable[..., jax.Array]) -> Callable[..., list[jax.Array]]:
    """The result of a layer, and its gradients."""

    def run(*xs: jax.Array) -> list[jax.Array]:
        result, pull = jax.vjp(function, *xs[:-1])
        return [result, *pull(xs[-1])]

    return run


def check(got: list[Any]) -> None:
    """Each is that of the oracle, within 32-bit roundings of sums of a few hundred terms.

    Results and gradients of tokens are judged token by token, of the router and of experts expert by expert.
    """
    own = (-1, -1, 0, (1, 2))
    for one, right, axes in zip(got, expected(), own, strict=True):
        size = np.abs(right).max(axis=axes, keepdims=True)
        assert (np.abs(np.asarray(one) - right) <= CLOSE * size).all()


def test_senders_drop() -> None:
    """Senders drop what they have too many of for the favourites, which get more than the capacity all the same."""
    sequences, router, _, _ = arrays()
    mesh = AbstractMesh((SIZES["ep"],), ("ep",), axis_types=(AxisType.Auto,))

    def drops(tokens: jax.Array, weights: jax.Array) -> list[jax.Array]:
        routing = moe.route(tokens, weights, TOP_K)
        settings = moe.Room(capacity=None, policy="probability", capacity_per_sender=room())
        return jax.tree.leaves(moe.count_drops(routing.experts, routing.gates, EXPERTS, settings, ("ep",)))

    tokens = blocks(sequences)[0].reshape(-1, HIDDEN)
    found = simulate(
        jax.shard_map(drops, mesh=mesh, in_specs=(P("ep"), P()), out_specs=P()), tokens.astype(np.float32), router
    )
    routing = route(tokens @ router, TOP_K)
    result = dispatch(routing, SIZES["ep"], EXPERTS, capacity=None, policy="probability", capacity_per_sender=room())
    right = count_drops(result, EXPERTS)
    for got, name in zip(found, NUMBERS, strict=True):
        assert np.asarray(got).tolist() == getattr(right, name).tolist(), name
    assert right.dropped_by_sender.sum() > 0
    assert right.kept.max() > room()
    assert right.chosen.sum() == TOKENS * TOP_K


@pytest.mark.parametrize("name", DISPATCHES)
def test_the_published_layer(name: str) -> None:
    """Every dispatch gives the oracle's result and gradients, simulated."""
    mesh = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)
    check(simulate(with_gradients(layer(DISPATCHES[name], mesh)), *arrays()))


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("name", ["all_to_all", "ring"])
def test_the_published_layer_compiled(name: str) -> None:
    """So do some of those that XLA can compile for CPU, compiled."""
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), (AxisType.Auto,) * 2, devices=jax.devices()[:8])
    check(jax.jit(with_gradients(layer(DISPATCHES[name], mesh)))(*place(mesh, arrays(), (*SPECS, SPECS[0]))))
