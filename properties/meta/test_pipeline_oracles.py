"""Pipelines: the oracle once more, microbatch by microbatch, all implementations against it, and their steps."""

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

from shardproof.impl import pipeline as module
from shardproof.impl.pipeline import circular_pipeline, gathered_pipeline, pipeline
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.pipeline import pipeline as oracle
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.engines.xla import abstract_mesh, device_mesh
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import (
    PLACES,
    central_difference,
    derivatives,
    floats,
    inner,
    on_devices,
    participants,
    simulated,
)

FORMS = (gathered_pipeline, pipeline, circular_pipeline)
OF_SEVERAL = (gathered_pipeline, circular_pipeline)


def row_by_row(mesh: MeshCase, axes: tuple[str, ...], weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Every row by itself, walked from participant to participant as often as each has layers."""
    result, features = np.empty_like(x), x.shape[-1]
    for device in np.ndindex(*mesh.sizes):
        for place in np.ndindex(*x.shape[len(mesh.sizes) : -1]):
            row = x[device][place]
            for n in range(weights.shape[-2] // features):
                for participant in participants(mesh, axes, device):
                    layer = weights[participant][n * features : (n + 1) * features]
                    row = np.array([math.tanh(row @ layer[:, column]) for column in range(features)])
            result[device][place] = row
    return result


@pytest.mark.lengthy
@given(place=places(), layers=st.integers(1, 3))
def test_a_pipeline_is_that_of_each_row(place: Any, layers: int) -> None:
    """The oracle's values, their differences and their adjoint are those of rows taken one by one."""
    mesh, axes, seed = place
    operands, tangents = (
        [floats(mesh, 2 * layers, 2, seed=seed + j), floats(mesh, 2, 1, 2, seed=seed + j + 2)] for j in (0, 4)
    )
    ct, whole = floats(mesh, 2, 1, 2, seed=seed + 9), functools.partial(row_by_row, mesh, axes)
    np.testing.assert_allclose(oracle.value(operands, mesh, axes)[0], whole(*operands), rtol=1e-10)
    pushed = oracle.pushforward(operands, tangents, mesh, axes)
    np.testing.assert_allclose(pushed[0], central_difference(whole, operands, tangents), rtol=1e-5, atol=1e-7)
    pulled = oracle.pullback(operands, [ct], mesh, axes)
    assert math.isclose(inner(pushed, [ct]), inner(tangents, pulled), rel_tol=1e-9, abs_tol=1e-9)


def test_an_oracle_of_no_layers() -> None:
    """Weights that are no whole layers are refused."""
    mesh, axes = REVERSED
    with pytest.raises(ValueError, match="weights: blocks of 3 by 2: expected layers of 2 features"):
        oracle.value([np.zeros((2, 3, 3, 2)), np.zeros((2, 3, 1, 1, 2))], mesh, axes)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(("mesh", "axes"), PLACES, ids=str)
def test_forms_equal_the_oracle(form: Any, mesh: MeshCase, axes: tuple[str, ...]) -> None:
    """All forms give the oracle's values and gradients, over every tuple in every order; each device has its own x."""
    if form is not gathered_pipeline:  # what a participant hands on is of the first one's x
        x = np.broadcast_to(floats(mesh, 3, 2, 2, seed=1)[(0,) * len(mesh.sizes)], (*mesh.sizes, 3, 2, 2))
    else:
        x = floats(mesh, 3, 2, 2, seed=1)
    operands = [floats(mesh, 2, 2), x]
    local = functools.partial(form, axis_name=axes)
    expected = oracle.value(operands, mesh, axes)[0]
    np.testing.assert_allclose(simulated(local, mesh, *operands), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.lengthy
@pytest.mark.parametrize("microbatches", [1, 7])
@pytest.mark.parametrize(("form", "layers"), [*((form, 1) for form in FORMS), *((form, 2) for form in OF_SEVERAL)])
def test_forms_on_devices(form: Any, microbatches: int, layers: int) -> None:
    """Values and gradients of global arrays are those of the layers on one device, of fewer microbatches and more."""
    mesh, axes = REVERSED
    local = functools.partial(form, axis_name=axes)
    mapped = jax.shard_map(
        local, mesh=device_mesh(mesh), in_specs=(PartitionSpec(axes), PartitionSpec()), out_specs=PartitionSpec()
    )
    weights, x, ct = (
        np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        for seed, shape in enumerate([(6 * layers * 3, 3), (microbatches, 2, 3), (microbatches, 2, 3)])
    )

    def unsharded(weights: Any, x: Any) -> Any:
        by_participant = weights.reshape(6, layers, 3, 3)
        for n in range(layers):
            for i in range(6):
                x = jax.numpy.tanh(x @ by_participant[i, n])
        return x

    for function in (mapped, unsharded):
        found, pull = jax.vjp(jax.jit(function), weights, x)
        results = [found, *pull(ct)]
        if function is mapped:
            sharded = results
    for one, other in zip(sharded, results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_both_derivatives(form: Any) -> None:
    """Of blocks in the interpreter both derivatives are the oracle's, where each participant has the same x."""
    mesh, axes = REVERSED
    alike = np.broadcast_to
    operands = [floats(mesh, 2, 2), alike(floats(mesh, 3, 1, 2, seed=1)[:1, :1], (2, 3, 3, 1, 2))]
    tangents = [floats(mesh, 2, 2, seed=2), alike(floats(mesh, 3, 1, 2, seed=3)[:1, :1], (2, 3, 3, 1, 2))]
    ct = floats(mesh, 3, 1, 2, seed=4)
    pushed, pulled = derivatives(
        functools.partial(form, axis_name=axes), mesh, operands, tangents, ct, interpreted=True
    )
    np.testing.assert_allclose(pushed, oracle.pushforward(operands, tangents, mesh, axes)[0], rtol=1e-4, atol=1e-6)
    of_weights, of_x = oracle.pullback(operands, [ct], mesh, axes)
    np.testing.assert_allclose(pulled[0], of_weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(pulled[1].sum(axis=(0, 1)), of_x.sum(axis=(0, 1)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", [pipeline, circular_pipeline], ids=lambda form: form.__name__)
def test_bubbles_are_not_read(form: Any) -> None:
    """A NaN of one row is in no other, though participants compute with what is there while they are idle."""
    mesh, axes = REVERSED
    operands = [floats(mesh, 2, 2), np.zeros((2, 3, 4, 1, 2))]
    operands[1][:, :, 3] = np.nan
    found = on_devices(functools.partial(form, axis_name=axes), mesh, *operands)
    assert np.isnan(found[:, :, 3]).all()
    assert np.isfinite(found[:, :, :3]).all()


def traced(form: Any, p: int, microbatches: int, layers: int) -> Any:
    """The trace of a form with p participants."""
    specs = (PartitionSpec("pp"), PartitionSpec())
    mesh = abstract_mesh(MeshCase(("pp",), (p,)))
    mapped = jax.shard_map(
        functools.partial(form, axis_name="pp"), mesh=mesh, in_specs=specs, out_specs=PartitionSpec()
    )
    arrays = [np.zeros((p * layers * 2, 2), np.float32), np.zeros((microbatches, 3, 2), np.float32)]
    return jax.make_jaxpr(mapped)(*arrays)


SIZES = [(4, 8, 1), (4, 8, 3), (4, 2, 3), (6, 1, 1), (2, 5, 2), (3, 3, 2)]
sizes = pytest.mark.parametrize(("p", "microbatches", "layers"), SIZES)


@sizes
def test_steps_are_counted(p: int, microbatches: int, layers: int) -> None:
    """A loop has all steps but the first, with one permute in each (GPipe, section 2.3: M + p - 1 for one layer)."""
    last_round = microbatches + p - 1
    forms = [(circular_pipeline, (layers - 1) * max(microbatches, p) + last_round)]
    forms += [(pipeline, last_round)] if layers == 1 else []
    for form, steps in forms:
        program = traced(form, p, microbatches, layers)
        (loop,) = [one for one in equations(program) if one.primitive is lax.scan_p]
        assert loop.params["length"] == steps - 1
        permutes = [one for one in equations(program) if one.primitive.name == "ppermute"]
        assert len(permutes) == len([one for one in equations(loop.params["jaxpr"]) if one in permutes]) == 1


@sizes
def test_bubbles_are_counted(p: int, microbatches: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every participant is idle in p - 1 steps, and in p - M more of each round but the last if M is less than p.

    A step is not idle if the participant puts a microbatch through one of its layers, for the first time.
    """
    seen: list[tuple[int, float]] = []

    def recorded(index: Any, y: Any) -> Any:
        seen.append((int(index), float(y[0, 0])))
        return y

    def applied(layer: Any, y: Any, dtype: Any) -> Any:
        entered = jax.pure_callback(recorded, y, lax.axis_index("pp"), y)
        return (entered + layer[0, 0]).astype(dtype)

    monkeypatch.setattr(module, "_applied", applied)
    mesh = MeshCase(("pp",), (p,))
    weights = np.ones((p, layers, 1), np.float32)  # a layer adds 1, so that a value says what it went through
    x = np.broadcast_to(1000 * np.arange(1, microbatches + 1, dtype=np.float32)[:, None, None], (p, microbatches, 1, 1))
    for form in (circular_pipeline, pipeline)[: 1 + (layers == 1)]:
        seen.clear()
        found = simulated(functools.partial(form, axis_name="pp"), mesh, weights, x)
        np.testing.assert_array_equal(found, x + p * layers)
        for participant in range(p):
            entered = [value for index, value in seen if index == participant]
            useful = {1000 * (m + 1) + n * p + participant for m in range(microbatches) for n in range(layers)}
            assert useful <= {*entered}
            assert len(entered) - len(useful) == p - 1 + (layers - 1) * max(p - microbatches, 0)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_refused(form: Any) -> None:
    """Operands of other shapes, ranks and dtypes, and an axis that is not there."""
    mesh, axes = REVERSED
    w, x, name = np.zeros((2, 3, 4, 4), np.float32), np.zeros((2, 3, 2, 1, 4), np.float32), form.__name__
    layers = "expected layers of 4 rows and columns, as x has features, on the mesh"
    cases: list[tuple[tuple[np.ndarray, ...], Any, str]] = [
        ((w, x), ("tp", "ep"), rf"{name}: axis_name=\('tp', 'ep'\): expected bound axis names"),
        ((w[..., None], x), axes, rf"{name}: weights='float32\[4,4,1\].*': expected an array of 2 dimensions, on the"),
        ((w, x[..., 0]), axes, rf"{name}: x='float32\[2,1\].*': expected an array of 3 dimensions, on the"),
        ((w[:, :, 1:], x), axes, rf"{name}: weights='float32\[3,4\].*': {layers}"),
        ((w[..., 1:], x), axes, rf"{name}: weights='float32\[4,3\].*': {layers}"),
        ((w[:, :, :0], x), axes, rf"{name}: weights='float32\[0,4\].*': {layers}"),
        ((w, x[:, :, :0]), axes, rf"{name}: x='float32\[0,1,4\].*': expected an array of at least one element, on"),
        ((w > 0, x), axes, rf"{name}: weights='bool.*': expected an array of real floating-point numbers, on the mesh"),
    ]
    for operands, axis_name, message in cases:
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *operands)


def test_several_layers_are_another_form() -> None:
    """Of several layers for each participant, the form of one pass says that it has none."""
    mesh, axes = REVERSED
    told = r"pipeline: weights='float32\[4,2\].*': expected one layer for each participant, on the mesh"
    with pytest.raises(NotImplementedError, match=told):
        simulated(
            functools.partial(pipeline, axis_name=axes),
            mesh,
            np.zeros((2, 3, 4, 2), np.float32),
            np.zeros((2, 3, 2, 1, 2), np.float32),
        )
