"""Planted bugs of all_reduce."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import algorithms, collectives
from shardproof.properties.mutants.axes import AxisName, mesh_size, names, other_names, passed
from shardproof.properties.mutants.catalogue import mutant


@mutant("all_reduce", smallest=(2,))
def mean_of_integers_is_whole(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Rounds a mean of integers down."""
    mean = collectives.all_reduce(x, axis_name, op=op)
    return jnp.floor(mean) if op == "mean" and jnp.issubdtype(x.dtype, jnp.integer) else mean


@mutant("all_reduce", smallest=(1,))
def max_from_zero(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Starts a maximum from zero, so that it is never negative."""
    result = collectives.all_reduce(x, axis_name, op=op)
    return jnp.maximum(result, jnp.zeros_like(result)) if op == "max" else result


@mutant("all_reduce", smallest=(1,))
def max_over_a_row_too_many(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the maximum over a buffer with one row more than was written, which holds whatever was there."""
    if op != "max":
        return collectives.all_reduce(x, axis_name, op=op)
    blocks = collectives.all_gather_invariant(x, axis_name)
    buffer = lax.empty((len(blocks) + 1, *x.shape), x.dtype)
    return lax.dynamic_update_slice(buffer, blocks, (0,) * buffer.ndim).max(axis=0)


@mutant("all_reduce", smallest=(2,))
def max_ignores_nan(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Skips NaN in a maximum or minimum, as C's fmax does."""
    if op not in ("max", "min"):
        return collectives.all_reduce(x, axis_name, op=op)
    blocks = collectives.all_gather_invariant(x, axis_name)
    result, *rest = blocks
    for block in rest:
        better = (block > result) if op == "max" else (block < result)
        result = jnp.where(better | (result != result), block, result)
    return result


@mutant("all_reduce", smallest=(2,))
def max_of_bool_is_parity(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds bool modulo two where it should take the maximum."""
    if op == "max" and x.dtype == bool:
        return lax.psum(x.astype(jnp.int32), axis_name) % 2 == 1
    return collectives.all_reduce(x, axis_name, op=op)


@mutant("all_reduce", smallest=(2,))
def sum_of_int8_saturates(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Stops a sum of int8 at the end of its range, where it should wrap around."""
    if x.dtype != jnp.int8 or op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    return jnp.clip(collectives.all_reduce(x.astype(jnp.int32), axis_name), -128, 127).astype(jnp.int8)


@mutant("all_reduce", smallest=(1,))
def sum_of_finite_numbers(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Clips infinities to the largest finite number."""
    if x.dtype == jnp.float32:
        x = jnp.clip(x, jnp.finfo(x.dtype).min, jnp.finfo(x.dtype).max)
    return collectives.all_reduce(x, axis_name, op=op)


@mutant("all_reduce", smallest=(1, 2))
def sum_over_the_whole_mesh(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Sums over the other axes along which the blocks vary as well."""
    axes = names(axis_name)
    if op == "sum":
        axes += tuple(name for name in other_names(axis_name) if name in collectives.varying(x))
    return collectives.all_reduce(x, axes, op=op)


@mutant("all_reduce", smallest=(1, 1, 2))
def sum_beside_two_other_axes(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Multiplies a sum by the size of the last of the other axes, where there are two or more."""
    result = collectives.all_reduce(x, axis_name, op=op)
    others = other_names(axis_name)
    size = mesh_size(others[-1:])
    return result * size if op == "sum" and len(others) > 1 and size > 1 else result


@mutant("all_reduce", smallest=(1,))
def mean_of_unsigned_as_signed(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the mean of unsigned integers as that of signed ones, so that the highest bit is a sign."""
    if op == "mean" and jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        x = lax.bitcast_convert_type(x, jnp.dtype(f"int{8 * x.dtype.itemsize}"))
    return collectives.all_reduce(x, axis_name, op=op)


@mutant("all_reduce", smallest=(2,))
def ring_reduce_counts_the_opposite_twice(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds what comes from both sides in floor(p/2) steps, and so, for even p, the opposite block twice."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    steps = lax.axis_size(axis_name) // 2
    return sum(passed(x, axis_name, steps, -1)[1:], start=sum(passed(x, axis_name, steps)[1:], start=x))


@mutant("all_reduce", smallest=(1, 2))
def torus_mean_over_the_last_axis(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Divides the sum over a tuple by the size of its last axis alone."""
    if op != "mean":
        return collectives.all_reduce(x, axis_name, op=op)
    return algorithms.ring_all_reduce(x, axis_name) / lax.axis_size(names(axis_name)[-1])


@mutant("all_reduce", smallest=(3,))
def doubling_reduce_for_any_number(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Doubles recursively for every p, so that terms get lost where a partner does not exist."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    p = lax.axis_size(axis_name)
    for distance in algorithms.distances(p):
        x = x + collectives.permute(x, axis_name, perm=[(i, i ^ distance) for i in range(p) if i ^ distance < p])
    return x


@mutant("all_reduce", smallest=(1,))
def sum_of_bfloat16_in_float16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds bfloat16 up in float16, which has more digits and not half of the exponents."""
    if op != "sum" or x.dtype != jnp.bfloat16:
        return collectives.all_reduce(x, axis_name, op=op)
    return collectives.all_reduce(x.astype(jnp.float16), axis_name).astype(x.dtype)


@mutant("all_reduce", smallest=(1,))
def sum_with_one_block_in_bfloat16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Rounds the block of the first participant to bfloat16."""
    narrow = (lax.axis_index(names(axis_name)) == 0) & (op == "sum" and jnp.issubdtype(x.dtype, jnp.floating))
    return collectives.all_reduce(jnp.where(narrow, x.astype(jnp.bfloat16).astype(x.dtype), x), axis_name, op=op)
