"""Planted bugs of all-reduces in about log2 p steps: doubling, and trees."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import algorithms, collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


def partners(p: int, distance: int) -> list[tuple[int, int]]:
    """The pairs whose indices differ in one bit, as far as there are such participants."""
    return [(i, i ^ distance) for i in range(p) if i ^ distance < p]


@mutant("all_reduce", smallest=(3,))
def doubling_reduce_for_any_number(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Doubles recursively for every p, so that terms get lost where a partner does not exist."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    p = lax.axis_size(axis_name)
    for distance in algorithms.distances(p):
        x = x + collectives.permute(x, axis_name, perm=partners(p, distance))
    return x


@mutant("all_reduce", smallest=(3,))
def tree_reduce_takes_nothing_for_zeros(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the zeros that a permute leaves where nothing arrives into a maximum or minimum."""
    if op not in ("max", "min"):
        return collectives.all_reduce(x, axis_name, op=op)
    p, combine = lax.axis_size(axis_name), jnp.maximum if op == "max" else jnp.minimum
    for distance in algorithms.distances(p):
        sends = [(i, i - distance) for i in range(distance, p, 2 * distance)]
        x = combine(x, collectives.permute(x, axis_name, perm=sends))
    return collectives.broadcast(x, axis_name)
