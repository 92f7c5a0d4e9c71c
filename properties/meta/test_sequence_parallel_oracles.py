"""The perceptron over a sharded sequence: its oracles once more, position by position, and all forms against them."""

import functools
import math
from typing import Any

import numpy as np
import pytest

from shardproof.impl.sequence_parallel import (
    bidirectional_normalised_sequence_parallel_mlp,
    bidirectional_sequence_parallel_mlp,
    normalised_sequence_parallel_mlp,
    overlapped_normalised_sequence_parallel_mlp,
    overlapped_sequence_parallel_mlp,
    sequence_parallel_mlp,
)
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sequence_parallel import normalised_sequence_parallel_mlp as normalised_oracle
from shardproof.oracles.sequence_parallel import sequence_parallel_mlp as oracle
from shardproof.properties.meta import REVERSED
from shardproof.properties.meta.blockwise import (
    PLACES,
    central_difference,
    floats,
    inner,
    participants,
    simulated,
)

FORMS = (
    sequence_parallel_mlp,
    overlapped_sequence_parallel_mlp,
    bidirectional_sequence_parallel_mlp,
)
NORMALISED = (
    normalised_sequence_parallel_mlp,
    overlapped_normalised_sequence_parallel_mlp,
    bidirectional_normalised_sequence_parallel_mlp,
)
EPSILON = 0.25
OF_NORMALISED = ((2, 1, 2), (2,), (2, 3), (3, 2))


def position_by_position(
    mesh: MeshCase, axes: tuple[str, ...], x: np.ndarray, w_in: np.ndarray, w_out: np.ndarray
) -> np.ndarray:
    """Every result is what all participants' hidden values of its position give, one after the other."""
    result, (rows, batch, _) = np.zeros_like(x), x.shape[-3:]
    for device in np.ndindex(*mesh.sizes):
        for row, sequence in np.ndindex(rows, batch):
            for participant in participants(mesh, axes, device):
                hidden = [max(0.0, float(x[device][row, sequence] @ column)) for column in w_in[participant].T]
                result[device][row, sequence] += np.array(hidden) @ w_out[participant]
    return result


@pytest.mark.parametrize(("mesh", "axes"), PLACES, ids=str)
def test_an_mlp_is_that_of_each_position(mesh: MeshCase, axes: tuple[str, ...]) -> None:
    """The oracle's values, their differences and their adjoint are those of positions taken one by one."""
    shapes = ((2, 1, 2), (2, 3), (3, 2))
    operands, tangents = ([floats(mesh, *s, seed=i + j) for i, s in enumerate(shapes)] for j in (0, 3))
    ct, whole = floats(mesh, 2, 1, 2, seed=6), functools.partial(position_by_position, mesh, axes)
    # as everyone has the positions of all, devices along other axes have weights of their own, and so do these
    np.testing.assert_allclose(oracle.value(operands, mesh, axes)[0], whole(*operands), rtol=1e-10, atol=1e-12)
    pushed = oracle.pushforward(operands, tangents, mesh, axes)
    np.testing.assert_allclose(pushed[0], central_difference(whole, operands, tangents), rtol=1e-5, atol=1e-7)
    pulled = oracle.pullback(operands, [ct], mesh, axes)
    assert math.isclose(inner(pushed, [ct]), inner(tangents, pulled), rel_tol=1e-9, abs_tol=1e-9)


def normalised_one_by_one(
    mesh: MeshCase,
    axes: tuple[str, ...],
    x: np.ndarray,
    scale: np.ndarray,
    w_in: np.ndarray,
    w_out: np.ndarray,
) -> np.ndarray:
    """The perceptron of every position by its own root, feature by feature, with the scale of its device."""
    normalised = np.zeros_like(x)
    for *at, feature in np.ndindex(*x.shape):
        position = x[tuple(at)]
        root = math.sqrt(sum(float(value) ** 2 for value in position) / len(position) + EPSILON)
        normalised[(*at, feature)] = position[feature] / root * scale[(*at[: len(mesh.sizes)], feature)]
    return position_by_position(mesh, axes, normalised, w_in, w_out)


@pytest.mark.parametrize(("mesh", "axes"), PLACES, ids=str)
def test_a_normalised_mlp_is_that_of_each_position(mesh: MeshCase, axes: tuple[str, ...]) -> None:
    """The oracle's values, their differences and their adjoint are those of positions normalised one by one."""
    operands, tangents = ([floats(mesh, *s, seed=i + j) for i, s in enumerate(OF_NORMALISED)] for j in (0, 4))
    ct, whole = floats(mesh, 2, 1, 2, seed=8), functools.partial(normalised_one_by_one, mesh, axes)
    found = normalised_oracle.value(operands, mesh, axes, epsilon=EPSILON)[0]
    np.testing.assert_allclose(found, whole(*operands), rtol=1e-10, atol=1e-12)
    pushed = normalised_oracle.pushforward(operands, tangents, mesh, axes, epsilon=EPSILON)
    np.testing.assert_allclose(pushed[0], central_difference(whole, operands, tangents), rtol=1e-5, atol=1e-7)
    pulled = normalised_oracle.pullback(operands, [ct], mesh, axes, epsilon=EPSILON)
    assert math.isclose(inner(pushed, [ct]), inner(tangents, pulled), rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("form", NORMALISED, ids=lambda form: form.__name__)
def test_what_a_norm_refuses(form: Any) -> None:
    """Operands and an epsilon that it cannot use, by the name of the one at fault."""
    mesh, axes = REVERSED
    x, scale, w_in, w_out = (np.zeros((2, 3, *s), np.float32) for s in OF_NORMALISED)
    cases: list[tuple[tuple[np.ndarray, ...], float, str]] = [
        ((x[..., 0], scale, w_in, w_out), 0.0, "x='float32.*': expected an array of 3 dimensions"),
        (
            (x.astype(np.int32), scale, w_in, w_out),
            0.0,
            "x='int32.*': expected an array of real floating",
        ),
        ((x, scale[..., 1:], w_in, w_out), 0.0, "scale='float32.*': expected .*one number for each feature of x"),
        ((x, scale, w_in[:, :, 1:], w_out), 0.0, "w_in='1 rows': expected 2 rows"),
        ((x, scale, w_in, w_out[:, :, 1:]), 0.0, "w_out='2 rows': expected 3 rows"),
        ((x, scale, w_in, w_out), -1.0, "epsilon=-1.0: expected a finite number of at least 0"),
    ]
    for operands, epsilon, message in cases:
        with pytest.raises(ValueError, match=f"{form.__name__}: {message}"):
            simulated(functools.partial(form, axis_name=axes, epsilon=epsilon), mesh, *operands)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_refused(form: Any) -> None:
    """Operands that do not fit together, by the name of the one at fault."""
    mesh, axes = REVERSED
    x, w_in, w_out = (np.zeros((2, 3, *s), np.float32) for s in ((2, 1, 2), (2, 3), (3, 2)))
    cases: list[tuple[tuple[np.ndarray, ...], str]] = [
        ((x[..., 0], w_in, w_out), "x='float32.*': expected an array of 3 dimensions"),
        ((x, w_in[:, :, 1:], w_out), "w_in='1 rows': expected 2 rows"),
        ((x, w_in, w_out[:, :, 1:]), "w_out='2 rows': expected 3 rows"),
    ]
    for operands, message in cases:
        with pytest.raises(ValueError, match=f"{form.__name__}: {message}"):
            simulated(functools.partial(form, axis_name=axes), mesh, *operands)
