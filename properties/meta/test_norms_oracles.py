"""Global norm and RMS norm: the oracles once more on whole arrays, and all implementations against them."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.impl import norms as forms
from shardproof.oracles import norms
from shardproof.oracles.mesh import MeshCase
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
