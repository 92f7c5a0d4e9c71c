"""The oracle of a mixture of experts agrees with another derivation of the same, and with differences."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.oracles.layout import shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.moe.counters import count_drops
from shardproof.oracles.moe.dropping import POLICIES, Dispatch, dispatch
from shardproof.oracles.moe.layer import MoeLayer
from shardproof.oracles.moe.routing import GATES, Routing, route
from shardproof.properties.cases.strategies import axis_tuples, meshes

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


def blocks(seed: int, p: int, *, gated: bool = False, held: int = 2) -> list[np.ndarray]:
    """Operands on `MESH`, of a router that all devices have alike."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (4, 2 * p)] + ([(held, 4, 3), (held, 4, 3), (held, 3, 2)] if gated else [(held, 4, 2)])
    return [rng.standard_normal((2, 2, *shape)) for shape in shapes]


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


@pytest.mark.parametrize("gated", [False, True], ids=["matrix", "gated"])
@pytest.mark.parametrize("over", ["chosen", "all"])
@pytest.mark.parametrize("policy", POLICIES)
def test_derivatives_are_those_of_differences(policy: str, over: str, gated: bool) -> None:
    """Forward mode is a central difference, and reverse mode its transpose; each device's router has its own."""
    rng = np.random.default_rng(7)
    options: dict[str, Any] = {"top_k": 3, "capacity": 2, "policy": policy, "over": over, "capacity_per_sender": 2}
    operands = blocks(8, 4, gated=gated)
    layer, axes, step = MoeLayer(), ("ep", "dp"), 1e-6
    along = [rng.standard_normal(x.shape) for x in operands]

    def at(distance: float) -> Any:
        return layer.value([x + distance * d for x, d in zip(operands, along, strict=True)], MESH, axes, **options)[0]

    (pushed,) = layer.pushforward(operands, along, MESH, axes, **options)
    np.testing.assert_allclose(pushed, (at(step) - at(-step)) / (2 * step), atol=1e-7, rtol=1e-6)
    ct = rng.standard_normal(pushed.shape)
    pulled = layer.pullback(operands, [ct], MESH, axes, **options)
    total = sum(float((d * g).sum()) for d, g in zip(along, pulled, strict=True))
    assert np.isclose(float((pushed * ct).sum()), total, rtol=1e-10)


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


