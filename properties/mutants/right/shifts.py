"""Right ways to write ring_shift, permute and broadcast."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.algorithms import join, split
from shardproof.properties.mutants.axes import AxisName, in_mesh_order, names
from shardproof.properties.mutants.catalogue import right

Pairs = Sequence[tuple[int, int]]


@right("ring_shift")
def shift_by_gathering(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Gathers all blocks and keeps one."""
    source = (lax.axis_index(axis_name) - offset) % lax.axis_size(axis_name)
    return lax.dynamic_index_in_dim(collectives.all_gather(x, axis_name), source, keepdims=False)


@right("ring_shift")
def shift_with_lax(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Calls `lax.ppermute`, and says that it does not serve tuples that are not in mesh order."""
    if names(axis_name) != in_mesh_order(axis_name):
        raise NotImplementedError(f"axis_name={axis_name!r}: expected the order of the mesh")
    p = lax.axis_size(axis_name)
    return lax.ppermute(x, axis_name, [(i, (i + offset) % p) for i in range(p)])


@right("ring_shift")
def shift_with_its_own_gradient(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """A custom_vjp whose gradient is shifted back."""

    def shift(x: Array, by: int) -> Array:
        return collectives.ring_shift(x, axis_name, offset=by)

    function = jax.custom_vjp(lambda x: shift(x, offset))
    function.defvjp(lambda x: (shift(x, offset), None), lambda _, ct: (shift(ct, -offset),))
    return function(x)


@right("permute")
def permute_by_gathering(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Gathers all blocks and looks its source up in a NumPy table."""
    table = np.full(lax.axis_size(axis_name), -1)
    for source, target in perm:
        table[target] = source
    chosen = jnp.asarray(table)[lax.axis_index(axis_name)]
    blocks = collectives.all_gather(x, axis_name)
    return jnp.where(chosen < 0, jnp.zeros_like(x), blocks[chosen])


@right("broadcast")
def broadcast_by_a_masked_sum(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Sums blocks that all but the root have replaced with zeros; its result is typed invariant."""
    masked = jnp.where(lax.axis_index(axis_name) == root, x, jnp.zeros_like(x))
    return lax.psum(masked, axis_name).astype(x.dtype)


@right("broadcast")
def broadcast_name_by_name(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Broadcasts over one name after the other, from the root's coordinate on each."""
    for name in reversed(names(axis_name)):
        root, coordinate = divmod(root, lax.axis_size(name))
        x = collectives.broadcast(x, name, root=coordinate)
    return x


@right("all_to_all")
def exchange_by_gathering(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Gathers all blocks and keeps its piece of each."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = split(x, p, split_axis, tiled)
    received = lax.dynamic_index_in_dim(collectives.all_gather(pieces, axis_name), index, axis=1, keepdims=False)
    return join(received, concat_axis, tiled)


@right("all_to_all")
def exchange_with_lax(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Calls `jax.lax`, whose untiled form has a wrong gradient."""
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, tiled=tiled)


@right("permute")
def permute_through_a_switch(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Looks up in a `lax.switch` over the own index which of all blocks to take, or zeros."""
    blocks, source = collectives.all_gather(x, axis_name), {target: source for source, target in perm}
    branches: list[Any] = [lambda blocks: jnp.zeros_like(blocks[0])]
    branches += [lambda blocks, at=at: blocks[at] for at in range(lax.axis_size(axis_name))]
    chosen = np.array([source.get(participant, -1) + 1 for participant in range(lax.axis_size(axis_name))])
    return lax.switch(jnp.asarray(chosen)[lax.axis_index(axis_name)], branches, blocks)
