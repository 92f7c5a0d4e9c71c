"""Right values for too much communication: what only a law of communication can report."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from impl import collectives
from impl.algorithms import all_gather, pieces
from properties.mutants.axes import AxisName, names


def gather_with_a_step_too_many(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sends every block once more after the ring is closed, and back to where it started from."""
    axes, p = names(axis_name), lax.axis_size(axis_name)

    def step(moving: Array, _: None) -> tuple[Array, Array]:
        return collectives.ring_shift(moving, axes), moving

    _, held = lax.scan(step, collectives.cast_varying(x, axes), length=p)
    ordered = pieces.reorder(held, (lax.axis_index(axes) - jnp.arange(p)) % p)
    return pieces.join(ordered, axis, tiled)


def reduce_with_whole_blocks(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Passes whole blocks round the ring, (p-1)n bytes where 2(p-1)n/p do."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    result = moving = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
    for _ in range(lax.axis_size(axis_name) - 1):
        moving = collectives.ring_shift(moving, axis_name)
        result = result + moving
    return collectives.cast_varying(result, names(axis_name))


def scatter_with_wide_sums(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Adds up bfloat16 and float16 in float32 on the way, which doubles the bytes."""
    wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
    piece = collectives.reduce_scatter(wide, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    return piece.astype(x.dtype)


def exchange_with_all_pieces(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Sends all pieces in every step of Bruck's algorithm, also those that are to stay."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    held = jnp.roll(pieces.split(x, p, split_axis, tiled), -index, axis=0)
    for distance in pieces.distances(p):
        moving = (jnp.arange(p) & distance).reshape(p, *(1 for _ in held.shape[1:])) != 0
        held = jnp.where(moving, collectives.ring_shift(held, axis_name, offset=distance), held)
    ordered = pieces.reorder(held, (index - jnp.arange(p)) % p)
    return pieces.join(collectives.cast_varying(ordered, names(axis_name)), concat_axis, tiled)


def gather_with_a_wasteful_gradient(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Its gradient reduces whole cotangents along a ring, of which every member keeps a piece."""
    axes, p = names(axis_name), lax.axis_size(axis_name)

    def gather(x: Array) -> Array:
        return pieces.join(all_gather.ring(collectives.cast_varying(x, axes), axes), axis, tiled)

    def backward(_: None, ct: Array) -> tuple[Array]:
        total = pieces.split(reduce_with_whole_blocks(ct, axes), p, axis, tiled)
        return (lax.dynamic_index_in_dim(total, lax.axis_index(axes), keepdims=False),)

    function = jax.custom_vjp(gather)
    function.defvjp(lambda x: (gather(x), None), backward)
    return function(x)
