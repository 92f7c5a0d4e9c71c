"""Right implementations in styles that are rare: classes, recursion, tables, padding, bit patterns, switches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import spread
from shardproof.properties.mutants.right.shifts import Pairs

BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


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


@right("permute")
def permute_through_a_switch(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Looks up in a `lax.switch` over the own index which of all blocks to take, or zeros."""
    blocks, source = collectives.all_gather(x, axis_name), {target: source for source, target in perm}
    branches: list[Any] = [lambda blocks: jnp.zeros_like(blocks[0])]
    branches += [lambda blocks, at=at: blocks[at] for at in range(lax.axis_size(axis_name))]
    chosen = np.array([source.get(participant, -1) + 1 for participant in range(lax.axis_size(axis_name))])
    return lax.switch(jnp.asarray(chosen)[lax.axis_index(axis_name)], branches, blocks)
