"""Global norm and RMS norm: the oracles once more on whole arrays."""

import functools
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles import norms
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import check_oracle, floats, participants


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
    whole = functools.partial(norms_of_wholes, mesh, axes)
    check_oracle(norms.global_norm, whole, mesh, axes, [x], [dx], ct, rtol=1e-6)


@given(place=places(), epsilon=st.sampled_from([0.0, 1e-6, 1.0]))
def test_the_rms_norm_is_that_of_whole_tokens(place: Any, epsilon: float) -> None:
    """The oracle's features, their differences and their adjoint are those of tokens with all of their features."""
    mesh, axes, seed = place
    x, scale = floats(mesh, 2, 3, seed=seed), floats(mesh, 3, seed=seed + 1)
    dx, dscale, ct = (floats(mesh, *shape, seed=seed + i) for i, shape in ((2, (2, 3)), (3, (3,)), (4, (2, 3))))
    whole = functools.partial(tokens_of_wholes, mesh, axes, epsilon)
    check_oracle(norms.rms_norm, whole, mesh, axes, [x, scale], [dx, dscale], ct, epsilon=epsilon)


def test_the_norm_of_zeros_has_no_slope() -> None:
    """At zero the global norm is 0 and so are both of its derivatives."""
    mesh, axes = REVERSED
    zeros, ones = np.zeros((2, 3, 4)), np.ones((2, 3, 4))
    assert not norms.global_norm.value([zeros], mesh, axes)[0].any()
    assert not norms.global_norm.pushforward([zeros], [ones], mesh, axes)[0].any()
    assert not norms.global_norm.pullback([zeros], [ones[..., 0]], mesh, axes)[0].any()
