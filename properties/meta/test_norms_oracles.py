"""Global norm and RMS norm: the oracles once more on whole arrays, and all implementations against them."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from shardproof.impl import norms as forms
from shardproof.oracles import norms
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import (
    central_difference,
    derivatives,
    floats,
    inner,
    on_devices,
    participants,
    simulated,
)

GLOBAL = (forms.global_norm,)
RMS = (forms.rms_norm,)


def norms_of_wholes(mesh: MeshCase, axes: tuple[str, ...], x: np.ndarray) -> np.ndarray:
    """Every device's global norm, as that of the vector of all numbers that its participants hold."""
    held = [
        np.linalg.norm(np.concatenate([x[participant].ravel() for participant in participants(mesh, axes, device)]))
        for device in np.ndindex(*mesh.sizes)
    ]
    return np.array(held).reshape(mesh.sizes)


def tokens_of_wholes(
    mesh: MeshCase, axes: tuple[str, ...], epsilon: float, x: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Every device's normalised features, cut out of those of whole tokens."""
    result, width = np.empty_like(x), x.shape[-1]
    for device in np.ndindex(*mesh.sizes):
        ring = participants(mesh, axes, device)
        whole = np.concatenate([x[participant] for participant in ring], axis=-1)
        scales = np.concatenate([scale[participant] for participant in ring])
        normalised = [token / math.sqrt(np.mean(token**2) + epsilon) * scales for token in whole]
        start = ring.index(device) * width
        result[device] = np.array(normalised)[:, start : start + width]
    return result


@given(place=places())
def test_the_global_norm_is_that_of_the_whole(place: Any) -> None:
    """The oracle's norm, its differences and its adjoint are those of the vector of all numbers."""
    mesh, axes, seed = place
    x, dx, ct = floats(mesh, 2, 3, seed=seed), floats(mesh, 2, 3, seed=seed + 1), floats(mesh, seed=seed + 2)
    oracle, whole = norms.global_norm, functools.partial(norms_of_wholes, mesh, axes)
    np.testing.assert_allclose(oracle.value([x], mesh, axes)[0], whole(x), rtol=1e-12)
    pushed, pulled = oracle.pushforward([x], [dx], mesh, axes), oracle.pullback([x], [ct], mesh, axes)
    np.testing.assert_allclose(pushed[0], central_difference(whole, [x], [dx]), rtol=1e-6, atol=1e-8)
    assert math.isclose(inner(pushed, [ct]), inner([dx], pulled), rel_tol=1e-9, abs_tol=1e-12)


@given(place=places(), epsilon=st.sampled_from([0.0, 1e-6, 1.0]))
def test_the_rms_norm_is_that_of_whole_tokens(place: Any, epsilon: float) -> None:
    """The oracle's features, their differences and their adjoint are those of tokens with all of their features."""
    mesh, axes, seed = place
    x, scale = floats(mesh, 2, 3, seed=seed), floats(mesh, 3, seed=seed + 1)
    dx, dscale, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in ((2, (2, 3)), (3, (3,)), (4, (2, 3))))
    oracle, whole = norms.rms_norm, functools.partial(tokens_of_wholes, mesh, axes, epsilon)
    np.testing.assert_allclose(oracle.value([x, scale], mesh, axes, epsilon=epsilon)[0], whole(x, scale), rtol=1e-12)
    pushed = oracle.pushforward([x, scale], [dx, dscale], mesh, axes, epsilon=epsilon)
    np.testing.assert_allclose(pushed[0], central_difference(whole, [x, scale], [dx, dscale]), rtol=1e-5, atol=1e-6)
    pulled = oracle.pullback([x, scale], [ct], mesh, axes, epsilon=epsilon)
    assert math.isclose(inner(pushed, [ct]), inner([dx, dscale], pulled), rel_tol=1e-9, abs_tol=1e-9)


def test_the_norm_of_zeros_has_no_slope() -> None:
    """At zero the global norm is 0 and so are both of its derivatives."""
    mesh, axes = REVERSED
    zeros, ones = np.zeros((2, 3, 4)), np.ones((2, 3, 4))
    assert not norms.global_norm.value([zeros], mesh, axes)[0].any()
    assert not norms.global_norm.pushforward([zeros], [ones], mesh, axes)[0].any()
    assert not norms.global_norm.pullback([zeros], [ones[..., 0]], mesh, axes)[0].any()


@pytest.mark.parametrize("form", GLOBAL, ids=lambda form: form.__name__)
@pytest.mark.parametrize("checked", [True, False])
def test_a_norm_for_all(form: Any, checked: bool) -> None:
    """The norm leaves as one number, and its gradient is the unit vector."""
    mesh, axes = REVERSED
    x = np.arange(12, dtype=np.float32)
    local, spec = functools.partial(form, axis_name=axes), PartitionSpec(axes)
    norm = jax.shard_map(local, mesh=device_mesh(mesh), in_specs=spec, out_specs=PartitionSpec(), check_vma=checked)
    value, gradient = jax.jit(jax.value_and_grad(norm))(x)
    np.testing.assert_allclose(value, np.linalg.norm(x), rtol=1e-6)
    np.testing.assert_allclose(gradient, x / np.linalg.norm(x), rtol=1e-6)


