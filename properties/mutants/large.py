"""Planted bugs that only a mesh shows that is larger than what one machine usually pretends to have."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, mesh_names, mesh_size
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.gradients import with_gradient


@mutant("broadcast", law="scale", smallest=(17,), runs="large")
def broadcast_with_four_bits(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Keeps the root in four bits, which is too few for more than 16 participants."""
    return collectives.broadcast(x, axis_name, root=root & 15)


@mutant("ring_shift", law="scale", smallest=(101,), runs="large")
def shift_gives_up_beyond_a_hundred(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Does nothing on meshes of more than 100 devices."""
    small = mesh_size(mesh_names()) <= 100
    return collectives.ring_shift(x, axis_name, offset=offset if small else 0)


@mutant("ring_shift", law="scale", smallest=(9,), runs="large")
def shift_not_for_nine_to_sixteen(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Has schedules for up to eight participants and for more than sixteen; in between leaves blocks as they are."""
    between = 9 <= lax.axis_size(axis_name) <= 16
    return collectives.ring_shift(x, axis_name, offset=0 if between else offset)


@mutant("broadcast", law="scale", smallest=(9,), runs="large")
def broadcast_with_a_gradient_of_eight(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Gives the root the gradients of the first eight participants only."""
    return with_gradient(
        lambda x: collectives.broadcast(x, axis_name, root=root),
        lambda ct: jnp.where(
            lax.axis_index(axis_name) == root,
            collectives.all_reduce(jnp.where(lax.axis_index(axis_name) < 8, ct, jnp.zeros_like(ct)), axis_name),
            jnp.zeros_like(ct),
        ),
        x,
    )
