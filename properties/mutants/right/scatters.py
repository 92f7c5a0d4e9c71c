"""Right ways to write reduce_scatter."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import accumulator, added, cut, join, own, power_of_two, spread


@right("reduce_scatter")
def scatter_the_reduced(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Slices its piece out of the sum of all."""
    total = collectives.all_reduce(x, axis_name)
    return own(cut(total, lax.axis_size(axis_name), scatter_dimension, tiled), axis_name)


@right("reduce_scatter")
def scatter_along_a_ring(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Sends an accumulator round the ring, which everyone adds the piece of its last stop to."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = cut(x, p, scatter_dimension, tiled)
    total = lax.dynamic_index_in_dim(pieces, (index - 1) % p, keepdims=False)
    for step in range(2, p + 1):
        total = collectives.ring_shift(total, axis_name)
        total = total + lax.dynamic_index_in_dim(pieces, (index - step) % p, keepdims=False)
    return total


@right("reduce_scatter")
def scatter_in_a_scan(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """The ring as a scan, with an accumulator in float32 or int32."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = spread(cut(x, p, scatter_dimension, tiled).astype(accumulator(x.dtype)), axis_name)

    def step(total: Array, distance: Array) -> tuple[Array, None]:
        moved = collectives.ring_shift(total, axis_name)
        return moved + lax.dynamic_index_in_dim(pieces, (index - distance) % p, keepdims=False), None

    total, _ = lax.scan(step, jnp.zeros_like(pieces[0]), jnp.arange(1, p + 1))
    return total.astype(x.dtype)


@right("reduce_scatter")
def scatter_as_an_exchange(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Exchanges the pieces and adds what it received."""
    pieces = cut(x, lax.axis_size(axis_name), scatter_dimension, tiled)
    return added(collectives.all_to_all(pieces, axis_name, split_axis=0, concat_axis=0))


@right("reduce_scatter")
def scatter_by_gathering(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Gathers all blocks, adds them up and keeps its piece."""
    total = added(collectives.all_gather(x, axis_name))
    return own(cut(total, lax.axis_size(axis_name), scatter_dimension, tiled), axis_name)


@right("reduce_scatter")
def scatter_pairwise(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Sends the pieces straight to where they belong, at all distances in turn."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = cut(x, p, scatter_dimension, tiled)
    total = own(pieces, axis_name)
    for distance in range(1, p):
        sent = lax.dynamic_index_in_dim(pieces, (index + distance) % p, keepdims=False)
        total += collectives.ring_shift(sent, axis_name, offset=distance)
    return total


@right("reduce_scatter")
def scatter_by_halving(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Exchanges halves with partners at shrinking distances; serves powers of two only."""
    p, index = power_of_two(axis_name), lax.axis_index(axis_name)
    held, distance = cut(x, p, scatter_dimension, tiled), p // 2
    while distance:
        low, high = jnp.split(held, 2)
        upper = (index & distance) != 0
        sent = jnp.where(upper, low, high)
        arrived = collectives.permute(sent, axis_name, perm=[(i, i ^ distance) for i in range(p)])
        held, distance = jnp.where(upper, high, low) + arrived, distance // 2
    return held[0]


@right("reduce_scatter")
def scatter_name_by_name(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Scatters over the first name, what is left over the second, and so on."""
    pieces = cut(x, lax.axis_size(axis_name), scatter_dimension, tiled)
    for name in names(axis_name):
        pieces = collectives.reduce_scatter(pieces, name, tiled=True)
    return pieces[0]


@right("reduce_scatter")
def scatter_with_lax(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Calls `jax.lax`, whose untiled form does not batch everywhere."""
    return lax.psum_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)


@right("reduce_scatter")
def scatter_transposed(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Scatters the first dimension of the transposed block and transposes back."""
    piece = collectives.reduce_scatter(jnp.moveaxis(x, scatter_dimension, 0), axis_name, tiled=tiled)
    return jnp.moveaxis(piece, 0, scatter_dimension) if tiled else piece


@right("reduce_scatter")
def scatter_rows_under_vmap(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Scatters columns, mapped over all other dimensions."""
    p, moved = lax.axis_size(axis_name), jnp.moveaxis(x, scatter_dimension, -1)
    if not x.size:
        raise NotImplementedError("an empty block: there is nothing to map over")
    rows = jax.vmap(lambda row: collectives.reduce_scatter(row, axis_name, tiled=True))(
        moved.reshape(-1, moved.shape[-1])
    )
    pieces = rows.reshape(*moved.shape[:-1], moved.shape[-1] // p)
    return jnp.moveaxis(pieces, -1, scatter_dimension) if tiled else pieces[..., 0]


@right("reduce_scatter")
def scatter_with_its_own_gradient(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """A custom_vjp whose gradient gathers with a ring."""
    at = scatter_dimension

    def scatter(x: Array) -> Array:
        return collectives.reduce_scatter(x, axis_name, scatter_dimension=at, tiled=tiled)

    def backward(residuals: None, ct: Array) -> tuple[Array]:
        held = [ct]
        for _ in range(lax.axis_size(axis_name) - 1):
            held.append(collectives.ring_shift(held[-1], axis_name, offset=-1))
        return (join(jnp.roll(jnp.stack(held), lax.axis_index(axis_name), axis=0), at, tiled),)

    function = jax.custom_vjp(scatter)
    function.defvjp(lambda x: (scatter(x), None), backward)
    return function(x)