@pytest.mark.lengthy
@pytest.mark.parametrize("form", RMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("checked", [True, False])
def test_a_scale_for_all(form: Any, checked: bool) -> None:
    """The gradient of a scale that data-parallel participants share is the sum over all of their tokens."""
    mesh = REVERSED[0]
    x, scale, ct = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(4, 6), (6,), (4, 6)]))
    local = functools.partial(form, axis_name="tp", epsilon=0.5)
    specs = PartitionSpec("dp", "tp"), PartitionSpec("tp")
    norm = jax.shard_map(local, mesh=device_mesh(mesh), in_specs=specs, out_specs=specs[0], check_vma=checked)
    found, pulled = jax.vjp(norm, x.astype(np.float32), scale.astype(np.float32))
    normalised = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 0.5)
    np.testing.assert_allclose(found, normalised * scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pulled(ct.astype(np.float32))[1], (ct * normalised).sum(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", GLOBAL, ids=lambda form: form.__name__)
def test_the_gradient_of_zeros_is_zero(form: Any) -> None:
    """At zero both forms have the gradient 0 and not NaN; of a NaN the norm is NaN."""
    mesh, axes = REVERSED
    zeros, ct = np.zeros((2, 3, 4), np.float32), np.ones((2, 3), np.float32)
    local = functools.partial(form, axis_name=axes)
    pushed, pulled = derivatives(local, mesh, [zeros], [zeros + 1], ct)
    assert not pushed.any()
    assert not pulled[0].any()
    zeros[1, 2, 3] = np.nan
    assert np.isnan(on_devices(local, mesh, zeros)).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", [*GLOBAL, *RMS], ids=lambda form: form.__name__)
def test_sixteen_bits_are_rounded_once(form: Any, dtype: Any) -> None:
    """Squares that no 16-bit float holds are carried in float32: the result is the exact one, rounded."""
    mesh, axes = REVERSED
    operands: list[np.ndarray] = [np.full((2, 3, 1, 50), 300).astype(dtype)]
    oracle: Any = norms.global_norm
    keywords = {}
    if form in RMS:
        operands.append(np.full((2, 3, 50), 3).astype(dtype))
        oracle, keywords = norms.rms_norm, {"epsilon": 0.0}
    found = on_devices(functools.partial(form, axis_name=axes, **keywords), mesh, *operands)
    expected = oracle.value(operands, mesh, axes, **keywords)[0].astype(dtype)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("form", [*GLOBAL, *RMS], ids=lambda form: form.__name__)
def test_what_all_hold_alike_is_counted_by_each(form: Any) -> None:
    """A block that is typed invariant counts once per participant."""
    mesh, axes = REVERSED
    block = jnp.asarray([3.0, 4.0])

    def local(_: Any) -> jax.Array:
        result = form(block, axes) if form in GLOBAL else form(block[None], block, axes, epsilon=0)
        return jnp.asarray(result)

    expected = math.sqrt(150) if form in GLOBAL else np.array([[9, 16]]) / math.sqrt(12.5)
    found = on_devices(local, mesh, np.zeros((2, 3)))
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-6)


@pytest.mark.parametrize("form", [*GLOBAL, *RMS], ids=lambda form: form.__name__)
def test_what_is_refused(form: Any) -> None:
    """Operands that are not floating, an epsilon below 0, a scale of another shape, and an axis that is not there."""
    mesh, axes = REVERSED
    x, scale, name = np.zeros((2, 3, 4, 2), np.float32), np.zeros((2, 3, 2), np.float32), form.__name__
    operands, keywords = ((x,), {}) if form in GLOBAL else ((x, scale), {"epsilon": 0.0})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ((x > 0, *operands[1:]), {}, rf"{name}: x='bool.*': expected an array of real floating-point numbers, on the"),
        (operands, {"axis_name": ("tp", "ep")}, rf"{name}: axis_name=\('tp', 'ep'\): expected bound axis names"),
    ]
    if form in RMS:
        cases += [
            (operands, {"epsilon": -1e-6}, rf"{name}: epsilon=-1e-06: expected a finite number of at least 0, on the"),
            (operands, {"epsilon": math.nan}, rf"{name}: epsilon=nan: expected a finite number of at least 0"),
            (
                (x, x[:, :, :, 0]),
                {},
                rf"{name}: scale='float32\[4\].*': expected an array of shape \(2,\), one number for",
            ),
            ((x, scale > 0), {}, rf"{name}: scale='bool.*': expected an array of real floating-point numbers"),
        ]
    for arguments, changed, message in cases:
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, **({"axis_name": axes} | keywords | changed)), mesh, *arguments)
