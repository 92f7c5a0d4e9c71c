"""Products whose gradient is not that of their rings: what both operands' gradients need moves beside whole products.

The gradient of a ring adds up p small products. Here blocks come the shorter way round once, and what needs all of them
is one product, if it adds them up:

- of an operand that is gathered, that operand's gradient is a sum over participants. Its terms come first, the farthest
  participant's before the others', and their sums come the shorter way round, from two sides. Beside them the operand is
  gathered again, and the other one's gradient computed. A participant's own term, with the sums that arrived, is last;
- of a sum that is scattered, the cotangent is gathered: each block gives a part of one operand's gradient as it
  arrives, and all together the other operand's.

What one product waits for is the index at which the next begins: a compiler that has the choice would put a transfer
behind the product that is to hide it.

Sums of 16-bit floats travel in the operand's dtype, in which JAX adds up cotangents. What is kept for the gradient is
the operands alone. A `custom_vjp` has no forward mode.
"""

from collections.abc import Callable, Sequence

import jax
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.collective_matmul import gathered, reduced
from shardproof.impl.collective_matmul.gathered import Arrivals, Gathering
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    accumulator,
    aligned,
    counted,
    unwritten,
    waiting,
)
from shardproof.impl.collectives import Block, axis_index

Gradients = tuple[Left, Right]
Rule = Callable[[Left, Right, Result], Gradients]
"""Operands and the cotangent of the result to those of the operands."""

EACH_WAY = 4
"""Into how many parts each way a sum is cut that is scattered."""


def rows_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M_Y, K] W[K, N_Z]`: the gradient of W, which adds up all rows, is one product of the gathered A."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        rows, dimension = lhs.shape[-2], lhs.ndim - 2

        def term(start: Array) -> Block:
            return _times_transposed(lax.dynamic_slice_in_dim(ct, start, rows, dimension), rhs)

        sums = _sums(term, rows, lhs.dtype, axes)
        of_rhs = _transposed_times(_whole(lhs, dimension, axes), ct).astype(rhs.dtype)
        own = term(waiting(axis_index(axes) * rows, [of_rhs]))
        return _total(own, sums).astype(lhs.dtype), of_rhs

    def forward(lhs: Left, rhs: Right) -> Result:
        return gathered.shorter_way(gathered.rows_of_lhs(lhs, rhs, axes), axes)

    return _with_gradient(forward, backward)(*aligned(lhs, rhs, axes))


def columns_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M, K_Y] W[K, N_Z]`: each block of A gives its rows of the gradient of W."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        columns, dimension = lhs.shape[-1], lhs.ndim - 1

        def term(start: Array) -> Block:
            return _times_transposed(ct, lax.dynamic_slice_in_dim(rhs, start, columns, 0))

        def absorb(of_rhs: Block | None, arrivals: Arrivals) -> Block:
            ((part, at),) = arrivals
            return _written(of_rhs, _transposed_times(part, ct).astype(rhs.dtype), at, 0, rhs.shape)

        sums = _sums(term, columns, lhs.dtype, axes)
        of_rhs = gathered.shorter_way(Gathering(lhs, dimension, absorb), axes, opposite_at_once=True)
        own = term(waiting(axis_index(axes) * columns, [of_rhs, *sums]))
        return _total(own, sums).astype(lhs.dtype), of_rhs

    def forward(lhs: Left, rhs: Right) -> Result:
        return gathered.shorter_way(gathered.columns_of_lhs(lhs, rhs, axes), axes)

    return _with_gradient(forward, backward)(*aligned(lhs, rhs, axes))