@dataclass(frozen=True, eq=False)
class Call:
    """A call of the layer on global arrays: tokens `[N, D]`, router `[D, E]`, experts `[E, D, F]`."""

    mesh: MeshCase
    axes: tuple[str, ...]
    tokens: np.ndarray
    router: np.ndarray
    experts: np.ndarray
    options: dict[str, Any]

    def blocks(self) -> list[np.ndarray]:
        """The operands of every device."""
        specs = (self.axes,), (), (self.axes,)
        operands = self.tokens, self.router, self.experts
        return [shard(x, self.mesh, spec) for x, spec in zip(operands, specs, strict=True)]

    def results(self) -> np.ndarray:
        """The result of every token `[N, F]`."""
        (result,) = MoeLayer().value(self.blocks(), self.mesh, self.axes, **self.options)
        return unshard(result, self.mesh, (self.axes,))

    def gradients(self, ct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cotangents of tokens and of experts, by those of the results."""
        cts = [shard(ct, self.mesh, (self.axes,))]
        tokens, _, experts = MoeLayer().pullback(self.blocks(), cts, self.mesh, self.axes, **self.options)
        return unshard(tokens, self.mesh, (self.axes,)), unshard(experts, self.mesh, (self.axes,))


@st.composite
def calls(draw: st.DrawFn, *, by_sender: bool = True, multiple: int = 1, least: int = 1) -> Call:
    """Calls on up to 8 devices, of which no two logits and no two gates are equal.

    The last two features of a token are 1 and 0; the router ignores both.

    Arguments:
        by_sender: whether a pair may be dropped because of who sends it.
        multiple: what the numbers of tokens and of experts are multiples of.
        least: the fewest experts.
    """
    mesh = draw(meshes(max_devices=8, available=8), label="mesh")
    axes = draw(axis_tuples(mesh), label="axes")
    unit = np.lcm(mesh.axis_size(axes), multiple)
    tokens, experts = (int(unit) * draw(st.integers(1, max(1, 12 // int(unit)))) for _ in range(2))
    experts *= -(-least // experts)
    options: dict[str, Any] = {
        "top_k": draw(st.integers(1, min(3, experts)), label="top_k"),
        "capacity": draw(st.none() | st.integers(0, 4), label="capacity"),
        "policy": draw(st.sampled_from(POLICIES if by_sender else POLICIES[:3]), label="policy"),
        "over": draw(st.sampled_from(GATES), label="over"),
        "capacity_per_sender": draw(st.none() | st.integers(0, 2), label="per sender") if by_sender else None,
    }
    rng = np.random.default_rng(draw(st.integers(0, 999), label="seed"))
    x, router, w = (rng.standard_normal(shape) for shape in ((tokens, 5), (5, experts), (experts, 5, 2)))
    x[:, 3:], router[3:] = (1, 0), 0
    return Call(mesh, axes, x, router, w, options)


def order_of(data: st.DataObject, count: int) -> np.ndarray:
    """Any order of so many."""
    return np.array(data.draw(st.permutations(range(count)), label="order"))


def avoiding(call: Call, experts: np.ndarray) -> Call:
    """The call with some experts that no token chooses."""
    router = call.router.copy()
    router[3, experts] = -100
    return replace(call, router=router)


def close(found: np.ndarray, right: np.ndarray) -> None:
    """They are equal but for roundings, NaN for NaN."""
    np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


related = settings(max_examples=max(10, settings().max_examples // 4))


@related
@given(calls(by_sender=False), st.data())
def test_permuted_tokens_have_permuted_results(call: Call, data: st.DataObject) -> None:
    """Where gates alone say who is kept, or all are, the order of tokens changes no result."""
    options = call.options
    if options["policy"] != "probability" or (options["top_k"] == 1 and options["over"] == "chosen"):
        call = replace(call, options=options | {"capacity": None})  # others count by position, or all gates are 1
    order = order_of(data, len(call.tokens))
    close(replace(call, tokens=call.tokens[order]).results(), call.results()[order])


@related
@given(calls(by_sender=False), st.data())
def test_relabelled_experts_give_the_same_results(call: Call, data: st.DataObject) -> None:
    """Experts under other numbers, with their columns of the router, change no result."""
    order = order_of(data, len(call.experts))
    close(replace(call, router=call.router[:, order], experts=call.experts[order]).results(), call.results())


@related
@given(calls(by_sender=False, multiple=2, least=4), st.data())
def test_padding_changes_no_result(call: Call, data: st.DataObject) -> None:
    """Rows that choose experts of their own change no token's result, wherever they stand."""
    experts, count = len(call.experts), len(call.tokens)
    own = order_of(data, experts)[: experts // 2]
    call = avoiding(replace(call, options=call.options | {"top_k": min(2, call.options["top_k"])}), own)
    call.router[4] = -100
    call.router[4, own] = 0
    rows = count + call.mesh.axis_size(call.axes) * data.draw(st.integers(1, 3), label="rows of padding")
    at = np.sort(order_of(data, rows)[:count])
    tokens = np.tile([0.0, 0, 0, 0, 1], (rows, 1))
    tokens[at] = call.tokens
    close(replace(call, tokens=tokens).results()[at], call.results())


@related
@given(calls(), st.data())
def test_more_room_never_drops_more(call: Call, data: st.DataObject) -> None:
    """What is kept with less room is kept with more, by every policy, and all of it with room for all."""
    routing = route(call.tokens @ call.router, call.options["top_k"], over=call.options["over"])
    p, experts, policy = call.mesh.axis_size(call.axes), len(call.experts), call.options["policy"]
    sent = call.options["capacity_per_sender"]
    rooms = [*range(data.draw(st.integers(0, 4), label="least room"), 6), len(call.tokens) * experts, None]
    kept = [kept_by(dispatch(routing, p, experts, capacity=n, policy=policy, capacity_per_sender=sent)) for n in rooms]
    assert all(less <= more for less, more in itertools.pairwise(kept))
    assert kept[-1] == kept[-2]
    more = [kept_by(dispatch(routing, p, experts, capacity=None, policy=policy, capacity_per_sender=n)) for n in rooms]
    assert all(less <= more for less, more in itertools.pairwise(more))
    assert len(more[-1]) == routing.experts.size


@related
@given(calls(multiple=8), st.data())
def test_results_do_not_depend_on_the_mesh(call: Call, data: st.DataObject) -> None:
    """Nor on the order of axes; where it matters who has a token, among as many participants."""
    p = call.mesh.axis_size(call.axes)
    mesh = data.draw(meshes(max_devices=8, available=8).filter(lambda m: 8 % m.size == 0), label="other mesh")
    other = replace(call, mesh=mesh, axes=data.draw(axis_tuples(mesh), label="other axes"))
    if call.options["policy"] == "sender" or call.options["capacity_per_sender"] is not None:
        other = replace(call, mesh=MeshCase(("x", "y"), (2, p)), axes=("y",))
    close(other.results(), call.results())


@related
@given(calls(least=2), st.data())
def test_experts_without_tokens_have_gradients_of_zeros(call: Call, data: st.DataObject) -> None:
    """What no token chooses learns nothing; with room for all, everything else learns."""
    idle = order_of(data, len(call.experts))[: max(1, len(call.experts) - 3)]
    top_k = min(call.options["top_k"], len(call.experts) - len(idle))
    call = avoiding(replace(call, options=call.options | {"top_k": top_k}), idle)
    ct = np.ones((len(call.tokens), 2))
    assert not call.gradients(ct)[1][idle].any()
    call.options.update(capacity=None, capacity_per_sender=None)
    chosen = {int(i) for i in route(call.tokens @ call.router, top_k).experts.flat}
    assert {int(i) for i in np.flatnonzero(call.gradients(ct)[1].any(axis=(1, 2)))} == chosen


@related
@given(calls(), st.data())
def test_a_token_of_nan_is_in_no_other_gradient(call: Call, data: st.DataObject) -> None:
    """It chooses as a token of zeros does, and changes no other's result, and no expert's gradient but of its own."""
    lost = data.draw(st.integers(0, len(call.tokens) - 1), label="token")
    zero, nan = (replace(call, tokens=call.tokens.copy()) for _ in range(2))
    zero.tokens[lost], nan.tokens[lost] = 0, np.nan
    ct = np.random.default_rng(0).standard_normal((len(call.tokens), 2))
    with np.errstate(invalid="ignore"):
        pairs = [(zero.results(), nan.results()), (zero.gradients(ct)[0], nan.gradients(ct)[0])]
        own, other = zero.gradients(ct)[1], nan.gradients(ct)[1]
    for one, two in pairs:
        close(np.delete(two, lost, axis=0), np.delete(one, lost, axis=0))
    spoilt = np.isnan(other).any(axis=(1, 2))
    close(other[~spoilt], own[~spoilt])
    assert not spoilt[call.options["top_k"] :].any()
    if call.options["capacity"] is None and call.options["capacity_per_sender"] is None:
        assert spoilt.sum() == call.options["top_k"]
