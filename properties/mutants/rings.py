"""Planted bugs of algorithms that pass blocks round a ring: one way, along two axes, pairwise."""

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import algorithms, collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant


def passed(x: Array, axis_name: AxisName, steps: int, way: int = 1) -> list[Array]:
    """The block, and those that arrive in N steps round the ring."""
    held = [collectives.cast_varying(x, names(axis_name))]
    for _ in range(steps):
        held.append(collectives.ring_shift(held[-1], axis_name, offset=way))
    return held


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
def torus_mean_over_the_last_axis(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Divides the sum over a tuple by the size of its last axis alone."""
    if op != "mean":
        return collectives.all_reduce(x, axis_name, op=op)
    return algorithms.ring_all_reduce(x, axis_name) / lax.axis_size(names(axis_name)[-1])
