"""Strategies of meshes, axis tuples and participants: features that they draw; and how all strategies shrink."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.dtypes import as_dtype, is_float
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import (
    axis_names,
    axis_tuples,
    dtypes,
    factorisations,
    index_groups,
    meshes,
    permutations_of_participants,
    shapes,
    specs,
)
from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.drawn import TWO_BY_FOUR, TWO_BY_TWO, drawn, meshes_with, smallest

pytestmark = pytest.mark.either_end


# Meshes


@cache
def drawn_meshes() -> tuple[MeshCase, ...]:
    """500 draws of meshes on 8 devices."""
    return tuple(drawn(meshes()))


def test_every_factorisation_of_eight_appears() -> None:
    """Within 500 draws, 8 devices appear in every arrangement of one to four axes without one of size 1."""
    assert factorisations(8, max_axes=4) == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert set(factorisations(8, max_axes=4)) <= {mesh.sizes for mesh in drawn_meshes()}


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


# Axis tuples and what refers to their participants


@pytest.mark.lengthy
def test_axis_tuples_are_all_subsets_in_all_orders() -> None:
    """On two axes there are four axis tuples, and six ways to write them."""
    tuples = {("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")}
    assert set(drawn(axis_tuples(TWO_BY_FOUR))) == tuples
    assert set(drawn(axis_names(TWO_BY_FOUR))) == tuples | {"dp", "tp"}


def test_permutations_of_participants_are_partial_permutations() -> None:
    """No participant sends or receives twice; none, one and all of them send within 500 draws."""
    found = drawn(permutations_of_participants(4))
    for pairs in found:
        for side in zip(*pairs, strict=True):
            assert len(set(side)) == len(side)
            assert set(side) <= set(range(4))
    assert {len(pairs) for pairs in found} == set(range(5))
    for pairs in drawn(permutations_of_participants(40), 50):
        assert len(dict(pairs)) == len({destination for _, destination in pairs}) == len(pairs)


@pytest.mark.parametrize(("uneven", "lengths", "counts"), [(False, {1}, {1, 2, 3, 6}), (True, {1, 2, 3}, {1, 2, 3, 4})])
def test_index_groups_partition(uneven: bool, lengths: set[int], counts: set[int]) -> None:
    """Groups contain every participant once, and are of equal length unless they need not be; all numbers appear."""
    found = drawn(index_groups(6, uneven=uneven))
    assert all(sorted(index for group in groups for index in group) == list(range(6)) for groups in found)
    assert {len({len(group) for group in groups}) for groups in found} >= lengths
    assert {len(groups) for groups in found} >= counts
    assert uneven or {len({len(group) for group in groups}) for groups in found} == {1}


# Shrinking


def permuted(pair: tuple[MeshCase, tuple[str, ...]]) -> bool:
    """True for an order of two axes of several devices that is not the mesh's."""
    mesh, axes = pair
    real = tuple(name for name in axes if mesh.shape[name] > 1)
    return real != mesh.in_mesh_order(real)


def anything(value: object) -> bool:
    """True."""
    return True


MESHES, TUPLES, NAMES = meshes(available=8), axis_tuples(TWO_BY_TWO), axis_names(TWO_BY_TWO)
SHRUNK: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bool], Any]] = {
    "a mesh": (MESHES, anything, MeshCase(("dp",), (1,))),
    "two devices": (MESHES, lambda mesh: mesh.size >= 2, MeshCase(("dp",), (2,))),
    "five devices": (MESHES, lambda mesh: mesh.size >= 5, MeshCase(("dp",), (5,))),
    "two axes": (MESHES, lambda mesh: sum(n > 1 for n in mesh.sizes) >= 2, TWO_BY_TWO),
    "three axes": (
        MESHES, lambda mesh: sum(n > 1 for n in mesh.sizes) >= 3, MeshCase(("dp", "tp", "pp"), (2, 2, 2)),
    ),
    "an explicit axis": (
        MESHES, lambda mesh: "explicit" in mesh.axis_types, MeshCase(("dp",), (1,), axis_types=("explicit",)),
    ),
    "devices that descend": (
        MESHES, lambda mesh: mesh.devices[0] > mesh.devices[-1], MeshCase(("dp",), (2,), (1, 0)),
    ),
    "the fewest devices": (meshes(min_devices=3), anything, MeshCase(("dp",), (3,))),
    "an axis tuple": (TUPLES, anything, ("dp",)),
    "a tuple of two axes": (TUPLES, lambda axes: len(axes) == 2, ("dp", "tp")),
    "an axis name": (NAMES, anything, "dp"),
    "the name of an axis": (NAMES, lambda name: "tp" in name, "tp"),
    "out of mesh order": (meshes_with(axis_tuples), permuted, (TWO_BY_TWO, ("tp", "dp"))),
    "a permutation": (permutations_of_participants(4), anything, ()),
    "groups": (index_groups(4), anything, ((0, 1, 2, 3),)),
    "two groups": (index_groups(4), lambda groups: len(groups) == 2, ((0, 1), (2, 3))),
    "a spec": (specs(TWO_BY_TWO, 2), anything, ((), ())),
    "a spec of both axes": (specs(TWO_BY_TWO, 2, required=("dp", "tp")), anything, (("dp", "tp"), ())),
    "a spec of one axis": (specs(TWO_BY_TWO, 2, required=("tp",)), anything, (("tp",), ())),
    "a shape": (shapes(), anything, ()),
    "a shape of rank 2": (shapes(min_rank=2), anything, (1, 1)),
    "an empty shape": (shapes(), lambda shape: 0 in shape, (0,)),
    "a dtype": (dtypes(), anything, "float32"),
    "a dtype with gradients": (dtypes(floating=True), anything, "float32"),
    "a wide dtype": (dtypes(wide=True), anything, "float32"),
    "no float": (dtypes(), lambda name: not is_float(as_dtype(name)), "int32"),
}  # fmt: skip
"""Strategies, what a failure needs of them, and the simplest that has it."""

SLOW = {"two axes", "three axes", "an explicit axis", "devices that descend", "five devices", "out of mesh order"}


@pytest.mark.parametrize("need", marked(SHRUNK, {*SHRUNK} - SLOW))
def test_a_failure_is_shown_on_the_simplest_that_has_it(need: str) -> None:
    """One device before two, one axis before two, mesh order before permuted, replicated before sharded, float32."""
    strategy, condition, expected = SHRUNK[need]
    assert smallest(strategy, condition) == expected


def test_other_things_shrink_to_few() -> None:
    """A permutation with a pair shrinks to that pair alone, and longer sides than 2 to ones beside one of 3."""
    assert len(smallest(permutations_of_participants(4), lambda pairs: any(s != d for s, d in pairs))) == 1
    assert set(smallest(shapes(), lambda shape: any(n >= 3 for n in shape))) <= {1, 3}
