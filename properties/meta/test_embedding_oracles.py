"""Embedding lookup: the oracle once more, id by id."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles.embedding import embedding_lookup
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import small_meshes
from shardproof.properties.meta.blockwise import inner, participants


def operands_of(
    mesh: MeshCase, axes: tuple[str, ...], rows: int, tokens: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A table of different integers, and ids of which some are outside of it and many appear twice.

    The ids are those of all participants: along the axes, every device has the same.
    """
    v = rows * mesh.axis_size(axes)
    table = np.arange(1, 2 * rows * mesh.size + 1).reshape(*mesh.sizes, rows, 2)
    ids = np.random.default_rng(seed).integers(-2, v + 2, (*mesh.sizes, tokens))
    first = tuple(slice(1) if name in axes else slice(None) for name in mesh.axis_names)
    return table, np.broadcast_to(ids[first], ids.shape).copy()


@st.composite
def lookups(draw: st.DrawFn) -> tuple[MeshCase, tuple[str, ...], np.ndarray, np.ndarray]:
    """A mesh, some of its axes in any order, a table and ids.

    Shrinks towards one device with an empty table and no ids.
    """
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    rows, tokens, seed = draw(st.integers(0, 3)), draw(st.integers(0, 5)), draw(st.integers(0, 2**16))
    return mesh, axes, *operands_of(mesh, axes, rows, tokens, seed)


def id_by_id(mesh: MeshCase, axes: tuple[str, ...], table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """What every device holds, with the whole table written out as a list of rows."""
    result = np.zeros((*ids.shape, table.shape[-1]), table.dtype)
    for device in np.ndindex(*mesh.sizes):
        whole = dict(enumerate(row for participant in participants(mesh, axes, device) for row in table[participant]))
        for place, name in enumerate(ids[device].tolist()):
            if name in whole:
                result[(*device, place)] = whole[name]
    return result


@given(case=lookups())
def test_rows_are_those_that_ids_name(case: Any) -> None:
    """The oracle's rows are those that the ids name, and zeros where they name none."""
    mesh, axes, table, ids = case
    np.testing.assert_array_equal(embedding_lookup.value([table, ids], mesh, axes)[0], id_by_id(mesh, axes, table, ids))


@given(case=lookups())
def test_the_pullback_is_the_adjoint(case: Any) -> None:
    """<J d, c> = <d, J^T c> exactly, for ids that differ from device to device as well."""
    mesh, axes, table, ids = case
    ids = np.roll(ids, 1, axis=0) + np.arange(ids.size).reshape(ids.shape) % 2
    pushed = embedding_lookup.pushforward([table, ids], [table, None], mesh, axes)
    cotangent = np.arange(pushed[0].size).reshape(pushed[0].shape) % 7
    pulled, none = embedding_lookup.pullback([table, ids], [cotangent], mesh, axes)
    assert none is None
    assert pulled is not None
    assert pulled.shape == table.shape
    assert inner(pushed, [cotangent]) == inner([table], [pulled])
