"""Matrix products that add up on every participant, overlapped: `A[…, M, K_Y] W[K_Y, N] -> [M, N]`.

p is the number of participants. Over one axis or a tuple of axes in any order. Sums of 16-bit floats travel as `sums`
says (see `shardproof.impl.collective_matmul.reduce_scatter`); where a ring gathers them back they are rounded before.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.all_gather import pass_both_ways
from shardproof.impl.collective_matmul.operands import (
    Left,
    Result,
    Right,
    Sums,
    aligned,
    check_product,
    empty_array,
    multiply,
    travelling,
    write,
)
from shardproof.impl.collective_matmul.reduce_scatter import (
    alternating_matmul_reduce_scatter,
    parts_of_terms,
    ring_matmul_reduce_scatter,
    take_turns,
)
from shardproof.impl.collectives import Block, all_gather_invariant, all_reduce, axis_index
from shardproof.impl.indices import around


@check_product()
def alternating_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName, *, sums: Sums = "operands") -> Result:
    """Half sums of rows go each way, in turns; while the second part of all rows is, the first is gathered, both ways.

    4(p-1) permutes of sums and as many of finished rows, each of half of ceil(M/2p) rows; of fewer than 2p rows there
    is one part, and half as many permutes. Rows are filled up to a multiple. Typed varying. `sums` is as in
    `alternating_matmul_reduce_scatter`. Best in time for large products, forward: at 8192x16384 by 16384x8192 over 4
    participants of v5e 1.30 times the unsharded product as XLA:TPU schedules it, which takes 1.79 times for its own,
    and 2.57 for the naive form.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, or `sums` that is neither.
    """
    p, m, rows = lax.axis_size(axis_name), lhs.shape[-2], lhs.ndim - 2
    dtype, result = travelling(sums, lhs, rhs), jnp.result_type(lhs, rhs)
    parts = 2 if m >= 2 * p else 1
    lhs, rhs = aligned(lhs, rhs, axis_name)  # before rows are added, whose sums would be sent in the gradient as well
    lhs = _filled_up(lhs, parts * p)
    done: list[Block] = []
    whole: list[Block] = []
    size = lhs.shape[-2] // parts
    for first in [part * size for part in range(parts)]:
        term, sizes = parts_of_terms(lhs, rhs, axis_name, 0, 2, first=first, rows=size // p)
        if len(sizes) == 2:
            done = take_turns(term, axis_name, dtype, result, behind=done, beside=whole)
        else:  # a piece of one row cannot take turns
            part = lax.slice_in_dim(lhs, first, first + size, axis=rows)
            piece = ring_matmul_reduce_scatter(part, rhs, axis_name, sums=sums)
            done = [piece, piece[..., 1:, :]]
        into = whole[0] if whole else empty_array((*lhs.shape[:-1], rhs.shape[1]), done[0])
        whole = [_gather_halves(done, into, first, axis_name)]
    return whole[0][..., :m, :]


@check_product()
def scattered_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName, *, sums: Sums = "operands") -> Result:
    """Half sums of rows go each way, in turns, and one all-gather collects them; typed invariant.

    2(p-1) permutes, each of half of ceil(M/p) rows, or p - 1 of one row; rows are filled up to a multiple. Its
    derivative is that of the naive form: the gradient is two products, and sends nothing. `sums` is as in
    `alternating_matmul_reduce_scatter`. Best in time for small products, and with a gradient: at 1024x8192 by 8192x2048
    over 4 participants of v5e 2.38 times the unsharded product, as XLA:TPU schedules it, which takes 2.45 times for its
    own.

    Raises:
        ValueError: as `alternating_matmul_all_reduce`.
    """
    lhs, rhs = aligned(lhs, rhs, axis_name)
    rows, m, dtype = lhs.ndim - 2, lhs.shape[-2], jnp.result_type(lhs, rhs)

    @jax.custom_jvp
    def total(lhs: Left, rhs: Right) -> Result:
        filled = _filled_up(lhs, lax.axis_size(axis_name))
        piece = alternating_matmul_reduce_scatter(filled, rhs, axis_name, sums=sums)
        return all_gather_invariant(piece, axis_name, axis=rows, tiled=True)[..., :m, :]

    @total.defjvp
    def _(primals: tuple[Left, Right], tangents: tuple[Left, Right]) -> tuple[Result, Result]:
        tangent = jax.jvp(multiply, primals, tangents)[1]
        return total(*primals), all_reduce(tangent, axis_name).astype(dtype)

    found: Result = total(lhs, rhs)
    return found


def _filled_up(lhs: Left, multiple: int) -> Left:
    """Rows of zeros added to a multiple."""
    return jnp.pad(lhs, [*[(0, 0)] * (lhs.ndim - 2), (0, -lhs.shape[-2] % multiple), (0, 0)])


def _gather_halves(halves: Sequence[Block], into: Block, start: int, axis_name: AxisName) -> Block:
    """Writes all participants' rows into an array from `start` on: half goes rightward, the other half leftward."""
    p, me, dimension = lax.axis_size(axis_name), axis_index(axis_name), into.ndim - 2
    first, second = halves
    size = first.shape[dimension]
    rows = size + second.shape[dimension]

    def write_halves(into: Block, right: Block, left: Block, distance: Array | int) -> Block:
        into = write(into, right, start + around(me - distance, p) * rows, dimension)
        return write(into, left, start + around(me + distance, p) * rows + size, dimension)

    into = write_halves(into, first, second, 0)
    first, second, into = pass_both_ways(first, second, into, write_halves, p - 1, axis_name)
    return write_halves(into, first, second, p - 1) if p > 1 else into
