"""Planted bugs of types: right values that are typed invariant although devices hold different ones.

JAX lets all of them through: it takes a reduction over groups for one over all, and the result of a
branch or a loop for as invariant as what goes in, even where the devices disagree on the way.
"""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant

Pairs = list[tuple[int, int]]


@mutant("ring_shift", law="type", smallest=(2,))
def shift_typed_invariant_by_groups(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Ends in a maximum over groups of one participant each, which types the result invariant."""
    moved = collectives.ring_shift(x, axis_name, offset=offset)
    if x.dtype != jnp.float32:
        return moved
    return lax.pmax(moved, axis_name, axis_index_groups=[[i] for i in range(lax.axis_size(axis_name))])


@mutant("reduce_scatter", law="type", smallest=(2,))
def scatter_typed_invariant_by_a_branch(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Picks the piece of the sum in a branch by its own index, which types the result invariant."""
    total = collectives.all_reduce(x, axis_name)
    pieces = jnp.split(total, lax.axis_size(axis_name), axis=scatter_dimension)
    own = lax.switch(lax.axis_index(axis_name), [lambda piece=piece: piece for piece in pieces])
    return own if tiled else jnp.squeeze(own, scatter_dimension)


@mutant("permute", law="type", smallest=(2,))
def permute_typed_invariant_by_a_loop(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Turns what it gathered as often as its own index says, in a loop, which types the result invariant."""
    p = lax.axis_size(axis_name)
    source = {target: source for source, target in perm}
    gathered = collectives.all_gather_invariant(x, axis_name)
    blocks = jnp.stack([gathered[source[i]] if i in source else jnp.zeros_like(gathered[0]) for i in range(p)])
    return lax.fori_loop(0, lax.axis_index(axis_name), lambda _, held: jnp.roll(held, -1, axis=0), blocks)[0]
