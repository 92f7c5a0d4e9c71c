"""Every collective over one mesh axis or a tuple of axes in any order, out of `jax.lax`.

All functions run inside `jax.shard_map`, on device-local blocks `[…]` of any dtype or pytrees of them. `axis_name` is a
name or a tuple of names in *logical* order: the last name varies fastest, as in an entry of a PartitionSpec, whatever
the order of the mesh's own axes. Parameters mean what they mean in `jax.lax`, on every supported JAX version:

- `tiled`: whether pieces are concatenated along a dimension (which is a multiple of p in what is cut), or stacked along
  a new one of size p (and a dimension that is cut has size p and is removed);
- `axis_index_groups`: lists of logical indices, of equal length, each of which runs the collective by itself.

Shapes are written with the axes that shard them: `[M_Y, K]` is sharded over `axis_name` (`Y`) in its first dimension. A
block that is reduced varies along all of `axis_name`, or none of it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, PyTree, Shaped

from shardproof.impl.arguments import (
    AxisName,
    check_axes,
    check_dimension,
    check_divides,
    check_groups,
    check_index,
    check_op,
    check_permutation,
    check_varies,
)

Block = Shaped[Array, "..."]
Blocks: TypeAlias = PyTree[Block]
Groups = Sequence[Sequence[int]] | None

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}


def varying(x: Any) -> frozenset[str]:
    """The mesh axes along which `x` is typed varying."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def types_are_checked(axes: tuple[str, ...]) -> bool:
    """True if the enclosing `shard_map` tracks varying axes (`check_vma=True`); of which `axes` are manual ones."""
    return bool(varying(lax.axis_index(axes[0])))


def in_mesh_order(axes: Collection[str]) -> tuple[str, ...]:
    """Axes in the mesh's order; unknown ones last, for JAX to refuse."""
    known = jax.sharding.get_abstract_mesh().axis_names
    return (*(name for name in known if name in axes), *(name for name in axes if name not in known))


