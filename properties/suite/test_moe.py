"""Every law, on every engine, for all dispatches of a mixture of experts; and what holds of two calls of one."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

ROUTED = [one for one in OPERATIONS if one.form == "routed"]
globals().update(law_tests(ROUTED, derived=True))

DISPATCHES = {str(one): one.function for one in ROUTED}
EXPERTS, TOKENS, FEATURES = 8, 16, 3
CLOSE = 1e-5
"""Sums of a few float32, whose order may be another."""

each_dispatch = pytest.mark.parametrize("dispatch", DISPATCHES.values(), ids=DISPATCHES)


def layer(dispatch: Callable[..., jax.Array], axes: dict[str, int], over: tuple[str, ...], **options: Any) -> Any:
    """A dispatch as a function of global arrays, on a mesh of these axes, over a tuple of them."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def local(tokens: Any, router: Any, experts: Any) -> Any:
        return dispatch(tokens, router, experts, over, **options)

    return jax.shard_map(local, mesh=mesh, in_specs=(P(over), P(), P(over)), out_specs=P(over))


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens `[16, 3]`, a router `[3, 8]` and experts `[8, 3, 2]`: no two logits, and no two gates, are equal."""
    rng = np.random.default_rng(seed)
    shapes = ((TOKENS, FEATURES), (FEATURES, EXPERTS), (EXPERTS, FEATURES, 2))
    tokens, router, experts = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return tokens, router, experts


def assert_close(result: np.ndarray, expected: np.ndarray) -> None:
    """Every row is near the other's, relative to its own size."""
    size = 1 + np.abs(expected).max(axis=-1, keepdims=True)
    assert (np.abs(result - expected) <= CLOSE * size).all(), np.abs(result - expected).max()


@each_dispatch
def test_permuted_tokens_have_permuted_results(dispatch: Callable[..., jax.Array]) -> None:
    """Where the highest gates win and none are equal, it does not matter where a token stands."""
    tokens, router, experts = drawn(0)
    order = np.random.default_rng(1).permutation(TOKENS)
    routed = layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=3, policy="probability")
    assert_close(simulate(routed, tokens[order], router, experts), simulate(routed, tokens, router, experts)[order])


@each_dispatch
def test_relabelled_experts_do_the_same(dispatch: Callable[..., jax.Array]) -> None:
    """Experts in another order, with their columns of the router, give the same results, by every policy of experts."""
    tokens, router, experts = drawn(2)
    order = np.random.default_rng(3).permutation(EXPERTS)
    for policy in ("probability", "position", "choice"):
        routed = layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=3, policy=policy)
        assert_close(
            simulate(routed, tokens, router[:, order], experts[order]), simulate(routed, tokens, router, experts)
        )


@each_dispatch
@pytest.mark.parametrize("policy", ["probability", "position", "choice"])
def test_another_mesh_gives_the_same(dispatch: Callable[..., jax.Array], policy: str) -> None:
    """The capacity counts over all participants: how many there are, and over which axes, changes nothing."""
    data = drawn(4)
    options = {"top_k": 3, "capacity": 4, "policy": policy}
    alone = simulate(layer(dispatch, {"ep": 1}, ("ep",), **options), *data)
    for axes, over in (({"ep": 8}, ("ep",)), ({"dp": 2, "ep": 2}, ("ep", "dp")), ({"dp": 3, "ep": 4}, ("ep",))):
        assert_close(simulate(layer(dispatch, axes, over, **options), *data), alone)


@each_dispatch
def test_more_room_changes_only_what_was_dropped(dispatch: Callable[..., jax.Array]) -> None:
    """A token none of whose choices is dropped has the same result with more room; without any, all are zero."""
    data = drawn(5)
    full, none = (
        simulate(layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=n, policy="position"), *data) for n in (None, 0)
    )
    whole = np.zeros(TOKENS, bool)
    assert not none.any()
    for capacity in range(1, TOKENS + 1):
        routed = layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=capacity, policy="position")
        same = np.isclose(simulate(routed, *data), full, atol=CLOSE).all(axis=1)
        assert (same | ~whole).all(), f"capacity={capacity}: a token loses what it had with less room"
        whole = same
    assert whole.all()


