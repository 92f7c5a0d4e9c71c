"""Parts of the cases of all contracts: a mesh within a scope, placements, sides and dtypes."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.chain import BATCH, SPMD, Chain, leaves_an_axis
from shardproof.properties.cases.strategies import data_sets, large_meshes, meshes, specs
from shardproof.properties.cases.strategies.making import Composite, integers, sampled
from shardproof.properties.cases.strategies.meshes import MAX_AXES, in_some_order, known_names
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.contract import Scope

AxisName = str | tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """The scope, the participants and the divisors of dimensions for which sizes are drawn."""

    scope: Scope
    participants: int  # of all axis tuples, or of the largest group
    parts: Mapping[str, int]  # of each dimension, by its name, how many parts its size is divided into


@dataclass(frozen=True)
class Drawn:
    """The sizes of a case, and the options that go with them."""

    sizes: dict[str, Any]  # of a part of each dimension; a tuple stands for as many dimensions, which nothing shards
    options: dict[str, Any] = field(default_factory=dict)
    # the dtypes of arguments, in place of those that are described
    dtypes: Mapping[str, str] = field(default_factory=dict)
    another: str = ""  # the dtype of a second array, with which the first one makes up a tree; empty: none


LEADING = "leading"
"""The name of further dimensions in front."""

MORE_STACKED = st.lists(st.integers(0, MAX_AXES - 1), max_size=MAX_AXES)
MORE_MANUAL = st.lists(st.integers(0, MAX_AXES - 1), max_size=1)
FLOATS = ("float32", "bfloat16", "float16")


def complete(draw: st.DrawFn, scope: Scope, case: Case, kinds: Sequence[str]) -> Case:
    """The case with a data set of each of `kinds`, and with manual axes under `partial_manual`.

    Operands vary along no other axes then.
    """
    if "partial_manual" in case.chain:
        manual = manual_axes(draw, case.mesh, case.axes)
        automatic = [axis for axis in case.mesh.axis_names if axis not in manual]
        operands = tuple(dataclasses.replace(o, placement=without(o.placement, automatic)) for o in case.operands)
        case = dataclasses.replace(case, manual=manual, operands=operands)
    data = data_sets.within(draw, kinds, count=2 if scope.large else len(kinds))
    return dataclasses.replace(case, data=data)


def meshes_with_room(draw: st.DrawFn, scope: Scope, chain: Chain, most: int, *, roles: int) -> tuple[MeshCase, bool]:
    """Meshes within a scope, of at most `most` devices, and whether there is room for an axis of two beside.

    There may be under a link that needs one. Of several roles, half of the meshes have several axes of more than one
    device, if there can be. Shrinks to one device, and to no room.
    """
    needed = leaves_an_axis(chain) and not scope.sizes and most > 1
    has_room = needed and draw(st.booleans(), label="room beside")
    most, axes = (most // 2, MAX_AXES - 1) if has_room else (most, MAX_AXES)
    if scope.large and most > 8:
        return large_meshes.within(draw, max_devices=most, max_axes=axes), has_room
    pool = max(most, scope.available)
    several = roles > 1 and draw(st.booleans(), label="several axes")
    drawn = meshes.within(
        draw,
        max_devices=most,
        max_axes=axes,
        available=pool,
        explicit=scope.explicit,
        sizes=scope.sizes,
        several=several,
    )
    return drawn, has_room


def sides(draw: st.DrawFn, scope: Scope, count: int, *, most: int = 4, long: Sequence[int] = LONG) -> tuple[int, ...]:
    """`count` sides of blocks, up to `most`, or 2 on large meshes and where they are to be small.

    Elsewhere one of them may be `long`, and no other is above 3 then. If `empty_blocks` is claimed, one may be 0.
    Shrinks to ones.
    """
    small = range(1, 3 if scope.few else most + 1)
    found = list(draw(integers(count, 1, small[-1]), label="sides"))
    others = tuple(small if scope.few else long)
    if another := draw(_another(count, others, "empty_blocks" in scope.features), label="another side"):
        at, other = another
        found = [min(side, 3) if other > most else side for side in found]
        found[at] = other
    return tuple(found)


def draw_small_sizes(draw: st.DrawFn, given: Given, *, most: int = 4) -> Drawn:
    """Sides up to `most`, one of which may be long; and further dimensions in front, if named and claimed."""
    own = [name for name in given.parts if name != LEADING]
    found: dict[str, Any] = dict(zip(own, sides(draw, given.scope, len(own), most=most), strict=True))
    if LEADING in given.parts:
        more = ((1,), (2,), (3,), (2, 1)) if "any_rank" in given.scope.features else ()
        found[LEADING] = draw(sampled(((), *more)), label=LEADING)
    return Drawn(found)


@lru_cache
def _another(count: int, others: tuple[int, ...], empty: bool) -> st.SearchStrategy[tuple[int, int] | None]:
    place = st.integers(0, count - 1)
    small = st.tuples(place, st.integers(0, min(others))) if empty else st.none()
    return st.one_of(st.none(), st.tuples(place, sampled(others)), small)


def floats(scope: Scope, *given: Any) -> st.SearchStrategy[str]:
    """Real floats of 16 and 32 bits, and of 64 where they are supported; shrinks to float32."""
    return sampled((*FLOATS, "float64") if "x64" in scope.features else FLOATS)


def integers_below(draw: st.DrawFn, each: int, given: Given, *, signed: bool = True) -> tuple[int, str]:
    """The number of things that each participant has, and a dtype of integers that number all of them, and one more.

    Or they take all numbers of the dtype. Shrinks to int32.
    """
    most, participants = given.participants * each, given.participants
    possible = ("int32", "uint16", "int16", *(n for n, end in (("uint8", 255), ("int8", 127)) if most < end))
    usual = [(each, name) for name in possible if signed or name[0] == "u" or name == "int32"]
    every = [(n // participants, name) for n, name in ((256, "uint8"), (128, "int8")) if n % participants == 0]
    return draw(sampled(usual if given.scope.large else (*usual, *every)), label="integers")


def beside(mesh: MeshCase, chain: Chain, taken: Sequence[str]) -> MeshCase:
    """The mesh, with one more axis, of two devices, unless one that is not `taken` is there for the chain's links."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    left = [name for name in mesh.longer(mesh.axis_names) if name not in taken]
    if SPMD in chain:  # see `free_axis`
        left = [name for name in left if kinds[name] == "auto" and BATCH % mesh.shape[name] == 0]
    if left:
        return mesh
    name = next(name for name in known_names(len(mesh.axis_names) + 1) if name not in mesh.axis_names)
    unused = (i for i in range(2 * mesh.size + max(mesh.devices)) if i not in mesh.devices)
    devices = (*mesh.devices, *islice(unused, mesh.size))
    return MeshCase((*mesh.axis_names, name), (*mesh.sizes, 2), devices, (*mesh.axis_types, "auto"))


