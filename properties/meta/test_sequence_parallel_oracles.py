"""The perceptron over a sharded sequence: its oracles once more, position by position."""

import functools
import math

import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sequence_parallel import normalised_sequence_parallel_mlp as normalised_oracle
from shardproof.oracles.sequence_parallel import sequence_parallel_mlp as oracle
from shardproof.properties.meta.blockwise import PLACES, check_oracle, floats, participants

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
    check_oracle(oracle, whole, mesh, axes, operands, tangents, ct)


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
    check_oracle(normalised_oracle, whole, mesh, axes, operands, tangents, ct, epsilon=EPSILON)
