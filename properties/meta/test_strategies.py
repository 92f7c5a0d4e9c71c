"""The strategies themselves: what they can draw, how soon, and what it shrinks to."""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.dtypes import exact_limit, is_float, is_integer, is_signed, wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import KINDS, Data, generate
from shardproof.properties.cases.strategies import (
    AXIS_NAMES,
    arrays,
    axis_names,
    axis_tuples,
    data_sets,
    dtypes,
    factorisations,
    index_groups,
    meshes,
    permutations_of_members,
    shapes,
    specs,
)
from shardproof.properties.cases.strategies.dtypes import ALL, WIDE, WIDE_IN, as_dtype
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.counting.bounds import members, nothing_must_move
from shardproof.properties.laws.law import LAWS, Law
from shardproof.properties.programs.implementations import BUILT_IN, Implementation
from shardproof.properties.reports.checking import user_implementation

pytestmark = pytest.mark.either_end

T = TypeVar("T")
EXAMPLES = 500
TWO_BY_TWO = MeshCase(("dp", "tp"), (2, 2))
TWO_BY_FOUR = MeshCase(("dp", "tp"), (2, 4))
NUMBERS = tuple(name for name in ALL if name != "bool")
# one seed for all, so that what appears within 500 draws does so in every run
FIXED = settings(
    database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES
)


def drawn(strategy: st.SearchStrategy[T], count: int = EXAMPLES) -> list[T]:
    """The first `count` draws, which are the same in every run."""
    values: list[T] = []

    @settings(FIXED, max_examples=count, phases=[Phase.generate])
    @given(strategy)
    def collect(value: T) -> None:
        values.append(value)

    collect()
    return values


def smallest(strategy: st.SearchStrategy[T], condition: Callable[[T], bool] = lambda value: True) -> T:
    """What the strategy shrinks to under a condition."""
    return find(strategy, condition, settings=settings(FIXED, max_examples=10 * EXAMPLES))


def one(strategy: st.SearchStrategy[T], condition: Callable[[T], bool]) -> T:
    """Something that the strategy draws under a condition, as it is drawn."""
    return find(strategy, condition, settings=settings(FIXED, max_examples=40 * EXAMPLES, phases=[Phase.generate]))


def possible(strategy: st.SearchStrategy[Any], value: object) -> bool:
    """Whether the strategy draws a value."""
    return bool(one(strategy, lambda found: found == value) == value)


def meshes_with(
    draw_more: Callable[[MeshCase], st.SearchStrategy[T]], **bounds: Any
) -> st.SearchStrategy[tuple[MeshCase, T]]:
    """Meshes, each with something drawn for it."""
    return meshes(**bounds).flatmap(lambda mesh: st.tuples(st.just(mesh), draw_more(mesh)))


# Meshes


@cache
def drawn_meshes() -> tuple[MeshCase, ...]:
    """500 draws of meshes on 8 devices."""
    return tuple(drawn(meshes()))


def test_every_factorisation_of_eight_appears() -> None:
    """Within 500 draws, 8 devices appear in every arrangement of one to four axes without one of size 1."""
    assert factorisations(8, max_axes=4) == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert set(factorisations(8, max_axes=4)) <= {mesh.sizes for mesh in drawn_meshes()}


def test_sixteen_devices_appear_in_four_axes() -> None:
    """Four axes without one of size 1 need 16 devices, and appear where there are as many."""
    found = {mesh.sizes for mesh in drawn(meshes(max_devices=16))}
    assert set(factorisations(16, max_axes=4)) <= found
    assert (2, 2, 2, 2) in found


