"""Arrays that dispatches of a mixture of experts never have, forward or backward."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate.jaxprs import equations, scan_counts

T, D, F, HELD, TOP_K, PLACES = 30, 7, 11, 3, 2, 4
E, PAIRS = HELD * PLACES, T * TOP_K
"""Sizes of which no product is another: what is counted by itself is far below what is said never to be there."""

Form = Callable[..., Any]


def program(form: Form, mesh: Any, *, gradient: bool, **options: Any) -> tuple[Form, list[jax.ShapeDtypeStruct]]:
    """A dropless layer over one axis of a mesh, or its gradient alone, and the shapes of its arguments."""
    specs, places = (P("ep"), P(), P("ep")), mesh.shape["ep"]
    layer = jax.shard_map(
        lambda *xs: form(*xs, "ep", top_k=TOP_K, **options), mesh=mesh, in_specs=specs, out_specs=P("ep")
    )

    def derived(*xs: Any) -> Any:
        result, pull = jax.vjp(layer, *xs)
        return pull(jnp.ones_like(result))

    shapes = ((T * places, D), (D, HELD * places), (HELD * places, D, F))
    return derived if gradient else layer, [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]


def inside(form: Form, *, gradient: bool, places: int = PLACES, **options: Any) -> Iterator[Any]:
    """The equations on one of some participants, those of inner programs among them."""
    function, shapes = program(form, abstract_mesh(MeshCase(("ep",), (places,))), gradient=gradient, **options)
    for equation in equations(jax.make_jaxpr(function)(*shapes)):
        if equation.primitive.name == "shard_map":
            yield from equations(equation.params["jaxpr"])


def largest(form: Form, **options: Any) -> int:
    """The elements of the largest array that an equation of a layer, or of its gradient, makes."""
    return max(
        math.prod(getattr(v.aval, "shape", ()))
        for gradient in (False, True)
        for equation in inside(form, gradient=gradient, **options)
        for v in equation.outvars
    )


def at_once(rows: Any, chosen: Any, gates: Any, weights: Any) -> Any:
    """`in_turn`, with an array of rows by experts by features."""
    (weight,) = weights
    outputs = jnp.einsum("nd,edf->nef", rows, weight)
    counted = jnp.sum(jnp.where(chosen[:, :, None] == jnp.arange(len(weight)), gates[:, :, None], 0), axis=1)
    return jnp.sum(outputs * counted[:, :, None], axis=1)


def each_its_own(rows: Any, chosen: Any, weights: Any) -> Any:
    """`sorted_by_expert`, with a matrix for every row."""
    return jnp.einsum("nd,ndf->nf", rows, weights[0][chosen])


IN_TURN = {
    "all_gather_moe": PLACES * T * HELD,
    "ragged_moe": PLACES * PAIRS * HELD,
}
"""The forms that take one expert after the other, and how many rows by experts that would be at once."""


@pytest.mark.parametrize("name", IN_TURN)
def test_no_rows_by_experts_by_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that takes experts in turn has no array of rows by experts by features."""
    form, bound = getattr(moe, name), IN_TURN[name] * min(D, F)
    assert largest(form) < bound
    with monkeypatch.context() as patched:
        patched.setattr(f"{moe.__name__}.dispatch.in_turn", at_once)
        assert largest(form) >= bound
    monkeypatch.setattr(jax, "checkpoint", lambda function: function)
    assert largest(form) >= bound


def test_no_rows_by_features_by_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted rows share their expert's matrix."""
    bound = PAIRS * D * F
    assert largest(moe.sorted_moe) < bound
    monkeypatch.setattr(f"{moe.__name__}.dispatch.sorted_by_expert", each_its_own)
    assert largest(moe.sorted_moe) >= bound


@pytest.mark.parametrize("name", ["ring_moe", "all_to_all_moe"])
def test_no_pairs_by_queues_by_features(name: str) -> None:
    """Queues by sorting have no array of pairs by experts by features."""
    bound = PAIRS * E * min(D, F)
    for policy in moe.POLICIES:
        assert largest(getattr(moe, name), capacity=T, policy=policy) < bound


def kept_round_a_ring(places: int) -> float:
    """The elements that a step of a ring keeps for its derivative."""
    scans = [e for e in inside(moe.ring_moe, gradient=True, places=places) if e.primitive.name == "scan"]
    return max(sum(math.prod(v.aval.shape) for v in e.outvars[scan_counts(e)[1] :]) / e.params["length"] for e in scans)


def test_no_products_round_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring keeps only visiting tokens, slots and gates for its derivative."""
    visitors = T * (D + 2 * TOP_K)
    assert kept_round_a_ring(6) <= visitors
    monkeypatch.setattr(jax, "checkpoint", lambda function: function)
    assert kept_round_a_ring(6) > visitors


def begun(starts: Any, rows: int) -> Any:
    """The number of `starts` at a row or before it, by an array of rows by starts."""
    return jnp.sum(starts <= jnp.arange(rows)[:, None], axis=1)


def slices(starts: Any, sizes: Any, rows: int) -> tuple[Any, Any, Any]:
    """The slices that rows are in, by an array of rows by slices."""
    at = jnp.arange(rows)[:, None]
    within = (at >= starts) & (at < starts + sizes)
    entry = jnp.argmax(within, axis=1)
    return within.any(axis=1), entry, at[:, 0] - starts[entry]


@pytest.mark.parametrize(
    ("place", "planted"), [("moe.dispatch._begun", begun), ("ragged._slices", slices)], ids=["begun", "slices"]
)
def test_no_rows_by_participants(place: str, planted: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged exchange has no array of rows by participants."""
    many = 32
    bound = many * PAIRS * many
    assert largest(moe.ragged_moe, places=many) < bound
    monkeypatch.setattr(f"shardproof.impl.{place}", planted)
    assert largest(moe.ragged_moe, places=many) >= bound
