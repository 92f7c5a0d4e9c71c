"""Changes of a matrix's layout from any to any other: by hand on blocks, and by the compiler.

Rows and columns are sharded over an axis tuple each, `x_rows` and `x_columns`, and then over `rows` and `columns`, in
any order. A device's own part is not sent: the first axes that both layouts of a dimension have in common stay, and a
dimension is cut without any communication.

The device-local forms run inside `jax.shard_map`, on blocks. The others take global arrays, for `jax.jit`: on axes of
type Auto a sharding constraint says where to, on axes of type Explicit the type of the result does. They raise
ValueError unless x is a matrix, and the axis tuples are of distinct axes of the mesh that divide its dimensions.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import Axes, AxisName, as_axes, check_rank
from shardproof.impl.collectives import all_gather_invariant, all_to_all, axis_index, cast_varying
from shardproof.impl.placing import check_parts, check_roles, parts

Layout = tuple[Axes, Axes]
"""The axes that shard the rows of a matrix, and those that shard its columns."""

Block = Shaped[Array, "_ _"]
Global = Shaped[Array, "_ _"]
"""Matrices; of blocks, what is contracted may be of two sizes."""

Given = Shaped[Array, "..."]
"""A matrix; what is none is refused in words of our own."""


def exchanged_reshard(x: Given, *, x_rows: AxisName, x_columns: AxisName, rows: AxisName, columns: AxisName) -> Block:
    """`[B_x_rows, D_x_columns] -> [B_rows, D_columns]`, with as little sent as one collective per dimension allows."""
    held, wanted = layout(x_rows, x_columns), layout(rows, columns)
    name, mesh = "exchanged_reshard", jax.sharding.get_abstract_mesh()
    check_rank(name, "x", x, 2)
    check_roles(name, mesh, x_rows=held[0], x_columns=held[1])
    check_roles(name, mesh, rows=wanted[0], columns=wanted[1])
    whole = [n * parts(axes, mesh) for n, axes in zip(x.shape, held, strict=True)]
    check_parts(name, "x", jax.ShapeDtypeStruct(whole, x.dtype), spec(wanted), mesh)
    return reshard_block(x, held, wanted)


def constrained_reshard(
    x: Given,
    *,
    mesh: Mesh | AbstractMesh,
    x_rows: AxisName = (),
    x_columns: AxisName = (),
    rows: AxisName,
    columns: AxisName,
) -> Global:
    """`[B, D] -> [B_rows, D_columns]` on automatic axes, whatever the layout was.

    `x_rows` and `x_columns` are taken as the other forms take them, and not read: the compiler knows where x is.
    """
    wanted = layout(rows, columns)
    _check_whole("constrained_reshard", x, wanted, mesh)
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec(wanted)))


def explicit_reshard(
    x: Given, *, mesh: Mesh | AbstractMesh, x_rows: AxisName, x_columns: AxisName, rows: AxisName, columns: AxisName
) -> Global:
    """`[B_x_rows, D_x_columns] -> [B_rows, D_columns]` on explicit axes, from type to type."""
    held, wanted = layout(x_rows, x_columns), layout(rows, columns)
    _check_whole("explicit_reshard", x, wanted, mesh)
    return on_explicit_axes(lambda x: jax.reshard(x, spec(wanted)), mesh, held)(x)


def reshard_block(x: Shaped[Array, "..."], held: Sequence[Axes], wanted: Sequence[Axes]) -> Shaped[Array, "..."]:
    """A block in another layout, of as many dimensions as there are axis tuples.

    A dimension is cut first if its new axes are those of replicas. Axes that go from one dimension to another, which
    had no others of its own to give up, are exchanged (all-to-all). What is left is gathered, then cut.
    """
    kept = [common(*both) for both in zip(held, wanted, strict=True)]
    left = [axes[n:] for n, axes in zip(kept, held, strict=True)]
    new = [axes[n:] for n, axes in zip(kept, wanted, strict=True)]
    taken = {name for axes in left for name in axes}
    for dimension in range(x.ndim):
        if not left[dimension] and not taken & {*new[dimension]}:
            x = _cut(x, dimension, new[dimension])
            new[dimension] = ()
    for source, target in itertools.permutations(range(x.ndim), 2):
        if left[source] and left[source] == new[target] and not left[target]:
            axes = left[source]
            x = all_to_all(cast_varying(x, axes), axes, split_axis=target, concat_axis=source, tiled=True)
            left[source] = new[target] = ()
    for dimension in range(x.ndim):
        if axes := left[dimension]:
            x = all_gather_invariant(cast_varying(x, axes), axes, axis=dimension, tiled=True)
    for dimension in range(x.ndim):
        x = _cut(x, dimension, new[dimension])
    return x


def layout(rows: AxisName, columns: AxisName) -> Layout:
    """Axis names, single or in tuples, as axis tuples."""
    return as_axes(rows), as_axes(columns)


def spec(layout: Sequence[Axes]) -> PartitionSpec:
    """A layout as JAX knows it."""
    return PartitionSpec(*(axes or None for axes in layout))


def abstract_of(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """A mesh without its devices."""
    return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh


def on_explicit_axes(function: Callable[..., Global], mesh: Mesh | AbstractMesh, *given: Sequence[Axes]) -> Any:
    """The function with all axes of the mesh of type Explicit, as a function of arrays on automatic axes."""
    abstract = abstract_of(mesh)
    explicit = jax.sharding.explicit_axes(function, axes=abstract.axis_names, in_sharding=tuple(map(spec, given)))

    def called(*arrays: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        with jax.sharding.use_abstract_mesh(abstract):
            return explicit(*arrays)

    return called


def common(one: Axes, other: Axes) -> int:
    """The number of axes that two tuples have in common, from the first on."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(x: Shaped[Array, "..."], dimension: int, axes: Axes) -> Shaped[Array, "..."]:
    """A device's part of a dimension, by its index along the axes."""
    if not axes:
        return x
    size = x.shape[dimension] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(x, axis_index(axes) * size, size, dimension)


def _check_whole(function: str, x: Given, wanted: Layout, mesh: Mesh | AbstractMesh) -> None:
    with jax.sharding.use_abstract_mesh(abstract_of(mesh)):
        check_rank(function, "x", x, 2)
        check_roles(function, mesh, rows=wanted[0], columns=wanted[1])
        check_parts(function, "x", x, spec(wanted), mesh)