def scattered(lhs: Left, rhs: Right, axes: Axes, scatter_dimension: int) -> Result:
    """`A[…, M, K_Y] W[K_Y, N]`, whose rows (dimension 0) or columns (dimension 1) are scattered."""
    dimension = lhs.ndim - 2 + scatter_dimension

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        def absorb(state: tuple[Block, Block] | None, arrivals: Arrivals) -> tuple[Block, Block]:
            ((part, at),) = arrivals
            whole, own = (None, None) if state is None else state
            shape = [*lhs.shape[:-1], rhs.shape[1]]
            whole = _written(whole, part, at, dimension, shape)
            at = at if own is None else waiting(at, [own])
            if scatter_dimension == 0:
                return whole, _written(own, _times_transposed(part, rhs).astype(lhs.dtype), at, dimension, lhs.shape)
            return whole, _written(own, _transposed_times(lhs, part).astype(rhs.dtype), at, 1, rhs.shape)

        whole, own = gathered.shorter_way(Gathering(ct, dimension, absorb), axes, opposite_at_once=True)
        if scatter_dimension == 0:
            return own, _transposed_times(lhs, whole).astype(rhs.dtype)
        return _times_transposed(whole, rhs).astype(lhs.dtype), own

    def forward(lhs: Left, rhs: Right) -> Result:
        return reduced.in_turns(reduced.scattered(lhs, rhs, axes, scatter_dimension, "operands"), axes, EACH_WAY)

    return _with_gradient(forward, backward)(*aligned(lhs, rhs, axes))


def _with_gradient(forward: Callable[[Left, Right], Result], backward: Rule) -> "jax.custom_vjp[Result]":
    """A function of operands that are typed alike, rounded to their dtype."""

    @jax.custom_vjp
    def product(lhs: Left, rhs: Right) -> Result:
        return forward(lhs, rhs).astype(jax.numpy.result_type(lhs, rhs))

    product.defvjp(lambda lhs, rhs: (product(lhs, rhs), (lhs, rhs)), lambda known, ct: backward(*known, ct))
    return product


def _sums(term: Callable[[Array], Block], rows: int, dtype: jax.typing.DTypeLike, axes: Axes) -> list[Block]:
    """The sums of all other participants' terms that are this one's: one from each side, or from one of two alone.

    Arguments:
        term: the term of the participant whose rows begin at a row.
        rows: of each participant.
        dtype: in which sums travel.
        axes: of the ring.
    """
    p, index, before = lax.axis_size(axes), axis_index(axes), []

    def of(away: Array | int, *arrived: Block) -> Block:
        own = term(waiting((index + away) % p * rows, [*before, *arrived]))
        before[:] = [_total(own, arrived).astype(dtype)]
        return before[0]

    def step(carry: tuple[Block, Block], away: Array) -> tuple[tuple[Block, Block], None]:
        rightward, leftward = (shift(carry[0], axes, 1), shift(carry[1], axes, -1))
        before[:] = []
        return (of(away, rightward), of(-away, leftward)), None

    opposite = [shift(of(p // 2), axes, -1)] if p % 2 == 0 else []
    if p < 3:
        return opposite
    farthest = (p - 1) // 2
    start = of(farthest), of(-farthest, *opposite)
    rightward, leftward = lax.scan(step, start, counted(farthest - 1, 0, -1), unroll=p <= UNROLLED)[0]
    return [shift(rightward, axes, 1), shift(leftward, axes, -1)]


def _total(own: Block, arrived: Sequence[Block]) -> Block:
    for one in arrived:
        own = own + one.astype(own.dtype)
    return own


def _whole(block: Block, dimension: int, axes: Axes) -> Block:
    """All blocks, gathered in a dimension."""
    shape = list(block.shape)
    shape[dimension] *= lax.axis_size(axes)

    def absorb(whole: Block | None, arrivals: Arrivals) -> Block:
        ((part, at),) = arrivals
        return _written(whole, part, at, dimension, shape)

    return gathered.shorter_way(Gathering(block, dimension, absorb), axes, opposite_at_once=True)


def _written(whole: Block | None, part: Block, at: Array, dimension: int, shape: Sequence[int]) -> Block:
    """An array of a shape with a part of it in its place; all of it is to be written."""
    whole = unwritten(tuple(shape), part) if whole is None else whole
    return lax.dynamic_update_slice_in_dim(whole, part, at, dimension)


def _transposed_times(lhs: Left, ct: Result) -> Right:
    """`[…, M, K]` and `[…, M, N]` to `[K, N]`, in the accumulator's dtype."""
    added = tuple(range(lhs.ndim - 1))
    return lax.dot_general(lhs, ct, ((added, added), ((), ())), preferred_element_type=accumulator(lhs, ct))


def _times_transposed(ct: Result, rhs: Right) -> Left:
    """`[…, M, N]` and `[K, N]` to `[…, M, K]`, in the accumulator's dtype."""
    added = ((ct.ndim - 1,), (1,))
    return lax.dot_general(ct, rhs, (added, ((), ())), preferred_element_type=accumulator(ct, rhs))
