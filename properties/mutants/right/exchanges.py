"""Right ways to write all_to_all."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import cut, join


@right("all_to_all")
def exchange_by_gathering(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Gathers all blocks and keeps its piece of each."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = cut(x, p, split_axis, tiled)
    received = lax.dynamic_index_in_dim(collectives.all_gather(pieces, axis_name), index, axis=1, keepdims=False)
    return join(received, concat_axis, tiled)


@right("all_to_all")
def exchange_name_by_name(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Exchanges over one name after the other, each along a dimension of its own."""
    axes = names(axis_name)
    pieces = cut(x, lax.axis_size(axes), split_axis, tiled)
    piece = pieces.shape[1:]
    grid = pieces.reshape(*(lax.axis_size(name) for name in axes), *piece)
    for dimension, name in enumerate(axes):
        grid = collectives.all_to_all(grid, name, split_axis=dimension, concat_axis=dimension, tiled=True)
    return join(grid.reshape(-1, *piece) if x.size else pieces, concat_axis, tiled)


@right("all_to_all")
def exchange_with_lax(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Calls `jax.lax`, whose untiled form has a wrong gradient."""
    return lax.all_to_all(x, axis_name, split_axis, concat_axis, tiled=tiled)


@right("all_to_all")
def exchange_in_a_scan(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Turns the pieces round the ring in a scan, and keeps one in every step."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    pieces = cut(x, p, split_axis, tiled)
    start = collectives.cast_varying(pieces, names(axis_name))

    def step(moving: Array, _: None) -> tuple[Array, Array]:
        return collectives.ring_shift(moving, axis_name), lax.dynamic_index_in_dim(moving, index, keepdims=False)

    _, kept = lax.scan(step, start, None, length=p)  # kept[i] came from i participants before
    return join(kept[(index - jnp.arange(p)) % p], concat_axis, tiled)


@right("all_to_all")
def exchange_with_its_own_gradient(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """A custom_vjp whose gradient splits where the value concatenates."""

    def exchange(x: Array) -> Array:
        return collectives.all_to_all(x, axis_name, split_axis=split_axis, concat_axis=concat_axis, tiled=tiled)

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.all_to_all(ct, axis_name, split_axis=concat_axis, concat_axis=split_axis, tiled=tiled),)

    function = jax.custom_vjp(exchange)
    function.defvjp(lambda x: (exchange(x), None), backward)
    return function(x)
