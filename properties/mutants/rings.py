"""Planted bugs of algorithms that pass blocks round a ring: one way, both ways, along two axes, pairwise."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import algorithms, collectives
from shardproof.impl.algorithms import pieces
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def passed(x: Array, axis_name: AxisName, steps: int, way: int = 1) -> list[Array]:
    """The block, and what comes by in so many steps round the ring."""
    held = [collectives.cast_varying(x, names(axis_name))]
    for _ in range(steps):
        held.append(collectives.ring_shift(held[-1], axis_name, offset=way))
    return held


def placed(held: list[Array], axis_name: AxisName, way: int = 1) -> Array:
    """Blocks `[p, …]` in logical order, of which the i-th came i participants far."""
    away = jnp.arange(len(held))
    return jnp.stack(held)[(way * (lax.axis_index(axis_name) - away)) % len(held)]


@mutant("all_gather", smallest=(2,))
def ring_gather_as_it_arrives(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Keeps the blocks in the order in which the ring delivers them, without regard to the device's index."""
    held = passed(x, axis_name, lax.axis_size(axis_name) - 1)
    return pieces.join(jnp.stack(held), axis, tiled)


@mutant("all_gather", smallest=(2,))
def ring_gather_without_its_last_step(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Ends the ring one step early and leaves zeros in place of the block that did not come."""
    p = lax.axis_size(axis_name)
    held = passed(x, axis_name, max(0, p - 2))
    held += [jnp.zeros_like(held[0])] * (p - len(held))
    return pieces.join(placed(held, axis_name), axis, tiled)


@mutant("all_gather", smallest=(1,))
def ring_gather_swaps_odd_halves(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Joins the two halves in the wrong order if the number of rows is odd."""
    x = collectives.cast_varying(x, names(axis_name))
    parts, dimension = pieces.halves(x, 0)
    gathered = [algorithms.ring_all_gather(part, axis_name) for part in parts]
    odd = x.ndim and x.shape[dimension] % 2 == 1
    return pieces.join(pieces.glue(gathered[::-1] if odd else gathered, dimension + 1), axis, tiled)


@mutant("all_gather", smallest=(3,))
def ring_gather_both_halves_rightward(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sends both halves to the right, and takes the second for one that came from the right."""
    p = lax.axis_size(axis_name)
    parts, dimension = pieces.halves(x, 0)
    gathered = [placed(passed(part, axis_name, p - 1), axis_name, way) for part, way in zip(parts, (1, -1))]  # noqa: B905
    return pieces.join(pieces.glue(gathered, dimension + 1), axis, tiled)


@mutant("all_gather", smallest=(2,))
def ring_gather_without_the_opposite(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Fetches blocks the shorter way round, and for even p none from the participant opposite, which is on neither."""
    p = lax.axis_size(axis_name)
    right, left = (passed(x, axis_name, (p - 1) // 2, way) for way in (1, -1))
    missing = [jnp.zeros_like(right[0])] * (1 - p % 2)
    return pieces.join(placed([*right, *missing, *left[:0:-1]], axis_name), axis, tiled)


@mutant("all_gather", law="gradient", smallest=(2,))
def ring_gather_keeps_its_gradient(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Stops the gradient of every block that came from another participant."""
    held = passed(x, axis_name, lax.axis_size(axis_name) - 1)
    return pieces.join(placed([held[0], *map(lax.stop_gradient, held[1:])], axis_name), axis, tiled)


def accumulated(parts: Array, axis_name: AxisName, steps: int, chunk: int | None = None, narrow: bool = False) -> Array:
    """A ring's reduce-scatter of `[p, …]`: the piece after so many steps, of always the same chunk if one is given."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)

    def piece(step: int) -> Array:
        return lax.dynamic_index_in_dim(parts, (index - step) % p if chunk is None else chunk, keepdims=False)

    total = piece(1)
    for step in range(2, steps + 2):
        sent = total.astype(jnp.bfloat16) if narrow and total.dtype == jnp.float32 else total
        total = collectives.ring_shift(sent, axis_name).astype(parts.dtype) + piece(step)
    return total


@mutant("reduce_scatter", smallest=(2,))
def ring_scatter_of_one_chunk(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Adds chunk 0 in every step, wherever the device and the step are."""
    p = lax.axis_size(axis_name)
    return accumulated(pieces.split(x, p, scatter_dimension, tiled), axis_name, p - 1, chunk=0)


@mutant("reduce_scatter", smallest=(1,))
def ring_scatter_one_step_too_many(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Goes p steps round the ring, so that one term is added twice, to the neighbour's piece."""
    p = lax.axis_size(axis_name)
    return accumulated(pieces.split(x, p, scatter_dimension, tiled), axis_name, p)


@mutant("reduce_scatter", smallest=(2,))
def ring_scatter_travels_in_bfloat16(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Sends sums of float32 as bfloat16, to save bytes."""
    p = lax.axis_size(axis_name)
    return accumulated(pieces.split(x, p, scatter_dimension, tiled), axis_name, p - 1, narrow=True)


@mutant("reduce_scatter", smallest=(2,))
def ring_scatter_loses_the_odd_row(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Leaves the others' terms out of the last row of pieces with an odd number of rows, which no half covers."""
    axes, p = names(axis_name), lax.axis_size(axis_name)
    parts = collectives.cast_varying(pieces.split(x, p, scatter_dimension, tiled), axes)
    total = algorithms.bidirectional_reduce_scatter(parts, axes)
    if p == 1 or not total.ndim or len(total) % 2 == 0:
        return total
    return total.at[-1].set(parts[lax.axis_index(axis_name)][-1])


@mutant("all_reduce", smallest=(2,))
def ring_reduce_without_padding(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces as many elements as p divides, and leaves the rest as they are."""
    flat, rest = x.ravel(), x.size % lax.axis_size(axis_name)
    if op == "mean" or not rest:
        return algorithms.ring_all_reduce(x, axis_name, op=op)
    reduced = algorithms.ring_all_reduce(flat[: x.size - rest], axis_name, op=op)
    return jnp.concatenate([reduced, flat[x.size - rest :]]).reshape(x.shape)


@mutant("all_reduce", smallest=(2,))
def ring_reduce_counts_the_opposite_twice(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds what comes from both sides in floor(p/2) steps, and so, for even p, the opposite block twice."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    steps = lax.axis_size(axis_name) // 2
    return sum(passed(x, axis_name, steps, -1)[1:], start=sum(passed(x, axis_name, steps)[1:], start=x))


@mutant("all_reduce", smallest=(1, 2))
def torus_reduce_of_one_axis_twice(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces a pair of axes over the first and, once more, over the first."""
    axes = names(axis_name)
    for name in (axes[0], axes[0]) if len(axes) == 2 else axes:
        x = algorithms.ring_all_reduce(x, name, op=op)
    return x


@mutant("all_reduce", smallest=(1, 2))
def torus_mean_over_the_last_axis(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Divides the sum over a tuple by the size of its last axis alone."""
    if op != "mean":
        return collectives.all_reduce(x, axis_name, op=op)
    return algorithms.ring_all_reduce(x, axis_name) / lax.axis_size(names(axis_name)[-1])


@mutant("all_to_all", smallest=(3,))
def pairwise_exchange_the_other_way(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Sends to the left what is meant for as far to the right."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    to_go = jnp.roll(pieces.split(x, p, split_axis, tiled), -index, axis=0)
    arrived = [collectives.ring_shift(to_go[i], axis_name, offset=-i) for i in range(p)]
    return pieces.join(placed(arrived, axis_name), concat_axis, tiled)


@mutant("all_to_all", smallest=(2, 2))
def two_phase_exchange_in_the_wrong_order(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Takes the first axis of a pair for the one that varies fastest."""
    axes = names(axis_name)
    if len(axes) != 2:
        return collectives.all_to_all(x, axes, split_axis=split_axis, concat_axis=concat_axis, tiled=tiled)
    exchange = algorithms.two_phase_all_to_all
    return exchange(x, axes[::-1], split_axis=split_axis, concat_axis=concat_axis, tiled=tiled)