@each_dispatch
@pytest.mark.parametrize("policy", ["probability", "position", "choice"])
def test_padded_and_compacted_tokens_agree(dispatch: Callable[..., jax.Array], policy: str) -> None:
    """Rows that fill up each block, and choose experts that nobody else does, change nothing for the others."""
    tokens, router, experts = drawn(7)
    tokens[:, 0], router[0, -2:] = 1, -50  # nobody chooses the last two
    filled = np.zeros((4, TOKENS // 4 + 2, FEATURES), np.float32)
    filled[..., 0] = -1  # but these do
    filled[:, : TOKENS // 4] = tokens.reshape(4, -1, FEATURES)
    routed = layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=3, policy=policy)
    padded = np.asarray(simulate(routed, filled.reshape(-1, FEATURES), router, experts)).reshape(4, -1, 2)
    assert_close(padded[:, : TOKENS // 4].reshape(TOKENS, 2), simulate(routed, tokens, router, experts))


@each_dispatch
def test_an_expert_without_tokens_does_not_learn(dispatch: Callable[..., jax.Array]) -> None:
    """Its gradient is zero, all of it, and that of a busy one is not."""
    tokens, router, experts = drawn(6)
    router[:, :5] = 0
    router[0, :5], tokens[:, 0] = -50, 1  # nobody chooses the first five
    routed = layer(dispatch, {"ep": 4}, ("ep",), top_k=2, capacity=None, policy="position")
    gradient = simulate(jax.grad(lambda w: routed(tokens, router, w).sum()), experts)
    assert not gradient[:5].any()
    assert gradient[5:].any(axis=(1, 2)).all()


SPOILING = {
    "moe_layer[dense]": "zeros multiply tokens",
    "moe_layer[sorted]": "zeros multiply them in `ragged_dot`'s rule",
}
"""Dispatches in whose gradient of experts a token that is NaN is in others' as well, and why."""


@pytest.mark.parametrize("name", sorted(DISPATCHES.keys() - SPOILING))
def test_a_token_of_nan_is_in_no_other_gradient(name: str) -> None:
    """Gradients of tokens, and those of experts that do not keep it, are those without it."""
    tokens, router, experts = drawn(8)
    routed = layer(DISPATCHES[name], {"ep": 4}, ("ep",), top_k=2, capacity=None, policy="position")

    def gradients(first: float) -> list[np.ndarray]:
        changed = tokens.copy()
        changed[0] = first

        def pulled(x: Any, w: Any) -> Any:
            return jax.vjp(lambda x, w: routed(x, router, w), x, w)[1](np.ones((TOKENS, 2), np.float32))

        return [np.asarray(x) for x in simulate(pulled, changed, experts)]

    # its logits are all minus infinity, or all zero: it goes to the first two experts
    (spoilt_tokens, spoilt), (whole_tokens, whole) = gradients(np.nan), gradients(0)
    assert_close(spoilt_tokens[1:], whole_tokens[1:])
    assert_close(spoilt[2:].reshape(EXPERTS - 2, -1), whole[2:].reshape(EXPERTS - 2, -1))
    assert np.isnan(spoilt[:2]).all()


def test_all_dispatches_are_here() -> None:
    """Every dispatch of the package is checked by every law of its contract."""
    checked = {claim.function for other in CONTRACTS.values() for claim in other.implementations.values()}
    package = {function for name, function in vars(moe).items() if name.endswith("_moe")}
    assert package <= checked
    others = ("expert_choice", "global_")
    assert {one.function for one in ROUTED} == {f for f in package if not any(o in f.__name__ for o in others)}
