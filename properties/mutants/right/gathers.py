"""Right ways to write all_gather and all_gather_invariant."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.algorithms import join, split
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.right.pieces import own, spread

BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


@right("all_gather")
def gather_into_unwritten_memory(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Writes the blocks of a ring into memory that was allocated without contents, until none of that is left."""
    p, moving = lax.axis_size(axis_name), spread(x, axis_name)
    blocks = spread(lax.empty((p, *x.shape), x.dtype), axis_name)
    for step in range(p):
        blocks = blocks.at[(lax.axis_index(axis_name) - step) % p].set(moving)
        moving = collectives.ring_shift(moving, axis_name)
    return join(blocks, axis, tiled)


@right("all_gather")
def gather_by_summing_slots(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sums buffers of zeros in which everyone filled the own slot; its result is typed invariant."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    slots = lax.dynamic_update_slice_in_dim(
        collectives.cast_varying(jnp.zeros((p, *x.shape), x.dtype), collectives.varying(x)), x[None], index, 0
    )
    return join(lax.psum(slots, axis_name).astype(x.dtype), axis, tiled)


@right("all_gather")
def gather_in_a_scan(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """The ring as a scan that stacks what it sees."""
    p = lax.axis_size(axis_name)
    _, held = lax.scan(
        lambda block, _: (collectives.ring_shift(block, axis_name), block), spread(x, axis_name), length=p
    )
    return join(jnp.roll(held[::-1], lax.axis_index(axis_name) + 1, axis=0), axis, tiled)


@right("all_gather")
def gather_typed_invariant(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Its result is typed invariant where that of the reference is typed varying."""
    return collectives.all_gather_invariant(x, axis_name, axis=axis, tiled=tiled)


@right("all_gather_invariant")
def gather_typed_varying(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Its result is typed varying where that of the reference is typed invariant."""
    return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)


@right("all_gather")
def gather_with_lax(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Calls `jax.lax`, which cannot gather empty blocks."""
    return lax.all_gather(x, axis_name, axis=axis, tiled=tiled)


@right("reduce_scatter")
def scatter_the_reduced(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Slices its piece out of the sum of all."""
    total = collectives.all_reduce(x, axis_name)
    return own(split(total, lax.axis_size(axis_name), scatter_dimension, tiled), axis_name)


@right("reduce_scatter")
def scatter_with_lax(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Calls `jax.lax`, whose untiled form does not batch everywhere."""
    return lax.psum_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)


@right("all_gather")
def gather_bit_patterns(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sends the bits of floats as integers, with a custom_vjp since bits have no gradient."""

    @jax.custom_vjp
    def gather(x: Array) -> Array:
        unsigned = BITS.get(x.dtype.itemsize) if jnp.issubdtype(x.dtype, jnp.floating) else None
        if unsigned is None:
            return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)
        bits = lax.bitcast_convert_type(x, unsigned)
        return lax.bitcast_convert_type(collectives.all_gather(bits, axis_name, axis=axis, tiled=tiled), x.dtype)

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.reduce_scatter(ct, axis_name, scatter_dimension=axis, tiled=tiled),)

    gather.defvjp(lambda x: (gather(x), None), backward)
    return gather(spread(x, axis_name))
