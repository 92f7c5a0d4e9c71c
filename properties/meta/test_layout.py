"""Blocks of `oracles.layout` against JAX's, meshes of `oracles.mesh`, and their error texts."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardproof.oracles.layout import (
    ReplicaMismatch,
    device_name,
    nan_equal,
    shard,
    sharded_axes,
    spec_entries,
    unshard,
)
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import meshes, specs

SpecEntry = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Layout:
    """A global shape on a mesh under a spec that fits both."""

    mesh: MeshCase
    spec: tuple[SpecEntry, ...]
    shape: tuple[int, ...]

    @property
    def array(self) -> np.ndarray:
        """A global array whose elements all differ."""
        return np.arange(math.prod(self.shape), dtype=np.int32).reshape(self.shape)

    @property
    def replicated(self) -> tuple[str, ...]:
        """The mesh axes along which there is more than one replica."""
        return tuple(n for n, size in self.mesh.shape.items() if n not in sharded_axes(self.spec) and size > 1)


def spellings(axes: tuple[str, ...]) -> list[SpecEntry]:
    """All ways to write the axes of one dimension as an entry of a spec, the shortest first."""
    plain: dict[int, list[SpecEntry]] = {0: [None], 1: list(axes)}
    return [*plain.get(len(axes), []), axes]


@st.composite
def layouts(draw: st.DrawFn, *, min_side: int = 0, replicated: bool = False) -> Layout:
    """Layouts of arrays of up to three dimensions on at most eight devices, with blocks of sides from `min_side` on.

    If `replicated`, at least one axis of several devices splits nothing. Shrinks towards a scalar on one device.
    """
    mesh = draw(meshes(min_devices=2 if replicated else 1, explicit=False))
    whole = draw(st.sampled_from(mesh.longer(mesh.axis_names))) if replicated else None
    allowed = [name for name in mesh.axis_names if name != whole]
    entries = draw(specs(mesh, draw(st.integers(0, 3)), allowed=allowed))
    shape = tuple(mesh.axis_size(axes) * draw(st.integers(min_side, 3)) for axes in entries)
    spec = [draw(st.sampled_from(spellings(axes))) for axes in entries]
    while spec and not spec[-1] and draw(st.booleans()):
        spec.pop()
    return Layout(mesh, tuple(spec), shape)


@pytest.mark.needs_devices(8)
@given(layout=layouts())
def test_shard_is_what_jax_puts_on_each_device(layout: Layout) -> None:
    """Every device's block is the shard that `jax.device_put` places there."""
    devices = [jax.devices()[number] for number in layout.mesh.devices]
    mesh = Mesh(np.array(devices).reshape(layout.mesh.sizes), layout.mesh.axis_names)
    placed = jax.device_put(layout.array, NamedSharding(mesh, PartitionSpec(*layout.spec)))
    blocks = shard(layout.array, layout.mesh, layout.spec)
    coordinates = dict(zip(devices, np.ndindex(*layout.mesh.sizes), strict=True))
    for held in placed.addressable_shards:
        np.testing.assert_array_equal(blocks[coordinates[held.device]], np.asarray(held.data), strict=True)


@given(layout=layouts())
def test_unshard_inverts_shard(layout: Layout) -> None:
    """`unshard` inverts `shard` bit for bit."""
    blocks = shard(layout.array, layout.mesh, layout.spec)
    np.testing.assert_array_equal(unshard(blocks, layout.mesh, layout.spec), layout.array, strict=True)


@given(layout=layouts(min_side=1, replicated=True), data=st.data())
def test_a_replica_that_differs_is_named(layout: Layout, data: st.DataObject) -> None:
    """A replica with one changed element is named with the device that it should equal."""
    blocks = shard(layout.array, layout.mesh, layout.spec).copy()
    names = layout.mesh.axis_names
    away = data.draw(st.sampled_from(layout.replicated), label="an axis along which the replica is not the first")
    where = tuple(
        data.draw(st.integers(int(name == away), size - 1), label=name) for name, size in layout.mesh.shape.items()
    )
    origin = tuple(i if n in sharded_axes(layout.spec) else 0 for n, i in zip(names, where, strict=True))
    element = tuple(data.draw(st.integers(0, size - 1), label="element") for size in blocks[where].shape)
    blocks[(*where, *element)] += 1
    with pytest.raises(ReplicaMismatch) as caught:
        unshard(blocks, layout.mesh, layout.spec)
    assert str(caught.value).endswith(
        f"device {device_name(layout.mesh, where)} does not hold what {device_name(layout.mesh, origin)} holds"
    )


def test_replicas_with_nans_agree() -> None:
    """A NaN equals its replicas and differs from every number."""
    mesh = MeshCase(("dp",), (2,))
    blocks = np.array([[np.nan, 1.0], [np.nan, 1.0]], np.float32)
    assert nan_equal(blocks[0], blocks[1]).all()
    np.testing.assert_array_equal(unshard(blocks, mesh, (None,)), blocks[0])
    blocks[1, 0] = 0.0
    with pytest.raises(ReplicaMismatch):
        unshard(blocks, mesh, (None,))


GRID = MeshCase(("dp", "tp"), (2, 4))
REVERSED = MeshCase(("dp", "tp"), (1, 2), (1, 0), ("auto", "explicit"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: spec_entries(("dp", ("tp", "dp")), 2, GRID),
            "spec=(('dp',), ('tp', 'dp')): expected each mesh axis at most once, on the mesh (dp=2, tp=4)",
        ),
        (lambda: shard(np.zeros(8), GRID, ("ep",)), "spec=(('ep',),): 'ep' is not an axis of the mesh (dp=2, tp=4)"),
        (
            lambda: shard(np.zeros((2, 3)), REVERSED, (None, "tp")),
            (
                "shape=(2, 3): dimension 1 of size 3 does not divide into the 2 parts of ('tp',) "
                "on the mesh (dp=1, tp=2) [devices 1,0] [explicit tp]"
            ),
        ),
        (
            lambda: unshard(np.zeros((2, 3, 4)), GRID, ("dp",)),
            "blocks.shape=(2, 3, 4): expected it to begin with (2, 4), the mesh (dp=2, tp=4)",
        ),
        (
            lambda: MeshCase(("dp", "dp"), (2, 4)),
            "axis_names=('dp', 'dp') and sizes=(2, 4): expected distinct names, each with one size",
        ),
        (
            lambda: MeshCase(("dp", "tp"), (1, 2), (3, 3)),
            "devices=(3, 3): expected 2 distinct device numbers for the mesh {'dp': 1, 'tp': 2}",
        ),
        (
            lambda: MeshCase(("dp",), (2,), axis_types=("manual",)),
            "axis_types=('manual',): expected one of ('auto', 'explicit') for each of ('dp',)",
        ),
    ],
    ids=["repeated", "unknown", "indivisible", "other mesh", "name", "device", "axis type"],
)
def test_refusals_name_argument_value_and_expectation(call: Callable[[], Any], message: str) -> None:
    """A spec or mesh that is not possible is refused with the argument, its value and what was expected."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (MeshCase(("dp",), (1,)), "(dp=1)"),
        (GRID, "(dp=2, tp=4)"),
        (REVERSED, "(dp=1, tp=2) [devices 1,0] [explicit tp]"),
    ],
    ids=str,
)
def test_a_mesh_prints_what_is_not_plain_about_it(mesh: MeshCase, text: str) -> None:
    """A mesh prints as its axes and sizes, and its device order and axis types where they are not the default."""
    assert str(mesh) == text
    assert mesh.permuted == ("devices" in text)
