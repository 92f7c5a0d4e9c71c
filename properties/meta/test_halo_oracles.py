"""Halo exchange: the oracle once more, row by row."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles.halo import halo_exchange
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import small_meshes
from shardproof.properties.meta.blockwise import (
    inner,
    participants,
)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[MeshCase, tuple[str, ...], np.ndarray, dict[str, int]]:
    """A mesh, some of its axes in any order, blocks of integers, and how much of the array is attached.

    Shrinks towards one device with an empty block.
    """
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    rows = st.integers(0, shape[axis] * mesh.axis_size(axes))
    blocks = np.arange(mesh.size * int(np.prod(shape))).reshape(*mesh.sizes, *shape)
    return mesh, axes, blocks, {"before": draw(rows), "after": draw(rows), "axis": axis}


def row_by_row(blocks: np.ndarray, mesh: MeshCase, axes: tuple[str, ...], before: int, after: int, axis: int) -> Any:
    """What every device holds, found by walking from its first row backwards and from its last one forwards."""
    at = axis % (blocks.ndim - len(mesh.sizes))
    received = []
    for device in np.ndindex(*mesh.sizes):
        ring = participants(mesh, axes, device)
        line = [row for participant in ring for row in np.moveaxis(blocks[participant], at, 0)]
        n = blocks[device].shape[at]
        start = ring.index(device) * n
        walked = [line[(start + step) % len(line)] for step in range(-before, n + after)]
        shape = np.moveaxis(blocks[device], at, 0).shape[1:]
        received.append(np.moveaxis(np.array(walked, blocks.dtype).reshape(len(walked), *shape), 0, at))
    return np.array(received).reshape(*mesh.sizes, *received[0].shape)


@given(exchange=exchanges())
def test_every_row_is_the_one_reached_by_walking(exchange: Any) -> None:
    """The oracle's rows are those met on a walk round the circle."""
    mesh, axes, blocks, keywords = exchange
    expected = row_by_row(blocks, mesh, axes, **keywords)
    np.testing.assert_array_equal(halo_exchange.value([blocks], mesh, axes, **keywords)[0], expected)


@given(exchange=exchanges())
def test_the_pullback_is_the_adjoint(exchange: Any) -> None:
    """<J d, c> = <d, J^T c> exactly, for different cotangents on all devices."""
    mesh, axes, blocks, keywords = exchange
    pushed = halo_exchange.pushforward([blocks], [blocks], mesh, axes, **keywords)
    cotangent = np.arange(pushed[0].size).reshape(pushed[0].shape) % 7
    pulled = halo_exchange.pullback([blocks], [cotangent], mesh, axes, **keywords)
    assert pulled[0].shape == blocks.shape
    assert inner(pushed, [cotangent]) == inner([blocks], pulled)
