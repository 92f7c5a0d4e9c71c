"""Planted bugs in what a function claims to serve beyond its contract's signature, or is expected to send."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


@mutant("all_reduce", smallest=(1,), claims=("bool_sum",))
def sum_of_bool_stays_bool(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Gives a sum of bool as bool, where it counts."""
    result = collectives.all_reduce(x, axis_name, op=op)
    return result > 0 if x.dtype == bool and op == "sum" else result


@mutant("all_gather", smallest=(1,), claims=("negative_dimensions",))
def gather_counts_from_the_back_of_the_block(x: Array, axis_name: AxisName, *, axis: int = 0, **options: Any) -> Array:
    """Counts a negative axis from the back of the block, where it counts in the result."""
    return collectives.all_gather(x, axis_name, axis=axis % max(x.ndim, 1) if axis < 0 else axis, **options)


@mutant("reduce_scatter", smallest=(2,), claims=("groups",))
def scatter_with_sorted_groups(
    x: Array, axis_name: AxisName, *, axis_index_groups: Any = None, **options: Any
) -> Array:
    """Sorts the participants of every group, and so hands pieces to the wrong ones."""
    groups = axis_index_groups and [sorted(group) for group in axis_index_groups]
    return collectives.reduce_scatter(x, axis_name, axis_index_groups=groups, **options)


@mutant("ring_shift", smallest=(1,), claims=("x64",))
def shift_of_64_bits_through_32(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Sends 64-bit integers in 32 bits."""
    sent = x.astype(jnp.int32) if x.dtype == jnp.int64 else x
    return collectives.ring_shift(sent, axis_name, offset=offset).astype(x.dtype)


@mutant("ring_shift", smallest=(2,), claims=("trees",))
def shift_of_the_first_leaf(x: Any, axis_name: AxisName, *, offset: int = 1) -> Any:
    """Shifts the first leaf of a tree, and hands the others on as they are."""
    first, *rest = jax.tree.leaves(x)
    held = [collectives.cast_varying(leaf, names(axis_name)) for leaf in rest]
    return jax.tree.unflatten(jax.tree.structure(x), [collectives.ring_shift(first, axis_name, offset=offset), *held])


@mutant("all_reduce", smallest=(2,), claims=("replicated_operands",))
def sum_of_a_replica_once(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the sum of a value that all participants have for that value."""
    if not set(names(axis_name)) & collectives.varying(x) and op == "sum":
        return x
    return collectives.all_reduce(x, axis_name, op=op)


@mutant("all_gather_matmul_lhs", smallest=(2,), claims=("batch_dimensions",))
def rows_gathered_along_the_batch(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Gathers the left operand along its first dimension, which need not be that of its rows."""
    gathered = collectives.all_gather(lhs, axis_name, axis=0, tiled=True)
    return collective_matmul.multiply(gathered, rhs).astype(jnp.result_type(lhs, rhs))


@mutant("all_gather", law="error", smallest=(1,), claims=("explained_errors",))
def gather_fails_without_a_word(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Refuses an axis that is out of range without its name and the mesh."""
    if not 0 <= axis < x.ndim + (not tiled):
        raise ValueError("wrong dimension")
    return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)


@mutant(
    "all_gather", law="communication", smallest=(1,), communication="all_gather=1,bytes=x;grad:reduce_scatter=1,bytes=n"
)
def gather_whose_gradient_reduces_everything(
    x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False
) -> Array:
    """Its gradient adds up whole cotangents on every participant, and keeps one's own piece."""

    @jax.custom_vjp
    def gather(block: Array) -> Array:
        return collectives.all_gather(block, axis_name, axis=axis, tiled=tiled)

    def backward(_: None, ct: Array) -> tuple[Array]:
        whole, width = lax.psum(ct, names(axis_name)), x.shape[axis] if tiled else 1
        at = collectives.axis_index(axis_name) * width
        piece = lax.dynamic_slice_in_dim(whole, at, width, axis)
        return (piece if tiled else jnp.squeeze(piece, axis),)

    gather.defvjp(lambda block: (gather(block), None), backward)
    return gather(x)


@mutant("all_gather_matmul_lhs", law="communication", smallest=(1,), communication="all_gather=1,bytes=lhs")
def rows_sent_in_float32(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Sends 16-bit floats in 32 bits, which the bytes of all operands together need not show."""
    wide = lhs.astype(jnp.float32) if lhs.dtype.itemsize == 2 else lhs
    gathered = collectives.all_gather(wide, axis_name, axis=lhs.ndim - 2, tiled=True)
    return collective_matmul.multiply(gathered, rhs.astype(wide.dtype)).astype(jnp.result_type(lhs, rhs))
