"""Planted bugs of products whose sums go half each way round a ring, in turns, and of the dtype that sums travel in."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import align_types, multiply
from shardproof.impl.rings import WAYS, shift
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant

Turn = Callable[[list[Array], int, Callable[[int, int, Any], Array], Callable[[int, Array], Array]], list[Array]]
"""Given both halves' sums, the step, a half's term once something is there, and a half's sum on its way: the next."""


def fair(sums: list[Array], away: int, term: Callable[..., Array], sent: Callable[..., Array]) -> list[Array]:
    """Each half's sum travels beside the product of the other half, as in the right form."""
    passed = sent(0, sums[0])
    second = sums[1]
    first = passed + term(0, away, (passed, second))
    arrived = sent(1, second)
    return [first, arrived + term(1, away, (arrived, first))]


def in_turns(
    lhs: Array, rhs: Array, axis_name: AxisName, dimension: int, *, turn: Turn = fair, ways: tuple[int, int] = WAYS
) -> Array:
    """Halves of every sum along `ways`, the terms those of sums that go rightward and leftward."""
    dtype, axes, p = jnp.result_type(lhs, rhs), names(axis_name), lax.axis_size(axis_name)
    lhs, rhs = align_types(lhs, rhs, axis_name=axes)
    cut, along = (lhs, lhs.ndim - 2) if dimension == 0 else (rhs, 1)
    rows, index = cut.shape[along] // p, collectives.axis_index(axis_name)
    sizes = (rows - rows // 2, rows // 2)

    def term(half: int, away: int, before: Any = ()) -> Array:
        at = (index - WAYS[half] * away) % p * rows + half * sizes[0]
        waiting = lax.optimization_barrier((at, before))[0]
        part = lax.dynamic_slice_in_dim(cut, waiting, sizes[half], along)
        return multiply(part, rhs) if dimension == 0 else multiply(lhs, part)

    sums = [term(0, 1), term(1, 1)]
    for away in range(2, p + 1):
        sums = turn(sums, away, term, lambda half, one: shift(one, axes, ways[half]))
    return jnp.concatenate(sums, lhs.ndim - 2 + dimension).astype(dtype)


@mutant("matmul_reduce_scatter", smallest=(3,))
def second_half_sent_the_first_ones_way(
    lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int
) -> Array:
    """Sends both halves of the rows rightward, and adds to the second what is for sums that go leftward."""
    return in_turns(lhs, rhs, axis_name, scatter_dimension, ways=(1, 1))


@mutant("matmul_reduce_scatter", smallest=(2,), law="overlap", overlap="exposed<=4/5")
def both_halves_wait_for_both(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Takes no turns: each half's product waits until both sums have come, and none is computed beside a transfer."""

    def idle(sums: list[Array], away: int, term: Any, sent: Any) -> list[Array]:
        arrived = [sent(half, one) for half, one in enumerate(sums)]
        return [one + term(half, away, tuple(arrived)) for half, one in enumerate(arrived)]

    return in_turns(lhs, rhs, axis_name, scatter_dimension, turn=idle)


@mutant(
    "matmul_reduce_scatter",
    law="communication",
    smallest=(2,),
    communication="permute=(p-1)*(2 if rows>1 else 1),bytes=(p-1)*elements(out)*sum_itemsize(lhs),steps=p-1",
)
def accumulators_sent_in_the_operands_dtype(*operands: Any, **options: Any) -> Array:
    """Rounds its sums to the operands' dtype at every hop, though they are said to travel in the accumulator's."""
    return collective_matmul.alternating_matmul_reduce_scatter(*operands, **options, sums="operands")
