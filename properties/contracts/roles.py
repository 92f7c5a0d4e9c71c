"""Axis tuples that have names in an operation: which are drawn on a mesh, and sizes that they divide."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import large_meshes, meshes
from shardproof.properties.cases.strategies.axes import MAX_AXES, in_some_order
from shardproof.properties.cases.strategies.meshes import AXIS_NAMES
from shardproof.properties.contracts.contract import Scope
from shardproof.properties.contracts.described import Signature

LONG = (7, 16, 33)
"""Factors of a side that is longer than the others."""

AxisName = str | tuple[str, ...]
Roles = tuple[tuple[str, AxisName], ...]


def axes_of(roles: Roles) -> dict[str, tuple[str, ...]]:
    """The axis tuples of roles."""
    return {name: (axes,) if isinstance(axes, str) else axes for name, axes in roles}


@dataclass(frozen=True)
class Conditions:
    """What an implementation needs in order to serve a case; nothing else is drawn.

    Arguments:
        one_axis: the roles that are one axis, and not a tuple of several.
        sizes: of some dimensions, the sizes that they may have.
        multiples: of some dimensions, what the part of each device must be a multiple of.
        dtypes: the dtypes of what is described as `float`.
        options: of each keyword argument, its values.
        most: the most devices.
        differentiates: whether the function itself takes gradients, which need the types that `check_vma` checks.
    """

    one_axis: frozenset[str] = frozenset()
    sizes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    multiples: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    options: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    most: int | None = None
    differentiates: bool = False


@st.composite
def meshes_and_roles(
    draw: st.DrawFn, scope: Scope, around: str, names: Sequence[str], conditions: Conditions, *, explicit: bool = True
) -> tuple[MeshCase, Roles]:
    """Meshes within a scope, and an axis or axis tuple for every role, no axis in two of them.

    Roles that a mesh has too few axes for get axes of size 1. Axes may be left over. Shrinks to one device, and to
    roles in the order of the mesh's axes.
    """
    most = min(scope.large or scope.max_devices, conditions.most or scope.large or scope.max_devices)
    if scope.large and most > 8:
        mesh = draw(large_meshes(max_devices=most))
    else:
        mesh = draw(
            meshes(
                max_devices=most,
                available=max(most, scope.available),
                explicit=explicit and scope.explicit,
                sizes=scope.sizes,
            )
        )
    wanted = len(names) + (around == "partial_manual")
    free = [name for name in AXIS_NAMES if name not in mesh.axis_names]
    more = tuple(free[: max(wanted - len(mesh.axis_names), 0)])
    mesh = MeshCase(
        (*mesh.axis_names, *more),
        (*mesh.sizes, *[1] * len(more)),
        mesh.devices,
        (*mesh.axis_types, *["auto"] * len(more)),
    )
    ordered = [*draw(in_some_order(mesh.axis_names[:MAX_AXES])), *mesh.axis_names[MAX_AXES:]]
    chosen = {name: [axis] for name, axis in zip(names, ordered, strict=False)}
    spare = ordered[len(names) :]
    wide = [name for name in names if name not in conditions.one_axis]
    for axis, at in zip(spare, draw(st.tuples(*[st.integers(0, 7)] * MAX_AXES), label="roles of axes"), strict=False):
        left_over = around == "partial_manual" and axis == spare[-1]
        if wide and not left_over and at < 6:  # one in four is of no role
            chosen[wide[at % len(wide)]].append(axis)
    as_tuples = draw(st.tuples(*[st.integers(0, 3)] * MAX_AXES), label="one axis as a tuple")
    roles: list[tuple[str, AxisName]] = []
    for name, as_tuple in zip(names, as_tuples, strict=False):
        alone = len(chosen[name]) == 1 and (as_tuple < 3 or name in conditions.one_axis)
        roles.append((name, chosen[name][0] if alone else tuple(chosen[name])))
    return mesh, tuple(roles)


@st.composite
def sizes_of_dimensions(
    draw: st.DrawFn, signature: Signature, conditions: Conditions, sizes_of_roles: Mapping[str, int], scope: Scope
) -> dict[str, int]:
    """Global sizes of all dimensions that have names, such that every role divides what it shards.

    Shrinks to the smallest ones; one draw in ten has a long side.
    """
    parts = signature.parts(sizes_of_roles)
    long = draw(st.integers(0, 9), label="long") == 9 and not scope.large
    at = draw(st.integers(0, max(len(parts) - 1, 0)), label="which is long")
    found = {}
    for i, (name, part) in enumerate(parts.items()):
        factor = draw(st.integers(1, 2 if scope.large else 4), label=name)
        if name.isdigit():
            if int(name) % part:  # this mesh cannot share a dimension of that size
                reject()
            continue
        if name in conditions.sizes:
            possible = [size for size in conditions.sizes[name] if size % part == 0]
            if not possible:
                reject()
            found[name] = possible[factor % len(possible)]
            continue
        step = part * conditions.multiples.get(name, 1)
        found[name] = step * (LONG[factor % len(LONG)] if long and i == at else factor)
    return found
