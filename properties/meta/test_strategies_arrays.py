"""Strategies of specs, shapes, dtypes and data: features that they draw."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.dtypes import ALL, WIDE, as_dtype, exact_limit, is_float, is_integer, is_signed, wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.data import KINDS, Data, generate
from shardproof.properties.cases.strategies import data_sets, dtypes, kinds_of, shapes, specs
from shardproof.properties.meta.drawn import NUMBERS, TWO_BY_TWO, drawn, meshes_with, smallest

pytestmark = pytest.mark.either_end


# Specs, shapes and dtypes


@given(meshes_with(lambda mesh: st.tuples(st.integers(0, 3), st.sets(st.sampled_from(mesh.axis_names)))), st.data())
@settings(max_examples=100, deadline=None)
def test_specs_keep_to_what_is_allowed(drawn_for: tuple[MeshCase, tuple[int, set[str]]], data: st.DataObject) -> None:
    """A spec has an entry per dimension, names an axis at most once, all that are required and none not allowed."""
    mesh, (rank, allowed) = drawn_for
    required = data.draw(st.sets(st.sampled_from(sorted(allowed)))) if rank and allowed else set()
    spec = data.draw(specs(mesh, rank, required=required, allowed=allowed))
    named = [name for entry in spec for name in entry]
    assert len(spec) == rank
    assert len(set(named)) == len(named)
    assert required <= set(named) <= allowed


def test_specs_refuse_a_required_axis_without_a_dimension() -> None:
    """A required axis of an array of rank 0 is refused with both values."""
    with pytest.raises(InvalidArgument, match=re.escape("specs: rank=0, required=('dp',): expected a dimension")):
        drawn(specs(TWO_BY_TWO, 0, required=("dp",)), 1)


@given(
    rank=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    side=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_shapes_keep_their_bounds(rank: tuple[int, int], side: tuple[int, int], data: st.DataObject) -> None:
    """A shape has a rank and sides within the bounds."""
    shape = data.draw(shapes(min_rank=rank[0], max_rank=sum(rank), min_side=side[0], max_side=sum(side)))
    assert rank[0] <= len(shape) <= sum(rank)
    assert all(side[0] <= n <= sum(side) for n in shape)


def test_shapes_of_every_rank_and_empty_ones_appear() -> None:
    """Within 500 draws, every rank and every side appears, the empty one included."""
    found = drawn(shapes())
    assert {len(shape) for shape in found} == set(range(5))
    assert {n for shape in found for n in shape} == set(range(5))


def test_every_dtype_appears() -> None:
    """Every dtype is drawn within 500 draws, and with each restriction all that satisfy it."""
    assert set(drawn(dtypes())) == set(ALL)
    assert set(drawn(dtypes(floating=True))) == {name for name in ALL if is_float(as_dtype(name))}
    assert set(drawn(dtypes(numeric=True))) == set(NUMBERS)
    assert set(drawn(dtypes(ordered=True))) == set(ALL) - {"complex64"}


@pytest.mark.lengthy
def test_wide_dtypes_are_asked_for() -> None:
    """All 64-bit dtypes are drawn if they are served."""
    found = drawn(dtypes(wide=True), 2000)
    assert set(found) == {*ALL, *WIDE}
    assert "int64" not in drawn(dtypes(wide=True, wrapping=False))


def test_dtypes_hold_the_sums_asked_for() -> None:
    """A drawn dtype holds the sum of its terms exactly, or wraps around if that is allowed."""
    assert set(drawn(dtypes(floating=True, terms=17))).isdisjoint({"float8_e4m3fn", "float8_e5m2"})
    assert "int4" in drawn(dtypes(terms=8))
    assert set(drawn(dtypes(terms=8, wrapping=False))).isdisjoint({"int4", "bool"})


@pytest.mark.parametrize("name", ["float31", "int2", ""])
def test_unknown_dtypes_are_refused(name: str) -> None:
    """A name that is not drawn is refused, with the names that are."""
    with pytest.raises(ValueError, match=re.escape(f"dtype={name!r}: expected one of float32, bfloat16")):
        as_dtype(name)


# Data


def summed(values: np.ndarray) -> Any:
    """The sum in the values' own dtype, rounded or wrapped after every addition, first to last."""
    total = values[0]
    with np.errstate(over="ignore"):
        for value in values[1:]:
            total = np.asarray(total + value).astype(values.dtype)
    return total


