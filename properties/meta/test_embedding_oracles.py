"""Embedding lookup: the oracle once more id by id, and both implementations against it."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.impl.embedding import embedding_lookup as added_embedding_lookup
from shardproof.impl.embedding import gathered_embedding_lookup
from shardproof.oracles.embedding import embedding_lookup
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import small_meshes
from shardproof.properties.meta.blockwise import derivatives, inner, participants, simulated

FORMS = (added_embedding_lookup, gathered_embedding_lookup)
REVERSED = (MeshCase(("dp", "tp"), (2, 3)), ("tp", "dp"))


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


def pulled_back(table: np.ndarray, ids: np.ndarray, ct: np.ndarray, mesh: MeshCase, axes: Any) -> np.ndarray:
    """The oracle's cotangent of the table."""
    return np.asarray(embedding_lookup.pullback([table, ids], [ct], mesh, axes)[0])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_ids_narrower_than_the_table(form: Any) -> None:
    """The last rows that int8 can name are found in a table of which it cannot count the rows."""
    mesh, axes = REVERSED
    table, _ = operands_of(mesh, axes, 50, 0)
    ids = np.broadcast_to(np.array([127, 126, -128, -1, 100, 0], np.int8), (2, 3, 6))
    expected = embedding_lookup.value([table, ids], mesh, axes)[0]
    found = simulated(functools.partial(form, axis_name=axes), mesh, table.astype(np.float32), ids)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_duplicates_are_rounded_once(form: Any) -> None:
    """The cotangents of an id that appears often are added up in float32 before they are rounded to bfloat16."""
    mesh, axes = REVERSED
    table = np.zeros((2, 3, 2, 1), ml_dtypes.bfloat16)
    ids, cotangent = np.full((2, 3, 301), 4), np.zeros((2, 3, 301, 1), ml_dtypes.bfloat16)
    cotangent[0, 0] = 1
    expected = pulled_back(table, ids, cotangent, mesh, axes).astype(ml_dtypes.bfloat16)
    _, pulled = derivatives(functools.partial(form, axis_name=axes), mesh, [table], [table], cotangent, [ids])
    np.testing.assert_array_equal(pulled[0], expected, strict=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_what_is_refused(form: Any) -> None:
    """A table without two dimensions, ids that are no integers, and an axis that is not there."""
    mesh, axes = REVERSED
    table, ids, name = np.zeros((2, 3, 2, 1), np.float32), np.zeros((2, 3, 2), np.int32), form.__name__
    for arguments, axis_name, message in (
        ((table, table), axes, rf"{name}: ids='float32.*': expected an array of integers, on the mesh \(dp=2, tp=3\)"),
        ((table, ids > 0), axes, rf"{name}: ids='bool.*': expected an array of integers"),
        ((ids, ids), axes, rf"{name}: table='int32\[2\].*': expected an array of 2 dimensions, on the mesh"),
        ((table, ids), (), rf"{name}: axis_name=\(\): expected at least one mesh axis"),
    ):
        with pytest.raises(ValueError, match=message):
            simulated(functools.partial(form, axis_name=axis_name), mesh, *arguments)
