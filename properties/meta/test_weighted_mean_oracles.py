"""Weighted mean: the oracle once more element by element, and both implementations against it."""

import functools
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardproof.impl.weighted_mean import gathered_weighted_mean
from shardproof.impl.weighted_mean import weighted_mean as added_weighted_mean
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.weighted_mean import weighted_mean
from shardproof.properties.engines.xla import device_mesh
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

FORMS = (added_weighted_mean, gathered_weighted_mean)
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def weights_of(mesh: MeshCase, n: int, share: float, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    """Weights of such a share of the elements, on each device more than on the one before."""
    rng = np.random.default_rng(seed)
    scales = np.arange(1, mesh.size + 1).reshape(*mesh.sizes, 1)
    weights = scales * rng.random((*mesh.sizes, n)) * (rng.random((*mesh.sizes, n)) < share)
    return np.asarray(weights, dtype)


def element_by_element(mesh: MeshCase, axes: tuple[str, ...], weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What every device holds, found by a walk over all elements of its participants."""
    means = []
    for device in np.ndindex(*mesh.sizes):
        pairs = [
            pair
            for participant in participants(mesh, axes, device)
            for pair in zip(values[participant], weights[participant], strict=True)
            if pair[1]
        ]
        total = math.fsum(weight for _, weight in pairs)
        means.append(math.fsum(value * weight for value, weight in pairs) / total if pairs else 0.0)
    return np.array(means).reshape(mesh.sizes)


@given(place=places(), n=st.integers(0, 4), share=st.sampled_from([0.0, 1.0, 0.5]))
def test_the_mean_is_that_of_all_elements(place: Any, n: int, share: float) -> None:
    """The oracle's mean, its differences and its adjoint are those of a walk over the elements, a NaN among them."""
    mesh, axes, seed = place
    values, tangent, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in enumerate([(n,), (n,), ()]))
    weights = weights_of(mesh, n, share, seed)
    values = np.where(weights == 0, np.nan, values)
    walk = functools.partial(element_by_element, mesh, axes, weights)
    np.testing.assert_allclose(
        weighted_mean.value([values, weights], mesh, axes)[0], walk(values), rtol=1e-12, atol=1e-15
    )
    pushed = weighted_mean.pushforward([values, weights], [tangent, None], mesh, axes)
    np.testing.assert_allclose(pushed[0], central_difference(walk, [values], [tangent], 1e-3), rtol=1e-9, atol=1e-9)
    pulled, none = weighted_mean.pullback([values, weights], [ct], mesh, axes)
    assert none is None
    assert pulled is not None
    assert math.isclose(inner(pushed, [ct]), inner([tangent], [pulled]), rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("weights", [np.ones((1, 3)), np.array([[1.0, -1.0]])], ids=["more", "negative"])
def test_the_oracle_refuses(weights: np.ndarray) -> None:
    """Weights of another shape, and a negative one."""
    with pytest.raises(ValueError, match=r"weights: \[1, \d\]: expected \[1, 2\], none of them negative"):
        weighted_mean.value([np.ones((1, 2)), weights], MeshCase(("dp",), (1,)), ("dp",))


@forms
@pytest.mark.parametrize(("mesh", "axes"), PLACES[::3], ids=str)
def test_forms_equal_the_oracle(form: Any, mesh: MeshCase, axes: tuple[str, ...]) -> None:
    """Both forms give the oracle's mean and gradient, of values of which those without weight are NaN."""
    weights = weights_of(mesh, 4, 0.5, dtype=np.float32)
    values = np.where(weights == 0, np.nan, floats(mesh, 4)).astype(np.float32)
    ct, local = floats(mesh, seed=1, dtype=np.float32), functools.partial(form, axis_name=axes)
    right = weighted_mean.value([values, weights], mesh, axes)[0]
    np.testing.assert_allclose(simulated(local, mesh, values, weights), right, rtol=1e-5)
    _, (pulled,) = derivatives(local, mesh, [values], [np.ones_like(values)], ct, [weights], interpreted=True)
    wanted: Any = weighted_mean.pullback([values, weights], [ct], mesh, axes)[0]
    np.testing.assert_allclose(pulled, wanted, rtol=1e-4, atol=1e-6)


@forms
@pytest.mark.parametrize("checked", [True, False])
def test_a_mean_for_all(form: Any, checked: bool) -> None:
    """The mean leaves as one number; the gradient is the weight's share, and weights have none."""
    mesh, axes = REVERSED
    values = np.arange(12, dtype=np.float32)
    weights = np.zeros(12, np.float32)
    weights[[1, 5]] = 1, 3
    mean: Any = jax.shard_map(
        functools.partial(form, axis_name=axes),
        mesh=device_mesh(mesh),
        in_specs=P(axes),
        out_specs=P(),
        check_vma=checked,
    )
    found, (of_values, of_weights) = jax.jit(jax.value_and_grad(mean, argnums=(0, 1)))(values, weights)
    assert found == 4
    np.testing.assert_allclose(of_values, weights / 4)
    assert not of_weights.any()


@forms
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_are_rounded_once(form: Any, dtype: Any) -> None:
    """A mean of 16-bit floats is the exact one, rounded: partial sums are carried in float32."""
    mesh, axes = REVERSED
    values, weights = np.ones((2, 3, 700)).astype(dtype), np.ones((2, 3, 700)).astype(dtype)
    values[..., ::7], weights[..., ::5] = 257, 3
    found = on_devices(functools.partial(form, axis_name=axes), mesh, values, weights)
    right = weighted_mean.value([values, weights], mesh, axes)[0].astype(dtype)
    np.testing.assert_array_equal(found, right, strict=True)


@forms
def test_what_is_refused(form: Any) -> None:
    """Operands that are not floating, weights of another shape, and an axis that is not there."""
    mesh, axes = REVERSED
    x, name = np.zeros((2, 3, 2), np.float32), form.__name__
    for arguments, axis_name, message in (
        ((x > 0, x), axes, rf"{name}: values='bool.*': expected an array of real floating-point numbers, on the mesh"),
        ((x, x > 0), axes, rf"{name}: weights='bool.*': expected an array of real floating-point numbers, on the mesh"),
        ((x, x[..., :1]), axes, rf"{name}: weights='float32\[1\].*': expected an array of shape \(2,\), that of val"),
        ((x, x), ("tp", "ep"), rf"{name}: axis_name=\('tp', 'ep'\): expected bound axis names"),
    ):
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *arguments)
