"""Means: the oracles once more element by element, and all implementations against them."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.impl import means as implementations
from shardproof.oracles.means import WeightedMean, masked_mean, weighted_mean
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import (
    central_difference,
    floats,
    inner,
    participants,
    simulated,
)

MASKED = (implementations.masked_mean,)
WEIGHTED = (implementations.weighted_mean,)
forms = pytest.mark.parametrize("form", MASKED + WEIGHTED, ids=lambda form: form.__name__)
oracles = pytest.mark.parametrize("oracle", [masked_mean, weighted_mean], ids=["masked", "weighted"])


def weights_of(oracle: WeightedMean, mesh: MeshCase, n: int, share: float, seed: int = 0) -> np.ndarray:
    """Weights of such a share of the elements, on each device more than on the one before; of a mask those are 1."""
    rng = np.random.default_rng(seed)
    counts = rng.random((*mesh.sizes, n)) < share
    scales = np.arange(1, mesh.size + 1).reshape(*mesh.sizes, 1)
    return counts if oracle is masked_mean else scales * rng.random(counts.shape) * counts


def element_by_element(mesh: MeshCase, axes: tuple[str, ...], weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean that every device holds, found by a walk over all elements of its participants."""
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


@oracles
@given(place=places(), n=st.integers(0, 4), share=st.sampled_from([0.0, 1.0, 0.5, 0.9]))
def test_the_mean_is_that_of_all_elements(oracle: WeightedMean, place: Any, n: int, share: float) -> None:
    """The oracle's mean, its differences and its adjoint are those of a walk over the elements.

    What does not count is NaN, and has a cotangent of zero.
    """
    mesh, axes, seed = place
    values, tangent, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in enumerate([(n,), (n,), ()]))
    weights = weights_of(oracle, mesh, n, share, seed)
    values = np.where(weights == 0, np.nan, values)
    walk = functools.partial(element_by_element, mesh, axes, weights)
    np.testing.assert_allclose(oracle.value([values, weights], mesh, axes)[0], walk(values), rtol=1e-12, atol=1e-15)
    pushed = oracle.pushforward([values, weights], [tangent, None], mesh, axes)
    np.testing.assert_allclose(pushed[0], central_difference(walk, [values], [tangent], 1e-3), rtol=1e-9, atol=1e-9)
    pulled, none = oracle.pullback([values, weights], [ct], mesh, axes)
    assert none is None
    assert pulled is not None
    assert not pulled[weights == 0].any()
    assert math.isclose(inner(pushed, [ct]), inner([tangent], [pulled]), rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("weights", [np.ones((1, 3)), np.array([[1.0, -1.0]])], ids=["more", "negative"])
def test_the_oracle_refuses(weights: np.ndarray) -> None:
    """Weights of another shape, and a negative one; a mask of numbers."""
    values, mesh = np.ones((1, 2)), MeshCase(("dp",), (1,))
    with pytest.raises(ValueError, match=r"weights: \[1, \d\]: expected \[1, 2\], none of them negative"):
        weighted_mean.value([values, weights], mesh, ("dp",))
    with pytest.raises(ValueError, match=r"mask: float64\[1, \d\]: expected bool\[1, 2\]"):
        masked_mean.value([values, weights], mesh, ("dp",))


@forms
def test_wrong_arguments_are_refused(form: Any) -> None:
    """Values and weights that are not floating, a mask of numbers or another shape, and an axis that is not there."""
    mesh, axes = REVERSED
    x, name = np.zeros((2, 3, 2), np.float32), form.__name__
    argument, right, other = ("mask", x > 0, x) if form in MASKED else ("weights", x, x > 0)
    kind = "bool" if form in MASKED else "real floating-point numbers"
    for arguments, axis_name, message in (
        ((x > 0, right), axes, r"values='bool.*': expected an array of real floating-point numbers, on the mesh"),
        ((x, other), axes, rf"{argument}='{other.dtype}.*': expected an array of {kind}, on the mesh \(dp=2, tp=3\)"),
        ((x, right[..., :1]), axes, rf"{argument}='.*\[1\].*': expected an array of shape \(2,\), that of values"),
        ((x, right), ("tp", "ep"), r"axis_name=\('tp', 'ep'\): expected bound axis names"),
        ((x, right), ("tp", "tp"), r"axis_name=\('tp', 'tp'\): expected each mesh axis at most once"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *arguments)
