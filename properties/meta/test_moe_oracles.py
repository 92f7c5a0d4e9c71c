"""The oracle of a mixture of experts agrees with another derivation of the same, and its policies with a count."""

import itertools
from typing import Any

import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.dropping import POLICIES, Dispatch, count_drops, dispatch
from shardproof.oracles.moe.layer import MoeLayer
from shardproof.oracles.moe.routing import Routing, route

pytestmark = pytest.mark.either_end

MESH = MeshCase(("dp", "ep"), (2, 2))
AXES = (("ep",), ("ep", "dp"), ("dp", "ep"))
CASES = [*itertools.product(range(3), POLICIES)]


def routed(seed: int, *, tokens: int = 8, experts: int = 4, top_k: int = 2) -> Routing:
    """Small integers for logits, of which many are equal."""
    return route(np.random.default_rng(seed).integers(0, 3, (tokens, experts)).astype(float), top_k)


def kept_by(result: Dispatch) -> set[tuple[int, int]]:
    """The pairs that are kept."""
    return {(pair.token, pair.choice) for pair in result.kept}


def blocks(seed: int, p: int) -> list[np.ndarray]:
    """Operands on `MESH`, with two experts on each device."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, 2, *shape)) for shape in ((3, 4), (4, 2 * p), (2, 4, 2))]


def one_hot(tokens: np.ndarray, router: np.ndarray, weights: np.ndarray, *, top_k: int, capacity: int) -> np.ndarray:
    """The layer by products with masks, of tokens in order: GShard's, with places that are running sums."""
    logits = tokens @ router
    order = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    masks = np.eye(router.shape[1])[order]  # [T, k, E]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    gates = np.einsum("tke,te->tk", masks, powers)
    gates = gates / gates.sum(axis=1, keepdims=True)
    flat = masks.reshape(-1, router.shape[1])
    places = ((np.cumsum(flat, axis=0) - flat) * flat).sum(axis=1).reshape(order.shape)
    combine = np.einsum("tk,tke->te", gates * (places < capacity), masks)
    return np.einsum("te,td,edf->tf", combine, tokens, weights)


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 99])
def test_a_layer_is_a_product_of_masks(axes: tuple[str, ...], capacity: int) -> None:
    """Token by token is the same as one-hot products of all tokens, those of the first participant first."""
    p = MESH.axis_size(axes)
    tokens, router, weights = blocks(capacity, p)
    router = np.broadcast_to(router[:1, :1], router.shape).copy()
    (result,) = MoeLayer().value([tokens, router, weights], MESH, axes, top_k=2, capacity=capacity, policy="position")
    order = [MESH.axis_names.index(name) for name in axes]
    rest = [i for i in range(2) if i not in order]
    whole = [x.transpose(*rest, *order, 2, *range(3, x.ndim)) for x in (tokens, weights, result)]
    for x, w, y in zip(*(a.reshape(4 // p, p * a.shape[2], *a.shape[3:]) for a in whole), strict=True):
        np.testing.assert_allclose(y, one_hot(x, router[0, 0], w, top_k=2, capacity=capacity), atol=1e-12)


@pytest.mark.parametrize(("seed", "policy"), CASES)
def test_nothing_is_lost_and_nothing_counts_twice(seed: int, policy: str) -> None:
    """Kept and dropped are all pairs; an expert, or a buffer of several, keeps as many as it has room for."""
    routing = routed(seed)
    for capacity, each in itertools.product((None, 0, 1, 2, 3, 16), (None, 1)):
        result = dispatch(routing, 2, 4, capacity=capacity, policy=policy, capacity_per_sender=each)
        numbers = count_drops(result, 4)
        assert numbers.chosen.sum() == routing.experts.size
        assert (numbers.sent + numbers.dropped_by_sender == numbers.chosen).all()
        assert (numbers.kept + numbers.dropped_by_receiver == numbers.sent).all()
        room = np.inf if capacity is None else capacity
        if policy == "sender":
            assert (
                numbers.kept.reshape(2, 2).sum(axis=1) == np.minimum(numbers.sent.reshape(2, 2).sum(1), 2 * room)
            ).all()
        else:
            assert (numbers.kept == np.minimum(numbers.sent, room)).all()


def test_policies_by_hand() -> None:
    """Of three tokens that choose experts 0 and 1 with other gates, one is kept of each, another by every policy."""
    routing = Routing(np.array([[1, 0], [0, 1], [0, 1]]), np.array([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]]))
    wanted = {
        "probability": {(2, 0), (0, 0)},
        "position": {(0, 1), (0, 0)},
        "choice": {(1, 0), (0, 0)},
        "sender": {(0, 1), (1, 0)},
    }
    for policy, pairs in wanted.items():
        assert kept_by(dispatch(routing, 1, 2, capacity=1, policy=policy)) == pairs


def test_logits_that_are_not_finite() -> None:
    """NaN is chosen last, plus infinity leaves nothing for what is finite, and equal logits have equal gates."""
    inf, nan = np.inf, np.nan
    logits = np.array([[nan, 1, 2], [nan, nan, nan], [inf, 5, inf], [-inf, nan, 0], [1000, 1000, 0]])
    routing = route(logits, 2)
    assert routing.experts.tolist() == [[2, 1], [0, 1], [0, 2], [2, 0], [0, 1]]
    e = np.exp(-1)
    assert np.allclose(routing.gates, [[1 / (1 + e), e / (1 + e)], [0.5, 0.5], [0.5, 0.5], [1, 0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": -1, "policy": "position"}, "capacity=-1: expected at least 0, or None"),
        ({"capacity": 1, "policy": "best"}, "policy='best': expected one of probability"),
    ],
)
def test_what_is_forbidden(options: Any, message: str) -> None:
    """Errors name the argument and what was expected."""
    with pytest.raises(ValueError, match=message):
        dispatch(routed(0), 2, 4, **options)
    with pytest.raises(ValueError, match=r"top_k=5: expected 1 to 4"):
        routed(0, top_k=5)
