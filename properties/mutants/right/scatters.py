"""Right ways to write reduce_scatter."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import accumulator, added, cut, join, own, spread


@right("reduce_scatter")
def scatter_the_reduced(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Slices its piece out of the sum of all."""
    total = collectives.all_reduce(x, axis_name)
    return own(cut(total, lax.axis_size(axis_name), scatter_dimension, tiled), axis_name)


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
def scatter_by_gathering(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Gathers all blocks, adds them up and keeps its piece."""
    total = added(collectives.all_gather(x, axis_name))
    return own(cut(total, lax.axis_size(axis_name), scatter_dimension, tiled), axis_name)


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