@pytest.mark.parametrize("dtype", NUMBERS)
@given(terms=st.sampled_from((1, 2, 3, 8, 16)), seed=st.integers(0, 2**16), data=st.data())
@settings(max_examples=30, deadline=None)
def test_exact_data_sums_exactly_in_every_order(dtype: str, terms: int, seed: int, data: st.DataObject) -> None:
    """The sum of `terms` exact values has the same bits in every order, and is the true one unless integers wrap."""
    if dtype not in {n for n in ALL if exact_limit(as_dtype(n)) >= terms or is_integer(as_dtype(n))}:
        return
    values = generate(Data("exact", seed), (terms,), as_dtype(dtype), terms=terms)
    order = data.draw(st.permutations(range(terms)), label="order")
    true = values.astype(wide(values.dtype)).sum()
    assert values.dtype == as_dtype(dtype)
    assert summed(values[list(order)]) == summed(values) == np.asarray(true).astype(values.dtype)
    if is_float(values.dtype):
        assert summed(values).astype(wide(values.dtype)) == true


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_distinct_data_do_not_overflow_in_sums(dtype: str) -> None:
    """In any order the sum of the largest terms is finite."""
    for terms in (4, 128, 300):
        values = np.sort(generate(Data("distinct", 3), (4 * terms,), as_dtype(dtype), terms=terms).astype(np.float64))
        assert np.isfinite(values[-terms:].sum().astype(as_dtype(dtype)).astype(np.float64)), (dtype, terms)


@pytest.mark.parametrize("dtype", NUMBERS)
@given(seed=st.integers(0, 2**16), data=st.data())
@settings(max_examples=60, deadline=None)
def test_distinct_data_are_distinct(dtype: str, seed: int, data: st.DataObject) -> None:
    """All elements differ so long as the dtype has that many exact integers, and floats hold no others."""
    kind = as_dtype(dtype)
    limit = exact_limit(kind)
    enough = limit * (1 + is_signed(kind)) + 1
    sizes = st.integers(0, min(enough, 600)) | st.integers(max(0, min(limit, 3000) - 8), min(limit, 3000))
    size = data.draw(sizes, label="size")
    values = generate(Data("distinct", seed), (size,), kind)
    assert len(np.unique(values.astype(wide(kind)))) == size
    if is_float(kind):
        exact = values.astype(wide(kind))
        assert max(np.abs(exact.real).max(initial=0), np.abs(exact.imag).max(initial=0)) <= limit


@pytest.mark.parametrize("dtype", [name for name in ALL if is_float(as_dtype(name))])
def test_awkward_floats_are_there(dtype: str) -> None:
    """Special data of floats has negative zeros, and infinities where the dtype has them; NaN data has NaN."""
    kind = as_dtype(dtype)
    special = generate(Data("special", 0), (400,), kind).real.astype(np.float64)
    assert (np.signbit(special) & (special == 0)).any()
    if dtype != "float8_e4m3fn":  # finite: its infinities are NaN
        assert np.isposinf(special).any()
        assert np.isneginf(special).any()
    assert np.isnan(generate(Data("nan", 0), (100,), kind).astype(wide(kind))).any()


@pytest.mark.parametrize("dtype", [name for name in ALL if is_integer(as_dtype(name))])
def test_awkward_integers_are_there(dtype: str) -> None:
    """Special data of integers has both ends of the range."""
    info = ml_dtypes.iinfo(as_dtype(dtype))
    values = generate(Data("special", 0), (400,), as_dtype(dtype)).astype(np.int64)
    assert (values.min(), values.max()) == (info.min, info.max)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_data_are_the_same_every_time(kind: str, dtype: str) -> None:
    """A kind, a seed, a shape and a dtype give the same bits each time, and another seed gives others."""
    again = [generate(Data(kind, 5), (3, 40), as_dtype(dtype)) for _ in range(2)]
    assert again[0].tobytes() == again[1].tobytes()
    assert again[0].shape == (3, 40)
    assert again[0].dtype == as_dtype(dtype)
    assert again[0].tobytes() != generate(Data(kind, 6), (3, 40), as_dtype(dtype)).tobytes()


def test_an_unknown_kind_is_refused() -> None:
    """A kind of data that is not one is refused, with those that are."""
    with pytest.raises(ValueError, match=re.escape("kind='random': expected one of exact, distinct, real")):
        Data("random", 0)


@pytest.mark.parametrize("dtype", ALL)
def test_data_sets_shrink_to_the_first_seed(dtype: str) -> None:
    """Data sets shrink to the first seed, are as many as asked for, of every kind that suits, and all different."""
    sets = smallest(data_sets(kinds_of(dtype), count=7))
    assert sets[0] == Data("distinct", 0)
    assert len(set(sets)) == len(sets) == 7
    assert {d.kind for d in sets} == (
        set(KINDS) - {"partial", "zeros", "large"} if is_float(as_dtype(dtype)) else {"exact", "distinct", "special"}
    )