FEATURES: dict[str, Callable[[MeshCase], bool]] = {
    "one device": lambda mesh: mesh.size == 1,
    "four axes": lambda mesh: len(mesh.sizes) == 4,
    "an axis of size 1 beside another": lambda mesh: 1 in mesh.sizes and mesh.size > 1,
    "devices in another order": lambda mesh: sorted(mesh.devices) == list(range(8)) and mesh.permuted,
    "devices in order": lambda mesh: mesh.size == 8 and not mesh.permuted,
    "fewer devices than there are": lambda mesh: mesh.size < 8,
    "other devices than the first": lambda mesh: max(mesh.devices) >= mesh.size,
    "all axes automatic": lambda mesh: set(mesh.axis_types) == {"auto"},
    "all axes explicit": lambda mesh: set(mesh.axis_types) == {"explicit"},
    "both axis types": lambda mesh: len(set(mesh.axis_types)) == 2,
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_of_a_mesh_appears(feature: str) -> None:
    """Within 500 draws of meshes on 8 devices, each feature appears at least five times."""
    assert sum(map(FEATURES[feature], drawn_meshes())) >= 5


def test_every_number_of_devices_and_every_name_appears() -> None:
    """Within 500 draws, meshes of 1 to 8 devices appear, and each axis name at each end of a mesh."""
    found = drawn_meshes()
    assert {mesh.size for mesh in found} == set(range(1, 9))
    assert {mesh.axis_names[0] for mesh in found} == {mesh.axis_names[-1] for mesh in found} == set(AXIS_NAMES)


@given(
    lowest=st.integers(1, 6), more=st.integers(0, 6), spare=st.integers(0, 4), axes=st.integers(1, 4), data=st.data()
)
@settings(max_examples=100, deadline=None)
def test_meshes_keep_their_bounds(lowest: int, more: int, spare: int, axes: int, data: st.DataObject) -> None:
    """A mesh has a number of devices and axes within the bounds, devices that there are, and the types asked for."""
    most, pool = lowest + more, lowest + more + spare
    mesh = data.draw(meshes(min_devices=lowest, max_devices=most, available=pool, max_axes=axes, explicit=False))
    assert lowest <= mesh.size <= most
    assert len(mesh.sizes) <= axes
    assert max(mesh.devices) < pool
    assert set(mesh.axis_types) == {"auto"}


SHRUNK_MESHES: dict[str, tuple[Callable[[MeshCase], bool], MeshCase]] = {
    "any": (lambda mesh: True, MeshCase(("dp",), (1,))),
    "two devices": (lambda mesh: mesh.size >= 2, MeshCase(("dp",), (2,))),
    "five devices": (lambda mesh: mesh.size >= 5, MeshCase(("dp",), (5,))),
    "two axes": (lambda mesh: sum(n > 1 for n in mesh.sizes) >= 2, TWO_BY_TWO),
    "three axes": (lambda mesh: sum(n > 1 for n in mesh.sizes) >= 3, MeshCase(("dp", "tp", "pp"), (2, 2, 2))),
    "an explicit axis": (lambda mesh: "explicit" in mesh.axis_types, MeshCase(("dp",), (1,), axis_types=("explicit",))),
    "devices that descend": (lambda mesh: mesh.devices[0] > mesh.devices[-1], MeshCase(("dp",), (2,), (1, 0))),
}


@pytest.mark.parametrize("need", SHRUNK_MESHES)
def test_meshes_shrink(need: str) -> None:
    """A failure that needs something of a mesh is shown on the simplest mesh that has it."""
    condition, expected = SHRUNK_MESHES[need]
    assert smallest(meshes(available=8), condition) == expected


def test_meshes_shrink_to_the_fewest_devices_allowed() -> None:
    """Meshes shrink to one axis `dp` of `min_devices` devices."""
    assert smallest(meshes(min_devices=3)) == MeshCase(("dp",), (3,))


@pytest.mark.parametrize(
    "sample",
    [
        MeshCase(("dp",), (2,)),
        MeshCase(("tp", "dp"), (2, 4)),
        MeshCase(("dp", "tp"), (1, 2), (3, 0)),
        MeshCase(("sp", "ep"), (2, 3), axis_types=("explicit", "auto")),
    ],
    ids=str,
)
@pytest.mark.parametrize("part", ["axis_names", "sizes", "devices", "axis_types"])
def test_sample_meshes_are_possible(sample: MeshCase, part: str) -> None:
    """Each part of each mesh in the docstring is drawn; the parts are drawn independently."""
    count = sample.size
    same_size = meshes(min_devices=count, max_devices=count, available=4 if count == 2 else count)
    assert possible(same_size.map(lambda mesh: getattr(mesh, part)), getattr(sample, part))


@pytest.mark.parametrize(
    ("bounds", "texts"),
    [
        ({"min_devices": 0}, ["min_devices=0", "max_devices=8", "max_axes=4", "available=8"]),
        ({"min_devices": 5, "max_devices": 4}, ["min_devices=5", "max_devices=4"]),
        ({"max_devices": 8, "available": 4}, ["max_devices=8", "available=4"]),
        ({"max_axes": 0}, ["max_axes=0", "at least one axis"]),
    ],
)
def test_meshes_refuse_impossible_bounds(bounds: dict[str, Any], texts: Sequence[str]) -> None:
    """Bounds that leave no mesh are refused with their names and values."""
    with pytest.raises(InvalidArgument, match=r"^meshes: ") as caught:
        drawn(meshes(**bounds), 1)
    assert all(text in str(caught.value) for text in texts)


# Axis tuples and what refers to their members


def test_both_orders_of_two_axes_appear() -> None:
    """Within 500 draws of a mesh and an axis tuple, two real axes appear in mesh order and in the other."""
    found = [
        axes == mesh.in_mesh_order(axes)
        for mesh, axes in drawn(meshes_with(axis_tuples))
        if len(axes) == 2 and all(mesh.shape[name] > 1 for name in axes)
    ]
    assert set(found) == {True, False}


def test_axis_tuples_are_all_subsets_in_all_orders() -> None:
    """On two axes there are four axis tuples, and six ways to write them."""
    tuples = {("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")}
    assert set(drawn(axis_tuples(TWO_BY_FOUR))) == tuples
    assert set(drawn(axis_names(TWO_BY_FOUR))) == tuples | {"dp", "tp"}


def test_axis_tuples_shrink() -> None:
    """Axis tuples shrink to the first axis, two axes to mesh order, and an axis name to a bare one."""
    assert smallest(axis_tuples(TWO_BY_TWO)) == ("dp",)
    assert smallest(axis_tuples(TWO_BY_TWO), lambda axes: len(axes) == 2) == ("dp", "tp")
    assert smallest(axis_names(TWO_BY_TWO)) == "dp"
    assert smallest(axis_names(TWO_BY_TWO), lambda name: "tp" in name) == "tp"


def test_a_failure_out_of_mesh_order_shrinks() -> None:
    """A failure that needs an order of two real axes other than the mesh's is shown on (dp=2, tp=2)."""

    def permuted(pair: tuple[MeshCase, tuple[str, ...]]) -> bool:
        mesh, axes = pair
        real = tuple(name for name in axes if mesh.shape[name] > 1)
        return real != mesh.in_mesh_order(real)

    assert smallest(meshes_with(axis_tuples), permuted) == (TWO_BY_TWO, ("tp", "dp"))


def test_permutations_of_members_are_partial_permutations() -> None:
    """No member sends or receives twice; none, one and all of them send within 500 draws."""
    found = drawn(permutations_of_members(4))
    for pairs in found:
        for side in zip(*pairs, strict=True):
            assert len(set(side)) == len(side)
            assert set(side) <= set(range(4))
    assert {len(pairs) for pairs in found} == set(range(5))
    for pairs in drawn(permutations_of_members(40), 50):
        assert len(dict(pairs)) == len({destination for _, destination in pairs}) == len(pairs)


@pytest.mark.parametrize("sample", [(), ((0, 1),), ((0, 2), (1, 0), (3, 3))], ids=str)
def test_sample_permutations_are_possible(sample: object) -> None:
    """Each permutation in the docstring is drawn for 4 members."""
    assert possible(permutations_of_members(4), sample)


def test_permutations_of_members_shrink() -> None:
    """A permutation shrinks to no pair, and one with a pair to that pair alone."""
    assert smallest(permutations_of_members(4)) == ()
    assert len(smallest(permutations_of_members(4), lambda pairs: any(s != d for s, d in pairs))) == 1


def test_index_groups_partition() -> None:
    """Groups are of equal length and contain every member once; all lengths appear."""
    found = drawn(index_groups(6))
    for groups in found:
        assert sorted(index for group in groups for index in group) == list(range(6))
        assert len({len(group) for group in groups}) == 1
    assert {len(groups) for groups in found} == {1, 2, 3, 6}


@pytest.mark.parametrize("sample", [((0, 1, 2, 3),), ((0, 1), (2, 3)), ((3, 0), (1, 2))], ids=str)
def test_sample_groups_are_possible(sample: object) -> None:
    """Each partition in the docstring is drawn for 4 members."""
    assert possible(index_groups(4), sample)


def test_index_groups_shrink() -> None:
    """Groups shrink to one in order, and two of them to two in order."""
    assert smallest(index_groups(4)) == ((0, 1, 2, 3),)
    assert smallest(index_groups(4), lambda groups: len(groups) == 2) == ((0, 1), (2, 3))


# Specs, shapes and dtypes


def test_a_reversed_tuple_in_a_spec_appears() -> None:
    """Within 500 draws of a mesh and a spec, an entry names two real axes out of mesh order, and another in it."""
    orders = {
        entry == mesh.in_mesh_order(entry)
        for mesh, spec in drawn(meshes_with(lambda mesh: specs(mesh, 2)))
        for entry in spec
        if len(entry) == 2 and all(mesh.shape[name] > 1 for name in entry)
    }
    assert orders == {True, False}


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


def test_specs_shrink() -> None:
    """Specs shrink to replicated, or to what is required, in mesh order on the first dimension."""
    assert smallest(specs(TWO_BY_TWO, 2)) == ((), ())
    assert smallest(specs(TWO_BY_TWO, 2, required=("dp", "tp"))) == (("dp", "tp"), ())
    assert smallest(specs(TWO_BY_TWO, 2, required=("tp",))) == (("tp",), ())


@pytest.mark.parametrize("sample", [((), ()), (("dp",), ()), ((), ("tp", "dp"))], ids=str)
def test_sample_specs_are_possible(sample: object) -> None:
    """Each spec in the docstring is drawn."""
    assert possible(specs(TWO_BY_FOUR, 2), sample)


def test_specs_refuse_a_required_axis_without_a_dimension() -> None:
    """An axis cannot shard an array of rank 0: the message names both."""
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


def test_shapes_shrink() -> None:
    """Shapes shrink to `min_rank` ones, an empty one to a single empty side, and other sides to 1."""
    assert smallest(shapes()) == ()
    assert smallest(shapes(min_rank=2)) == (1, 1)
    assert smallest(shapes(), lambda shape: 0 in shape) == (0,)
    assert set(smallest(shapes(), lambda shape: any(n >= 3 for n in shape))) <= {1, 3}


@pytest.mark.parametrize("sample", [(), (2,), (3, 1), (1, 2, 0, 3)], ids=str)
def test_sample_shapes_are_possible(sample: tuple[int, ...]) -> None:
    """Each shape in the docstring is drawn."""
    assert possible(shapes(min_rank=len(sample), max_rank=len(sample), max_side=3), sample)


@pytest.mark.parametrize(
    ("bounds", "texts"),
    [
        ({"min_rank": 3, "max_rank": 2}, ["min_rank=3", "max_rank=2"]),
        ({"min_rank": -1}, ["min_rank=-1"]),
        ({"min_side": 5}, ["min_side=5", "max_side=4"]),
    ],
)
def test_shapes_refuse_empty_ranges(bounds: dict[str, Any], texts: Sequence[str]) -> None:
    """A maximum below its minimum is refused with the names and values of both."""
    with pytest.raises(InvalidArgument, match=r"^shapes: .*: empty range") as caught:
        drawn(shapes(**bounds), 1)
    assert all(text in str(caught.value) for text in texts)


def test_every_dtype_appears() -> None:
    """Within 500 draws, every dtype appears, and with each restriction all that it leaves."""
    assert set(drawn(dtypes())) == set(ALL)
    assert set(drawn(dtypes(floating=True))) == {name for name in ALL if is_float(as_dtype(name))}
    assert set(drawn(dtypes(numeric=True))) == set(NUMBERS)
    assert set(drawn(dtypes(ordered=True))) == set(ALL) - {"complex64"}


def test_wide_dtypes_are_rare_and_asked_for() -> None:
    """64-bit dtypes appear where they are served, all of them, about once in `WIDE_IN` draws."""
    found = drawn(dtypes(wide=True), 2000)
    assert set(found) == {*ALL, *WIDE}
    assert 0.4 < WIDE_IN * sum(name in WIDE for name in found) / len(found) < 2
    assert "int64" not in drawn(dtypes(wide=True, wrapping=False))
    assert smallest(dtypes(wide=True)) == "float32"


def test_dtypes_hold_the_sums_asked_for() -> None:
    """A dtype that is drawn for a number of terms holds their sum exactly, or wraps around if that is allowed."""
    assert set(drawn(dtypes(floating=True, terms=17))).isdisjoint({"float8_e4m3fn", "float8_e5m2"})
    assert "int4" in drawn(dtypes(terms=8))
    assert set(drawn(dtypes(terms=8, wrapping=False))).isdisjoint({"int4", "bool"})


def test_dtypes_shrink_to_float32() -> None:
    """Dtypes shrink to float32, those without floats excepted."""
    assert smallest(dtypes()) == "float32"
    assert smallest(dtypes(floating=True)) == "float32"
    assert smallest(dtypes(), lambda name: not is_float(as_dtype(name))) == "int32"


@pytest.mark.parametrize("name", ["float31", "int2", ""])
def test_unknown_dtypes_are_refused(name: str) -> None:
    """A name that is not drawn is refused, with the names that are."""
    with pytest.raises(ValueError, match=re.escape(f"dtype={name!r}: expected one of float32, int32")):
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


def test_arrays_are_of_the_kinds_asked_for() -> None:
    """Arrays are those of the data sets of the kinds that are given, and shrink to the first kind and seed."""
    shrunk = smallest(arrays((2, 3), "float32", kinds=("distinct", "real")))
    assert (shrunk == np.arange(6).reshape(2, 3)).all()
    assert any((array != np.round(array)).any() for array in drawn(arrays((2, 3), "float32"), 50))


def test_an_unknown_kind_is_refused() -> None:
    """A kind of data that is not one is refused, with those that are."""
    with pytest.raises(ValueError, match=re.escape("kind='random': expected one of exact, distinct, real")):
        Data("random", 0)


@pytest.mark.parametrize("dtype", ALL)
def test_data_sets_shrink_to_the_first_seed(dtype: str) -> None:
    """Data sets shrink to the first seed, are as many as asked for, of every kind that suits, and all different."""
    sets = smallest(data_sets(dtype, count=7))
    assert sets[0] == Data("distinct", 0)
    assert len(set(sets)) == len(sets) == 7
    assert {d.kind for d in sets} == (
        set(KINDS) - {"partial"} if is_float(as_dtype(dtype)) else {"exact", "distinct", "special"}
    )


# Cases


def one_of_each_contract(count: int) -> dict[str, list[Case]]:
    """The first draws of the law of values for an implementation of every contract that claims all it can."""
    found = {contract: user_implementation(contract, print, ["all"]) for contract in CONTRACTS}
    return {contract: drawn(LAWS["value"].cases(own, Scope()), count) for contract, own in found.items()}


def skips(case: Case) -> bool:
    """Whether an axis of the mesh lies between those of the tuple, or of a role, and is none of it."""
    tuples = axes_of(case.roles).values() if case.roles else [case.axes]
    at = [sorted(map(case.mesh.axis_names.index, axes)) for axes in tuples if axes]
    return any(places[-1] - places[0] >= len(places) for places in at)


def test_what_is_trivial_is_rare_and_what_skips_an_axis_is_not() -> None:
    """Of 2,400 draws of all contracts, few move nothing, of each kind some; and one in ten skips an axis."""
    by_contract = one_of_each_contract(100)
    every = [case for cases in by_contract.values() for case in cases]
    trivial = [case for case in every if is_trivial(case)]
    assert 0.05 < len(trivial) / len(every) <= 0.125
    assert sum(map(skips, every)) / len(every) > 0.09
    for contract, cases in by_contract.items():
        assert sum(map(is_trivial, cases)) / len(cases) < 0.25, contract
        assert sum(map(skips, cases)) / len(cases) > 0.04, contract
    shifts = [case for case in by_contract["ring_shift"] if case.members > 1]
    for kind in (
        [case for case in trivial if case.mesh.size == 1],
        [case for case in trivial if case.mesh.size > 1 and members(case) == 1],
        [case for case in trivial if any(0 in o.block for o in case.operands)],
        [case for case in shifts if case.keywords["offset"] % case.members == 0],
    ):
        assert kind


def is_trivial(case: Case) -> bool:
    """Whether nothing must move although operands vary along the axis tuple."""
    return nothing_must_move(case) and any(set(case.axes) & o.placement.axes for o in case.operands)


def test_an_axis_is_skipped_on_two_devices_as_well() -> None:
    """Meshes with axes of size 1 around another are within reach where one is skipped."""
    case = one(LAWS["value"].cases(user_implementation("broadcast", print), Scope(sizes=(1, 2, 1))), skips)
    assert case.mesh.sizes == (1, 2, 1)


@pytest.mark.parametrize(
    ("law", "implementation"),
    [(law, one) for law in LAWS.values() for one in BUILT_IN if law.asks(one)],
    ids=lambda one: one.name if isinstance(one, Law) else str(one),
)
def test_a_case_survives_json(law: Law, implementation: Implementation) -> None:
    """Every case that a law draws for an implementation is equal, and hashes equal, after a trip through JSON.

    Those of the hand-written algorithms are among them: they are drawn by the same contracts.
    """
    for case in drawn(law.cases(implementation, Scope()), 15):
        again = Case.from_json(case.to_json())
        assert again == case
        assert hash(again) == hash(case)
        assert again.to_json() == case.to_json()


CASE = Case(
    contract="all_gather",
    mesh=MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2), ("auto", "explicit")),
    axis_name=("tp", "dp"),
    operands=(Operand((2, 1), "bfloat16", Placement((("tp",), ()), ("dp",))),),
    params=(("axis", -1), ("tiled", True), ("axis_index_groups", ((0, 1), (2, 3)))),
    data=(Data("distinct", 7),),
    chain=("partial_manual", "vmap", "scan"),
    manual=("dp", "tp"),
    tree=True,
    out=(Placement(((), ("tp", "dp"))),),
    forbidden="axis",
    roles=(("data", "dp"), ("model", ("tp",))),
)


