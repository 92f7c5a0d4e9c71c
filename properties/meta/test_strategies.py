"""Strategies of meshes, axis tuples and participants: features that they draw, and how they shrink."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import (
    axis_names,
    axis_tuples,
    factorisations,
    index_groups,
    meshes,
    permutations_of_participants,
)
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


SHRUNK_MESHES: dict[str, tuple[Callable[[MeshCase], bool], MeshCase]] = {
    "any": (lambda mesh: True, MeshCase(("dp",), (1,))),
    "two devices": (lambda mesh: mesh.size >= 2, MeshCase(("dp",), (2,))),
    "five devices": (lambda mesh: mesh.size >= 5, MeshCase(("dp",), (5,))),
    "two axes": (lambda mesh: sum(n > 1 for n in mesh.sizes) >= 2, TWO_BY_TWO),
    "three axes": (lambda mesh: sum(n > 1 for n in mesh.sizes) >= 3, MeshCase(("dp", "tp", "pp"), (2, 2, 2))),
    "an explicit axis": (lambda mesh: "explicit" in mesh.axis_types, MeshCase(("dp",), (1,), axis_types=("explicit",))),
    "devices that descend": (lambda mesh: mesh.devices[0] > mesh.devices[-1], MeshCase(("dp",), (2,), (1, 0))),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("need", SHRUNK_MESHES)
def test_meshes_shrink(need: str) -> None:
    """A failure that needs something of a mesh is shown on the simplest mesh that has it."""
    condition, expected = SHRUNK_MESHES[need]
    assert smallest(meshes(available=8), condition) == expected


def test_meshes_shrink_to_the_fewest_devices_allowed() -> None:
    """Meshes shrink to one axis `dp` of `min_devices` devices."""
    assert smallest(meshes(min_devices=3)) == MeshCase(("dp",), (3,))


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


def test_axis_tuples_shrink() -> None:
    """Axis tuples shrink to the first axis, two axes to mesh order, and an axis name to a bare one."""
    assert smallest(axis_tuples(TWO_BY_TWO)) == ("dp",)
    assert smallest(axis_tuples(TWO_BY_TWO), lambda axes: len(axes) == 2) == ("dp", "tp")
    assert smallest(axis_names(TWO_BY_TWO)) == "dp"
    assert smallest(axis_names(TWO_BY_TWO), lambda name: "tp" in name) == "tp"


@pytest.mark.lengthy
def test_a_failure_out_of_mesh_order_shrinks() -> None:
    """A failure that needs an order of two real axes other than the mesh's is shown on (dp=2, tp=2)."""

    def permuted(pair: tuple[MeshCase, tuple[str, ...]]) -> bool:
        mesh, axes = pair
        real = tuple(name for name in axes if mesh.shape[name] > 1)
        return real != mesh.in_mesh_order(real)

    assert smallest(meshes_with(axis_tuples), permuted) == (TWO_BY_TWO, ("tp", "dp"))


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


def test_permutations_of_participants_shrink() -> None:
    """A permutation shrinks to no pair, and one with a pair to that pair alone."""
    assert smallest(permutations_of_participants(4)) == ()
    assert len(smallest(permutations_of_participants(4), lambda pairs: any(s != d for s, d in pairs))) == 1


def test_index_groups_partition() -> None:
    """Groups are of equal length and contain every participant once; all lengths appear."""
    found = drawn(index_groups(6))
    for groups in found:
        assert sorted(index for group in groups for index in group) == list(range(6))
        assert len({len(group) for group in groups}) == 1
    assert {len(groups) for groups in found} == {1, 2, 3, 6}


def test_index_groups_shrink() -> None:
    """Groups shrink to one in order, and two of them to two in order."""
    assert smallest(index_groups(4)) == ((0, 1, 2, 3),)
    assert smallest(index_groups(4), lambda groups: len(groups) == 2) == ((0, 1), (2, 3))
