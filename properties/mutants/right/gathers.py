"""Right ways to write all_gather and all_gather_invariant."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import right
from shardproof.properties.mutants.right.pieces import accumulator, cut, join, own, power_of_two, spread


@right("all_gather")
def gather_along_a_ring(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Stacks the blocks as a ring delivers them, and turns them until they are in logical order."""
    p, held = lax.axis_size(axis_name), [spread(x, axis_name)]
    for _ in range(p - 1):
        held.append(collectives.ring_shift(held[-1], axis_name))
    order = (lax.axis_index(axis_name) - np.arange(p)) % p
    return join(jnp.stack(held)[order], axis, tiled)


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
def gather_by_doubling(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Exchanges all that it holds with partners at growing distances; serves powers of two only."""
    p, index, held = power_of_two(axis_name), lax.axis_index(axis_name), spread(x, axis_name)[None]
    distance = 1
    while distance < p:
        other = collectives.permute(held, axis_name, perm=[(i, i ^ distance) for i in range(p)])
        upper = (index & distance) != 0
        low, high = jnp.where(upper, other, held), jnp.where(upper, held, other)
        held, distance = jnp.concatenate([low, high]), 2 * distance
    return join(held, axis, tiled)


@right("all_gather")
def gather_by_summing_slots(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sums buffers of zeros in which everyone filled the own slot; its result is typed invariant."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    slots = lax.dynamic_update_slice_in_dim(
        collectives.cast_varying(jnp.zeros((p, *x.shape), x.dtype), collectives.varying(x)), x[None], index, 0
    )
    return join(lax.psum(slots, axis_name).astype(x.dtype), axis, tiled)


@right("all_gather")
def gather_elements_under_vmap(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Gathers scalars, mapped over the elements of the flat block with the batch last."""
    if not x.size:
        raise NotImplementedError("an empty block: there is nothing to map over")
    flat = jax.vmap(lambda element: collectives.all_gather(element, axis_name), out_axes=-1)(jnp.ravel(x))
    return join(flat.reshape(-1, *x.shape), axis, tiled)


@right("all_gather")
def gather_in_a_scan(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """The ring as a scan that stacks what it sees."""
    p = lax.axis_size(axis_name)
    _, held = lax.scan(
        lambda block, _: (collectives.ring_shift(block, axis_name), block), spread(x, axis_name), length=p
    )
    return join(jnp.roll(held[::-1], lax.axis_index(axis_name) + 1, axis=0), axis, tiled)


@right("all_gather")
def gather_in_a_while_loop(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """The ring as a while_loop that updates a buffer."""
    p, index, start = lax.axis_size(axis_name), lax.axis_index(axis_name), spread(x, axis_name)
    blocks = collectives.cast_varying(jnp.zeros((p, *x.shape), x.dtype), collectives.varying(start))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, moving, held = state
        held = lax.dynamic_update_index_in_dim(held, moving, (index - i) % p, 0)
        return i + 1, collectives.ring_shift(moving, axis_name), held

    held = lax.while_loop(lambda state: state[0] < p, step, (jnp.int32(0), start, blocks))[2]
    return join(held, axis, tiled)


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


@right("all_gather")
def gather_with_its_own_gradient(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """A custom_vjp whose gradient is a sum followed by a slice."""

    def gather(x: Array) -> Array:
        return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.reduce_scatter(ct, axis_name, scatter_dimension=axis, tiled=tiled),)

    function = jax.custom_vjp(gather)
    function.defvjp(lambda x: (gather(x), None), backward)
    return function(x)


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