def test_a_case_with_everything_survives_json() -> None:
    """No field of a case is lost on the way through JSON."""
    assert Case.from_json(CASE.to_json()) == CASE


def test_the_first_formats_are_read() -> None:
    """A file with one transformation, and before that one without roles, where one placement is every result's."""
    assert CASE.out is not None
    case = dataclasses.replace(CASE, chain=("partial_manual",))
    old = json.loads(case.to_json()) | {"format": 2, "around": "partial_manual"}
    del old["chain"]
    assert Case.from_json(json.dumps(old)) == case
    assert Case.from_json(json.dumps(old | {"around": "jit"})) == dataclasses.replace(case, chain=())
    old |= {"format": 1, "out": old["out"][0]}
    del old["roles"]
    assert Case.from_json(json.dumps(old)) == dataclasses.replace(case, roles=())


def changed(**fields: Any) -> str:
    """The JSON of a case with some fields replaced, or left out where the value is `...`."""
    record = {**json.loads(CASE.to_json()), **fields}
    return json.dumps({name: value for name, value in record.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^not JSON: "),
        (CASE.to_json()[:-40], "^not JSON: "),
        ("__import__('os').abort()", "^not JSON: "),
        ("[1, 2]", "^not a case: expected a JSON object with a 'format'"),
        ('{"name": "something else"}', "^not a case: expected a JSON object with a 'format'"),
        (changed(format=4), "^format=4: expected 1 to 3; another version wrote this case"),
        (changed(format="1"), "^format='1': expected 1 to 3"),
        (changed(roles=...), "^case: expected 'roles' in it"),
        (changed(roles=["dp"]), "^roles=\\['dp'\\]: expected an object"),
        (changed(mesh=...), "^case: expected 'mesh' in it"),
        (changed(mesh=[]), r"^mesh=\[\]: expected lists for axis_names, sizes"),
        (changed(mesh={**CASE.mesh.to_json(), "sizes": [2, "2"]}), "expected whole numbers for sizes and devices"),
        (changed(mesh={**CASE.mesh.to_json(), "devices": [0, 0, 1, 2]}), "expected 4 distinct device numbers"),
        (
            changed(operands=[{"block": [1], "dtype": "object", "placement": {"spec": [[]], "stacked": []}}]),
            "^dtype='object'",
        ),
        (changed(operands=7), "^operands=7: expected a list"),
        (changed(data=[{"kind": "pickle", "seed": 0}]), "^kind='pickle': expected one of exact"),
        (changed(params=[]), r"^params=\[\]: expected an object"),
        (changed(out=3), "^out=3: expected a list"),
    ],
)
def test_what_is_no_case_is_refused(text: str, message: str) -> None:
    """A damaged, a foreign and a newer file are refused with ValueError, which says what was expected."""
    with pytest.raises(ValueError, match=message):
        Case.from_json(text)