def cast_varying(x: Blocks, axes: Collection[str]) -> Blocks:
    """`x`, typed varying along `axes` wherever it is not so already."""

    def cast(leaf: Block) -> Block:
        missing = in_mesh_order({*axes} - varying(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, x)


def accumulator(*operands: Array) -> Any:
    """The dtype in which products are added up: float32 for 16-bit floats, the operands' own otherwise."""
    dtype = jnp.result_type(*operands)
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def axis_index(axis_name: AxisName) -> Int[Array, ""]:
    """This device's logical index over `axis_name`, in [0, p): int32, varying along `axis_name`."""
    return lax.axis_index(check_axes("axis_index", axis_name))


def all_reduce(x: Blocks, axis_name: AxisName, *, op: str = "sum", axis_index_groups: Groups = None) -> Blocks:
    """The reduction of all participants' blocks, on every participant: `[…]` varying to `[…]` invariant.

    Arguments:
        op: `"sum"` (of bool: counts, in int32), `"mean"` (of exact dtypes: float32; no sum may wrap), `"max"`, `"min"`
            (of numbers that are not complex).
        axis_index_groups: groups of any lengths. The result differs between groups, which no invariant type can
            express.

    Raises:
        NotImplementedError: for groups under `check_vma=True`.
    """
    axes = check_axes("all_reduce", axis_name)
    groups = check_groups("all_reduce", axis_index_groups, lax.axis_size(axes), even=False)
    check_op("all_reduce", op, REDUCTIONS)
    for leaf in jax.tree.leaves(x):
        check_varies("all_reduce", leaf, axes)
        if groups is not None and types_are_checked(axes):
            # jax.lax types pmax and pmin over groups as invariant although the groups' results differ.
            raise NotImplementedError(
                f"all_reduce: axis_index_groups={groups}: expected none under check_vma=True, because the groups' "
                "results differ along axes that the result's type calls invariant"
            )
    # one leaf at a time: lax.pmax and lax.pmin of a tree bind one primitive per leaf anyway
    if op == "mean" and groups is not None and len({len(group) for group in groups}) > 1:
        return jax.tree.map(lambda leaf: _mean_of_groups(leaf, axes, groups), x)
    return jax.tree.map(lambda leaf: REDUCTIONS[op](leaf, axes, axis_index_groups=groups), x)


def _mean_of_groups(x: Block, axes: tuple[str, ...], groups: list[list[int]]) -> Block:
    """The mean within groups of different lengths: `lax.pmean` divides by the length of the first group."""
    lengths = {index: len(group) for group in groups for index in group}
    length = jnp.asarray([lengths[index] for index in range(len(lengths))])[lax.axis_index(axes)]
    total = lax.psum(x, axes, axis_index_groups=groups)
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.float32
    return total.astype(dtype) / length.astype(dtype)


def all_gather(
    x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False, axis_index_groups: Groups = None
) -> Blocks:
    """All participants' blocks in logical order, on every participant: `[M_Y, …]` to `[M, …]`, typed varying."""
    return _gather("all_gather", x, axis_name, axis, tiled, axis_index_groups, "varying")


def all_gather_invariant(x: Blocks, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Blocks:
    """As `all_gather`, typed invariant: the result may leave `shard_map` under `P()`. Its transpose is a slice."""
    return _gather("all_gather_invariant", x, axis_name, axis, tiled, None, "invarying")


def _gather(
    function: str, x: Blocks, axis_name: AxisName, axis: int, tiled: bool, axis_index_groups: Groups, to: str
) -> Blocks:
    axes = check_axes(function, axis_name)
    groups = check_groups(function, axis_index_groups, lax.axis_size(axes))
    participants = len(groups[0]) if groups else lax.axis_size(axes)
    # where types are not checked, JAX up to 0.10 drops the other participants' cotangents of what it calls invariant
    typed = "invarying" if to == "invarying" and types_are_checked(axes) else "varying"

    def gather(leaf: Block) -> Block:
        dimension = check_dimension(function, "axis", axis, leaf.ndim + (not tiled))
        if leaf.size == 0:  # XLA's verifier refuses to gather a zero-size dimension; there is nothing to send
            shape = list(leaf.shape)
            shape[dimension : dimension + tiled] = [leaf.shape[dimension] * participants if tiled else participants]
            kept = varying(leaf) - (set(axes) if to == "invarying" else set())
            return cast_varying(jnp.zeros(shape, leaf.dtype), kept | (set(axes) if to == "varying" else set()))
        return lax.all_gather(leaf, axes, axis=dimension, tiled=tiled, axis_index_groups=groups, to=typed)

    return jax.tree.map(gather, x)


def reduce_scatter(
    x: Blocks, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False, axis_index_groups: Groups = None
) -> Blocks:
    """Each participant's piece of the sum of all numeric blocks: `[M, …]` to `[M_Y, …]`, typed varying."""
    axes = check_axes("reduce_scatter", axis_name)
    groups = check_groups("reduce_scatter", axis_index_groups, lax.axis_size(axes))
    participants = len(groups[0]) if groups else lax.axis_size(axes)

    def scatter(leaf: Block) -> Block:
        dimension = check_dimension("reduce_scatter", "scatter_dimension", scatter_dimension, leaf.ndim)
        check_divides(
            "reduce_scatter", "scatter_dimension", scatter_dimension, leaf.shape[dimension], participants, tiled
        )
        check_varies("reduce_scatter", leaf, axes)
        if leaf.size == 0:  # XLA's verifier refuses an empty piece; there is nothing to send
            kept = [leaf.shape[dimension] // participants] if tiled else []
            shape = (*leaf.shape[:dimension], *kept, *leaf.shape[dimension + 1 :])
            return cast_varying(jnp.zeros(shape, leaf.dtype), varying(leaf) | set(axes))
        # always tiled: the batching rule of jax.lax's untiled form fails where the batch comes last
        piece = lax.psum_scatter(leaf, axes, scatter_dimension=dimension, tiled=True, axis_index_groups=groups)
        return piece if tiled else jnp.squeeze(piece, dimension)

    return jax.tree.map(scatter, x)


def all_to_all(
    x: Blocks,
    axis_name: AxisName,
    *,
    split_axis: int,
    concat_axis: int,
    tiled: bool = False,
    axis_index_groups: Groups = None,
) -> Blocks:
    """Piece i of every participant's block, on participant i: `[M_Y, N]` to `[M, N_Y]`, typed varying.

    `split_axis` is cut into p pieces; the received ones are joined along `concat_axis`, in logical order.
    """
    axes = check_axes("all_to_all", axis_name)
    groups = check_groups("all_to_all", axis_index_groups, lax.axis_size(axes))
    participants = len(groups[0]) if groups else lax.axis_size(axes)

    def exchange(leaf: Block) -> Block:
        source = check_dimension("all_to_all", "split_axis", split_axis, leaf.ndim)
        target = check_dimension("all_to_all", "concat_axis", concat_axis, leaf.ndim)
        check_divides("all_to_all", "split_axis", split_axis, leaf.shape[source], participants, tiled)
        if tiled:
            return lax.all_to_all(leaf, axes, source, target, axis_index_groups=groups, tiled=True)
        # jax.lax transposes its untiled form wrongly unless split_axis equals concat_axis, so: one piece
        # per leading index, exchanged tiled, and the leading dimension moved to where it belongs
        pieces = lax.all_to_all(jnp.moveaxis(leaf, source, 0), axes, 0, 0, axis_index_groups=groups, tiled=True)
        return jnp.moveaxis(pieces, 0, target)

    return jax.tree.map(exchange, x)


def permute(x: Blocks, axis_name: AxisName, *, perm: Iterable[tuple[int, int]]) -> Blocks:
    """Each source's block, on its destination; zeros where nothing arrives: `[…]` to `[…]`, typed varying.

    `perm` has pairs (source, destination) of logical indices. `lax.ppermute` numbers the participants of a tuple
    differently from version to version: in mesh order, or not at all unless the tuple is in mesh order. Here the tuple
    is put into mesh order and the pairs are translated, which means the same everywhere.
    """
    axes = check_axes("permute", axis_name)
    pairs = check_permutation("permute", perm, lax.axis_size(axes))
    ordered = in_mesh_order(axes)
    position = _mesh_indices(axes, ordered)
    return lax.ppermute(x, ordered, [(position[source], position[destination]) for source, destination in pairs])


def _mesh_indices(axes: tuple[str, ...], ordered: tuple[str, ...]) -> list[int]:
    """The index over `ordered` of every participant, by its logical index over `axes`."""
    size = {name: lax.axis_size(name) for name in axes}
    coordinates = np.unravel_index(np.arange(math.prod(size.values())), tuple(size.values()))
    coordinate = dict(zip(axes, coordinates, strict=True))
    return np.ravel_multi_index([coordinate[n] for n in ordered], [size[n] for n in ordered]).tolist()


def ring_shift(x: Blocks, axis_name: AxisName, *, offset: int = 1) -> Blocks:
    """Participant i's block, on participant i + offset, wrapping: `[…]` to `[…]`, typed varying."""
    p = lax.axis_size(check_axes("ring_shift", axis_name))
    return permute(x, axis_name, perm=[(i, (i + offset) % p) for i in range(p)])


def broadcast(x: Blocks, axis_name: AxisName, *, root: int = 0) -> Blocks:
    """The block of participant `root`, on every participant: `[…]` to `[…]`, typed varying."""
    axes = check_axes("broadcast", axis_name)
    check_index("broadcast", "root", root, lax.axis_size(axes))
    return jax.tree.map(lambda leaf: leaf[root], all_gather(x, axes))
