"""Roles, the axis tuples that have names in an operation, drawn on a mesh; and sizes that they divide."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.properties.cases.chain import Chain, leaves_an_axis
from shardproof.properties.cases.strategies import axis_names, specs
from shardproof.properties.cases.strategies.making import integers, sampled
from shardproof.properties.cases.strategies.meshes import MAX_AXES, in_some_order, known_names
from shardproof.properties.contracts.contract import Scope
from shardproof.properties.contracts.described import AXIS
from shardproof.properties.contracts.drawing import AxisName, Drawn, Given, beside, meshes_with_room

LONG = (7, 17, 33, 65, 130)
"""Factors of a side that is longer than the others, the last one than the lanes of a TPU."""

LONGEST = 523
"""The longest side in all: half of it is beyond a chunk of 256, and beyond what eight bits count."""

SQUARES = 3
"""The number of squares of it that all devices together may hold: of more participants it is shorter."""

Roles = tuple[tuple[str, AxisName], ...]


def axes_of(roles: Roles) -> dict[str, tuple[str, ...]]:
    """The axis tuples of roles."""
    return {name: (axes,) if isinstance(axes, str) else axes for name, axes in roles}


@dataclass(frozen=True)
class Conditions:
    """The conditions of an implementation on cases; no others are drawn."""

    one_axis: frozenset[str] = frozenset()  # the roles that are one axis, and not a tuple of several
    sizes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # of some dimensions
    # of some dimensions, a divisor of the part of each device
    multiples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")  # of arrays that are described as `float`
    options: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # the values of keyword arguments
    most: int | None = None  # the most devices
    # whether the function itself takes gradients, which need the types that `check_vma` checks
    differentiates: bool = False
    powers_of_two: frozenset[str] = frozenset()  # the roles of which the number of participants is one
    optional: frozenset[str] = frozenset()  # the roles that may be no axis at all
    check_vma: bool = True  # whether its types are checked
    gradients: bool = True  # whether its gradients are checked
    # the roles of the dimensions of each array that has a layout of its own. They may be no axis, and share axes with
    # another array's roles; if there are any, there are no other roles
    layouts: tuple[tuple[str, ...], ...] = ()


def meshes_and_roles(
    draw: st.DrawFn, scope: Scope, chain: Chain, names: Sequence[str], conditions: Conditions
) -> tuple[MeshCase, Roles]:
    """Meshes within a scope, and an axis or axis tuple for every role, no axis in two of them, but for `layouts`.

    Without names the role is `axis_name`. Roles that a mesh has too few axes for get axes of size 1. Axes may be left
    over. Shrinks to one device, and to roles in the order of the mesh's axes.
    """
    most = min(scope.large or scope.max_devices, conditions.most or scope.large or scope.max_devices)
    mesh, has_room = meshes_with_room(draw, scope, chain, most, roles=len(names))
    if not names:
        return one_axis_tuple(draw, mesh, chain, has_room=has_room)
    if has_room:
        mesh = beside(mesh, chain, mesh.axis_names[: None if conditions.layouts else len(names)])
    if conditions.layouts:
        return mesh, roles_of_layouts(draw, mesh, chain, conditions.layouts)
    wanted = len(names) + leaves_an_axis(chain)
    free = [name for name in known_names(wanted) if name not in mesh.axis_names]
    more = tuple(free[: max(wanted - len(mesh.axis_names), 0)])
    mesh = MeshCase(
        (*mesh.axis_names, *more),
        (*mesh.sizes, *[1] * len(more)),
        mesh.devices,
        (*mesh.axis_types, *["auto"] * len(more)),
    )
    ordered = in_some_order(draw, mesh.axis_names)
    if leaves_an_axis(chain):
        ordered.remove(left_over(mesh, ordered))
    if draw(st.booleans(), label="axes of several devices first"):  # else roles of one participant are the most
        ordered.sort(key=lambda name: mesh.shape[name] == 1)
    chosen = {name: [axis] for name, axis in zip(names, ordered, strict=False)}
    spare = ordered[len(names) :]
    wide = [name for name in names if name not in conditions.one_axis]
    for axis, at in zip(spare, draw(integers(MAX_AXES, 0, len(wide)), label="roles of axes"), strict=False):
        if at < len(wide):  # else it is of no role
            chosen[wide[at]].append(axis)
    if optional := sorted({*names} & conditions.optional):
        chosen |= {name: [] for name in draw(_none_or_some(tuple(optional)), label="roles of no axis")}
    as_tuples = draw(integers(max(MAX_AXES, len(names)), 0, 1), label="one axis as a tuple")
    roles: list[tuple[str, AxisName]] = []
    for name, as_tuple in zip(names, as_tuples, strict=False):
        alone = len(chosen[name]) == 1 and (not as_tuple or name in conditions.one_axis)
        roles.append((name, chosen[name][0] if alone else tuple(chosen[name])))
    even = [axis for name in names if name in conditions.powers_of_two for axis in chosen[name]]
    shorter = with_powers_of_two(mesh, even)
    if scope.sizes and shorter != mesh:  # no other mesh may be drawn
        reject()
    return shorter, tuple(roles)


def one_axis_tuple(draw: st.DrawFn, mesh: MeshCase, chain: Chain, *, has_room: bool) -> tuple[MeshCase, Roles]:
    """The mesh, with an axis more if there is room, and an `axis_name`.

    Under a link that needs one, an axis is not in the tuple, mostly one of several devices. Shrinks to the first axis.
    """
    axis_name = axis_names.within(draw, mesh)
    axes = as_axes(axis_name)
    if has_room:
        mesh = beside(mesh, chain, axes)
    if leaves_an_axis(chain) and 1 < len(axes) == len(mesh.axis_names):
        shortest = min(reversed(axes), key=lambda name: mesh.shape[name])
        axis_name = tuple(name for name in axes if name != shortest)
    return mesh, ((AXIS, axis_name),)


@lru_cache
def _none_or_some(of: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.one_of(st.just([]), st.lists(st.sampled_from(of), unique=True))


def left_over(mesh: MeshCase, axes: Sequence[str]) -> str:
    """The axis in no role: the shortest of several devices, if another one has several as well."""
    several = mesh.longer(axes)
    one = [name for name in axes if mesh.shape[name] == 1]
    return min(several, key=lambda name: mesh.shape[name]) if len(several) > 1 or not one else one[-1]


def with_powers_of_two(mesh: MeshCase, axes: Collection[str]) -> MeshCase:
    """The mesh with each of these axes as long as the next smaller power of two, on the first of its devices."""
    named = zip(mesh.axis_names, mesh.sizes, strict=True)
    sizes = tuple(1 << size.bit_length() - 1 if name in axes else size for name, size in named)
    devices = mesh.devices[: math.prod(sizes)]
    return MeshCase(mesh.axis_names, sizes, devices, mesh.axis_types)


def roles_of_layouts(draw: st.DrawFn, mesh: MeshCase, chain: Chain, layouts: Sequence[Sequence[str]]) -> Roles:
    """Axes for the roles of arrays that are laid out each in its own way.

    An array of two dimensions has new axes, or those of the one before, or their transpose, in the same order or in
    another one: layouts that match, and those that seem to. Half of the new ones have all axes on the same dimension,
    and half of the tuples that would be in the order of the mesh are reversed. Under a link that needs one, an axis of
    a mesh that has several is in no role. Shrinks to arrays that nothing shards.
    """
    several = leaves_an_axis(chain) and len(mesh.axis_names) > 1
    allowed = mesh.axis_names[: -1 if several else None]
    roles: list[tuple[str, AxisName]] = []
    before: tuple[tuple[str, ...], ...] = ()
    for layout in layouts:
        entries = specs.within(draw, mesh, len(layout), allowed=allowed)
        if draw(st.booleans(), label="axes together"):
            at = draw(st.integers(0, len(layout) - 1), label="where")
            every = tuple(axis for entry in entries for axis in entry)
            entries = tuple(every if i == at else () for i in range(len(layout)))
        like = draw(st.integers(0, 4), label="like the one before")
        if len(layout) == len(before) == 2 and like:
            by = draw(st.integers(0, 2), label="turned by")  # 0: the other way round
            turned = tuple((*entry[by:], *entry[:by]) if by else entry[::-1] for entry in before)
            entries = (before, before[::-1], turned, turned[::-1])[like - 1]
        turns = draw(integers(len(layout), 0, 1), label="in another order than the mesh's")
        entries = tuple(
            entry[::-1] if turn and entry == mesh.in_mesh_order(entry) else entry
            for entry, turn in zip(entries, turns, strict=True)
        )
        as_tuples = draw(integers(len(layout), 0, 1), label="one axis as a tuple")
        for name, entry, as_tuple in zip(layout, entries, as_tuples, strict=True):
            roles.append((name, entry[0] if len(entry) == 1 and not as_tuple else entry))
        before = entries
    return tuple(roles)


def sizes_of_dimensions(draw: st.DrawFn, given: Given, *, conditions: Conditions) -> Drawn:
    """Sizes of the parts of dimensions, such that every role divides what it shards.

    A dimension that has no listed sizes may be long, up to `LONGEST`, or less on many devices. Or all are the same, so
    that dimensions that are swapped show by nothing but the layout. Shrinks to the smallest ones.
    """
    scope, parts = given.scope, given.parts
    kind = draw(sampled(("small",) if scope.few else ("small", "long", "the same")), label="small, long or the same")
    at = draw(st.integers(0, max(len(parts) - 1, 0)), label="which is long")
    factors = [draw(st.integers(1, 2 if scope.few else 4), label=name) for name in parts]
    if kind == "long" and factors:
        name, part = list(parts.items())[at]
        squares = min(1.0, SQUARES / max(given.participants, 1))
        most = max(LONG[0], int(LONGEST * squares**0.5) // (part * conditions.multiples.get(name, 1)))
        factors[at] = draw(sampled((*(factor for factor in LONG if factor <= most), most)), label="how long")
        if factors[at] >= LONG[-1]:
            factors = [factor if i == at else 1 for i, factor in enumerate(factors)]
    found = {}
    for (name, part), factor in zip(parts.items(), factors, strict=True):
        if name.isdigit():
            if int(name) % part:  # this mesh cannot shard a dimension of that size
                reject()
        elif name in conditions.sizes:
            factor = part * conditions.multiples.get(name, 1)
            possible = sorted(size // part for size in conditions.sizes[name] if size % factor == 0)
            if not possible:
                reject()
            found[name] = draw(sampled(possible), label=f"size of {name}")
        else:
            found[name] = conditions.multiples.get(name, 1) * factor
    if kind == "the same":
        free = [name for name in found if name not in conditions.sizes]
        whole = math.lcm(*(parts[name] * conditions.multiples.get(name, 1) for name in free))
        found |= {name: whole // parts[name] for name in free}
    return Drawn(found)