@Composite
def placements(draw: st.DrawFn, mesh: MeshCase, rank: int, *, required: Sequence[str] = ()) -> Placement:
    """Placements of blocks of `rank` dimensions that vary at least along `required`.

    Shrinks to all of `required` on the first dimension, or stacked where there is none.
    """
    stacks = draw(st.booleans(), label="stacked") or rank == 0
    extra = draw(MORE_STACKED, label="more stacked axes")
    chosen = [n for i, n in enumerate(mesh.axis_names) if n in required or i in extra]
    stacked = tuple(in_some_order(draw, chosen)) if stacks else ()
    left = [name for name in mesh.axis_names if name not in stacked]
    spec = specs.within(draw, mesh, rank, required=[n for n in required if n in left], allowed=left)
    return Placement(spec, stacked)


def manual_axes(draw: st.DrawFn, mesh: MeshCase, axes: Sequence[str]) -> tuple[str, ...]:
    """Axes for `shard_map` to make manual: those of the tuple, and at most one more, if then some devices are left."""
    more = draw(MORE_MANUAL, label="more manual axes")
    manual = mesh.in_mesh_order({*axes, *(name for i, name in enumerate(mesh.axis_names) if i in more)})
    return manual if mesh.axis_size(manual) < mesh.size else mesh.in_mesh_order(axes)


def without(placement: Placement, axes: Sequence[str]) -> Placement:
    """The placement with its blocks replicated along `axes`."""
    return Placement(
        tuple(tuple(n for n in entry if n not in axes) for entry in placement.spec),
        tuple(n for n in placement.stacked if n not in axes),
    )
