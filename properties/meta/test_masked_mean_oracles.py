"""Masked mean: the oracle once more element by element, and both implementations against it."""

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

from shardproof.impl.masked_mean import gathered_masked_mean
from shardproof.impl.masked_mean import masked_mean as added_masked_mean
from shardproof.oracles.masked_mean import masked_mean
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.meta import small_meshes
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

FORMS = (added_masked_mean, gathered_masked_mean)
REVERSED = (MeshCase(("dp", "tp"), (2, 3)), ("tp", "dp"))


@st.composite
def operands(draw: st.DrawFn) -> tuple[MeshCase, tuple[str, ...], np.ndarray, np.ndarray]:
    """A mesh, some of its axes in any order, values and a mask, of any shares of True.

    Shrinks towards one device without elements.
    """
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    n, share = draw(st.integers(0, 4)), draw(st.sampled_from([0.0, 1.0, 0.5, 0.9]))
    seed = draw(st.integers(0, 2**16))
    mask = np.random.default_rng(seed).random((*mesh.sizes, n)) < share
    return mesh, axes, floats(mesh, n, seed=seed), mask


def element_by_element(mesh: MeshCase, axes: tuple[str, ...], values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """What every device holds, found by a walk over all elements of its participants."""
    means = []
    for device in np.ndindex(*mesh.sizes):
        pairs = [
            pair
            for participant in participants(mesh, axes, device)
            for pair in zip(values[participant], mask[participant], strict=True)
        ]
        counted = [value for value, counts in pairs if counts]
        means.append(math.fsum(counted) / len(counted) if counted else 0.0)
    return np.array(means).reshape(mesh.sizes)


@given(case=operands())
def test_the_mean_is_that_of_what_is_not_masked(case: Any) -> None:
    """The oracle's mean is that of the elements whose mask is True, and 0 of none."""
    mesh, axes, values, mask = case
    found = masked_mean.value([values, mask], mesh, axes)[0]
    np.testing.assert_allclose(found, element_by_element(mesh, axes, values, mask), rtol=1e-12, atol=1e-15)


@given(case=operands())
def test_derivatives_are_differences_and_adjoint(case: Any) -> None:
    """J d is the central difference of the values, and <J d, c> = <d, J^T c>."""
    mesh, axes, values, mask = case
    tangent, cotangent = floats(mesh, *values.shape[len(mesh.sizes) :], seed=1), floats(mesh, seed=2)
    pushed = masked_mean.pushforward([values, mask], [tangent, None], mesh, axes)
    numeric = central_difference(lambda v: element_by_element(mesh, axes, v, mask), [values], [tangent], 1e-3)
    np.testing.assert_allclose(pushed[0], numeric, rtol=1e-9, atol=1e-9)
    pulled, none = masked_mean.pullback([values, mask], [cotangent], mesh, axes)
    assert none is None
    assert pulled is not None
    assert math.isclose(inner(pushed, [cotangent]), inner([tangent], [pulled]), rel_tol=1e-9, abs_tol=1e-12)


@given(case=operands())
def test_what_is_masked_changes_nothing(case: Any) -> None:
    """A NaN where the mask is False changes neither the mean nor a derivative, and has the cotangent 0."""
    mesh, axes, values, mask = case
    spoilt = np.where(mask, values, np.nan)
    ones, cotangent = np.ones_like(values), np.ones(mesh.sizes)
    for one, other in (
        (masked_mean.value([v, mask], mesh, axes)[0] for v in (values, spoilt)),
        (masked_mean.pushforward([v, mask], [ones * v, None], mesh, axes)[0] for v in (values, spoilt)),
        (masked_mean.pullback([v, mask], [cotangent], mesh, axes)[0] for v in (values, spoilt)),
    ):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


def spoilt_case(mesh: MeshCase, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Integers with an exact mean per participant, one device without any, and NaN where they are masked."""
    mask = np.random.default_rng(3).random((*mesh.sizes, 4)) < 0.5
    mask[(0,) * len(mesh.sizes)] = False
    values = np.where(mask, np.arange(mask.size).reshape(mask.shape) % 5, np.nan)
    return values.astype(dtype), mask


def pulled_back(values: np.ndarray, mask: np.ndarray, cotangent: np.ndarray, mesh: MeshCase, axes: Any) -> np.ndarray:
    """The oracle's cotangent of the values."""
    return np.asarray(masked_mean.pullback([values, mask], [cotangent], mesh, axes)[0])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(("mesh", "axes"), PLACES, ids=str)
def test_forms_equal_the_oracle(form: Any, mesh: MeshCase, axes: tuple[str, ...]) -> None:
    """Both forms give the oracle's mean and gradient, with NaN where it is masked."""
    values, mask = spoilt_case(mesh)
    local = functools.partial(form, axis_name=axes)
    expected = masked_mean.value([values, mask], mesh, axes)[0]
    np.testing.assert_allclose(simulated(local, mesh, values, mask), expected, rtol=1e-6)
    cotangent = np.arange(mesh.size, dtype=np.float32).reshape(mesh.sizes)
    _, pulled = derivatives(local, mesh, [values], [values], cotangent, [mask], interpreted=True)
    np.testing.assert_allclose(pulled[0], pulled_back(values, mask, cotangent, mesh, axes), rtol=1e-6)


@pytest.mark.lengthy
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("checked", [True, False])
def test_forms_on_devices(form: Any, checked: bool) -> None:
    """Values and both derivatives on devices are the oracle's, over a tuple in the reverse of mesh order."""
    mesh, axes = REVERSED
    values, mask = spoilt_case(mesh)
    local = functools.partial(form, axis_name=axes)
    expected = masked_mean.value([values, mask], mesh, axes)[0]
    np.testing.assert_allclose(on_devices(local, mesh, values, mask, checked=checked), expected, rtol=1e-6)
    cotangent = np.arange(6, dtype=np.float32).reshape(2, 3)
    pushed, pulled = derivatives(local, mesh, [values], [values], cotangent, [mask], checked=checked)
    np.testing.assert_allclose(pushed, expected, rtol=1e-6)
    np.testing.assert_allclose(pulled[0], pulled_back(values, mask, cotangent, mesh, axes), rtol=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("checked", [True, False])
def test_a_loss_for_all(form: Any, checked: bool) -> None:
    """The mean leaves as one number, and its gradient is a share for each element that counts."""
    mesh, axes = REVERSED
    values, mask = np.arange(12, dtype=np.float32), np.arange(12) % 3 == 0
    spec, local = PartitionSpec(axes), functools.partial(form, axis_name=axes)
    loss = jax.shard_map(
        local, mesh=device_mesh(mesh), in_specs=(spec, spec), out_specs=PartitionSpec(), check_vma=checked
    )
    mean, gradient = jax.jit(jax.value_and_grad(loss))(values, mask)
    np.testing.assert_allclose(mean, values[mask].mean(), rtol=1e-6)
    np.testing.assert_allclose(gradient, np.where(mask, 1 / 4, 0), rtol=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_are_rounded_once(form: Any, dtype: Any) -> None:
    """A mean of 16-bit floats is the exact one, rounded: partial sums are carried in float32."""
    mesh, axes = REVERSED
    values = np.full((2, 3, 700), 1.0).astype(dtype)
    values[..., ::7] = 257
    mask = np.ones(values.shape, bool)
    result = on_devices(functools.partial(form, axis_name=axes), mesh, values, mask)
    np.testing.assert_array_equal(result, masked_mean.value([values, mask], mesh, axes)[0].astype(dtype), strict=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_all_hold_alike_is_counted_by_each(form: Any) -> None:
    """A block that is typed invariant counts once per participant, as its copies do, beside a mask that varies."""
    mesh, axes = REVERSED
    block, mask = np.array([1, 2, 3], np.float32), np.ones((2, 3, 3), bool)
    mask[0, :, 0] = False
    result = on_devices(lambda m: form(jnp.asarray(block), m, axes), mesh, mask)
    np.testing.assert_allclose(result, np.full((2, 3), 33 / 15), rtol=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_refused(form: Any) -> None:
    """Values that are not floating, a mask that is not bool or of another shape, and an axis that is not there."""
    mesh, axes = REVERSED
    values, mask = np.zeros((2, 3, 2), np.float32), np.zeros((2, 3, 2), bool)
    name = form.__name__
    for arguments, axis_name, message in (
        (
            (mask, mask),
            axes,
            rf"{name}: values='bool.*': expected an array of real floating-point numbers, on the mesh",
        ),
        ((values, values), axes, rf"{name}: mask='float32.*': expected an array of bool, on the mesh \(dp=2, tp=3\)"),
        (
            (values, mask[..., :1]),
            axes,
            rf"{name}: mask='bool\[1\].*': expected an array of shape \(2,\), that of values",
        ),
        ((values, mask), ("tp", "tp"), rf"{name}: axis_name=\('tp', 'tp'\): expected each mesh axis at most once"),
    ):
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *arguments)
