"""What the cases of all contracts have in common: a mesh within a scope, placements on it, and its manual axes."""

import dataclasses
from collections.abc import Sequence
from itertools import islice

from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Operand, Placement
from shardproof.properties.cases.chain import BATCH, SPREAD, Chain, leaves_an_axis
from shardproof.properties.cases.strategies import axis_names, large_meshes, meshes, specs
from shardproof.properties.cases.strategies.making import Composite, integers, sampled
from shardproof.properties.cases.strategies.meshes import MAX_AXES, in_some_order, known_names
from shardproof.properties.cases.strategies.shapes import BOTH_LONG, LONG, SEVERAL
from shardproof.properties.contracts.contract import Scope

AxisName = str | tuple[str, ...]

MORE_STACKED = st.lists(st.integers(0, MAX_AXES - 1), max_size=MAX_AXES)
MORE_MANUAL = st.lists(st.integers(0, MAX_AXES - 1), max_size=1)
BATCHES = st.lists(st.integers(1, 2), max_size=2).map(tuple)
SIDES = ("small",) * 31 + ("several",) * 10 + ("long",) * 4 + ("both long",) * 3 + ("empty",) * 2


@Composite
def meshes_and_axes(
    draw: st.DrawFn, scope: Scope, chain: Chain, *, most: int | None = None
) -> tuple[MeshCase, AxisName, tuple[str, ...]]:
    """Meshes within a scope, of at most `most` devices where they are large, an `axis_name`, and its axis tuple.

    Under a link that needs one, an axis is not in the tuple, mostly one of several devices.
    Shrinks to one device and its first axis.
    """
    most = min(scope.large, most or scope.large) if scope.large else scope.max_devices
    mesh, has_room = meshes_with_room.within(draw, scope, chain, most)
    axis_name = axis_names.within(draw, mesh)
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    if has_room:
        mesh = beside(mesh, chain, axes)
    if leaves_an_axis(chain) and 1 < len(axes) == len(mesh.axis_names):
        shortest = min(reversed(axes), key=lambda name: mesh.shape[name])
        axis_name = axes = tuple(name for name in axes if name != shortest)
    return mesh, axis_name, axes


@Composite
def meshes_with_room(
    draw: st.DrawFn, scope: Scope, chain: Chain, most: int, *, roles: int = 1
) -> tuple[MeshCase, bool]:
    """Meshes within a scope, of at most `most` devices, and whether there is room for an axis of two beside.

    There mostly is under a link that needs one. Of several roles, two thirds of the meshes have several axes of more
    than one device, if there can be. Shrinks to one device, and to no room.
    """
    needed = leaves_an_axis(chain) and not scope.sizes and most > 1
    has_room = needed and draw(st.integers(0, 3), label="room beside") > 0
    most, axes = (most // 2, MAX_AXES - 1) if has_room else (most, MAX_AXES)
    if scope.large and most > 8:
        return large_meshes.within(draw, max_devices=most, max_axes=axes), has_room
    pool = max(most, scope.available)
    several = roles > 1 and draw(st.integers(0, 2), label="several axes") > 0
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


def further_dimensions(draw: st.DrawFn, scope: Scope) -> tuple[int, ...]:
    """Leading dimensions of tokens, of one in three cases of those who claim `any_rank`; mostly there are none."""
    if "any_rank" not in scope.features or draw(st.integers(0, 2), label="further dimensions") < 2:
        return ()
    return draw(sampled(((1,), (2,), (3,), (2, 1))), label="leading")


def integers_below(draw: st.DrawFn, largest: int, *, signed: bool = True) -> str:
    """A dtype of integers that number so many things, and one more."""
    narrow = [name for name, most in (("uint8", 255), ("int8", 127)) if largest < most]
    possible = ["int32", "int32", "uint16", "int16", *narrow]
    usable = [name for name in possible if signed or name[0] == "u" or name == "int32"]
    return draw(sampled(usable), label="integers")


def all_of_a_dtype(draw: st.DrawFn, participants: int) -> tuple[int, str] | None:
    """As many things for each participant as take all numbers of a dtype, and that dtype; mostly not, or never."""
    count, name = draw(sampled(((0, ""),) * 11 + ((256, "uint8"), (128, "int8"))), label="all numbers of a dtype")
    return (count // participants, name) if count and count % participants == 0 else None


def beside(mesh: MeshCase, chain: Chain, taken: Sequence[str]) -> MeshCase:
    """The mesh, with an axis of two devices more, unless one that is not `taken` serves the links of the chain."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    left = [name for name in mesh.longer(mesh.axis_names) if name not in taken]
    if SPREAD in chain:  # see `free_axis`
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
    stacks = draw(st.integers(0, 4), label="stacked") == 4 or rank == 0
    extra = draw(MORE_STACKED, label="more stacked axes")
    chosen = [n for i, n in enumerate(mesh.axis_names) if n in required or i in extra]
    stacked = tuple(in_some_order.within(draw, chosen)) if stacks else ()
    left = [name for name in mesh.axis_names if name not in stacked]
    spec = specs.within(draw, mesh, rank, required=[n for n in required if n in left], allowed=left)
    return Placement(spec, stacked)


@Composite
def layouts(draw: st.DrawFn, mesh: MeshCase, rank: int, dimension: int, axes: tuple[str, ...]) -> Placement:
    """Layouts of a global array of `rank` dimensions, one of which an axis tuple shards; others may shard the others.

    Shrinks to the axis tuple alone.
    """
    left = [name for name in mesh.axis_names if name not in axes]
    others = specs.within(draw, mesh, rank - 1, allowed=left)
    return Placement((*others[:dimension], axes, *others[dimension:]))


@Composite
def made_manual(
    draw: st.DrawFn, chain: Chain, mesh: MeshCase, axes: Sequence[str], operands: Sequence[Operand]
) -> tuple[tuple[str, ...], tuple[Operand, ...]]:
    """The axes that are manual, which are named under `partial_manual` alone, and operands that vary along no other."""
    if "partial_manual" not in chain:
        return (), tuple(operands)
    manual = manual_axes.within(draw, mesh, axes)
    automatic = [axis for axis in mesh.axis_names if axis not in manual]
    return manual, tuple(dataclasses.replace(o, placement=without(o.placement, automatic)) for o in operands)


@Composite
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


@Composite
def sides_of_products(draw: st.DrawFn, scope: Scope) -> tuple[str, tuple[int, int, int]]:
    """What kind a product's sides are of, and how long its two free sides and the contracted one between them are.

    One in five has enough of all for forms that cut a block into quarters. Large meshes have sides of one.
    Shrinks to sides of one.
    """
    sides = list(draw(integers(3, 1, 1 if scope.large else 3), label="m, k, n"))
    kind = draw(sampled(SIDES), label="small, several, long, both long or empty")
    at = draw(st.integers(0, 2), label="which")
    if kind == "empty" and "empty_blocks" in scope.features:
        sides[at] = 0
    elif scope.large:
        kind = "small"
    elif kind == "several":
        sides = list(draw(st.tuples(*[st.integers(*SEVERAL)] * 3), label="several rows and columns"))
    elif kind == "both long" and not scope.floating:  # of which a gradient takes seconds
        both = draw(st.tuples(*[sampled(BOTH_LONG)] * 2), label="two long sides")
        sides = [other if at == i else both[i - (i > at)] for i, other in enumerate(sides)]
    elif "long" in kind:
        sides[at] = draw(sampled(LONG), label="long side")
    m, k, n = sides
    return kind, (m, k, n)
