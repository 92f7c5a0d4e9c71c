"""Planted bugs of algorithms that take about log2 p steps: doubling, halving, Bruck's, trees."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.algorithms import broadcast, pieces
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def partners(p: int, distance: int) -> list[tuple[int, int]]:
    """The pairs whose indices differ in one bit, as far as there are such participants."""
    return [(i, i ^ distance) for i in range(p) if i ^ distance < p]


@mutant("reduce_scatter", smallest=(2,))
def halving_scatter_without_the_device(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Sends the upper half away on every device, also where the own piece is in it."""
    p = lax.axis_size(axis_name)
    if p & (p - 1):
        return collectives.reduce_scatter(x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled)
    held = pieces.split(x, p, scatter_dimension, tiled)
    for distance in reversed(pieces.distances(p)):
        arrived = collectives.permute(held[distance:], axis_name, perm=partners(p, distance))
        held = held[:distance] + arrived
    return collectives.cast_varying(held[0], names(axis_name))


@mutant("all_reduce", smallest=(3,))
def doubling_reduce_for_any_number(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Doubles recursively for every p, so that terms get lost where a partner does not exist."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    p = lax.axis_size(axis_name)
    for distance in pieces.distances(p):
        x = x + collectives.permute(x, axis_name, perm=partners(p, distance))
    return x


@mutant("all_reduce", smallest=(3,))
def tree_reduce_takes_nothing_for_zeros(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the zeros that a permute leaves where nothing arrives into a maximum or minimum."""
    if op not in ("max", "min"):
        return collectives.all_reduce(x, axis_name, op=op)
    p, combine = lax.axis_size(axis_name), jnp.maximum if op == "max" else jnp.minimum
    for distance in pieces.distances(p):
        sends = [(i, i - distance) for i in range(distance, p, 2 * distance)]
        x = combine(x, collectives.permute(x, axis_name, perm=sends))
    return collectives.broadcast(x, axis_name)


@mutant("all_reduce", smallest=(2,))
def tree_reduce_without_the_last_level(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Does not broadcast the result to the upper half of the participants."""
    result = collectives.all_reduce(x, axis_name, op=op)
    p = lax.axis_size(axis_name)
    half = pieces.distances(p)[-1] if p > 1 else 1
    own = x if op in ("max", "min") else x.astype(result.dtype)
    return jnp.where(lax.axis_index(axis_name) < half, result, own)


@mutant("all_to_all", smallest=(3,))
def bruck_exchange_for_powers_of_two(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Takes floor(log2 p) steps, one too few where p is no power of two."""
    return _bruck(x, axis_name, split_axis, concat_axis, tiled, steps=lax.axis_size(axis_name).bit_length() - 1)


def _bruck(
    x: Array,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    tiled: bool,
    *,
    rotates: bool = True,
    steps: int | None = None,
) -> Array:
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    held = jnp.roll(pieces.split(x, p, split_axis, tiled), -index, axis=0)
    for distance in pieces.distances(p)[:steps]:
        moving = jnp.arange(p) & distance
        moved = collectives.ring_shift(held, axis_name, offset=distance)
        held = jnp.where(moving.reshape(p, *(1 for _ in held.shape[1:])) != 0, moved, held)
    ordered = held[(index - jnp.arange(p)) % p] if rotates else held
    return pieces.join(ordered, concat_axis, tiled)


@mutant("broadcast", smallest=(2,))
def tree_broadcast_from_the_first(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Sends down a tree whose root is participant 0, and so nothing right where the root is another."""
    return broadcast.tree(collectives.cast_varying(x, names(axis_name)), names(axis_name), 0)


@mutant("broadcast", smallest=(3,))
def tree_broadcast_for_powers_of_two(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Takes floor(log2 p) steps, so that the last participants of other numbers get nothing."""
    p = lax.axis_size(axis_name)
    rank = (lax.axis_index(axis_name) - root) % p
    full = 1 << (p.bit_length() - 1)
    return jnp.where(rank < full, collectives.broadcast(x, axis_name, root=root), x)
