"""Products whose gradient is not that of their rings: what both operands' gradients need moves beside whole products.

The gradient of a ring adds up p small products. Here blocks come the shorter way round once, and the gradient that is a
sum over all of them is one product of full size:

- of an operand that is gathered, that operand's gradient is a sum over participants. Its terms come first, that of the
  farthest participant before the others, and their sums come the shorter way round, from two sides. Beside them the
  operand is gathered again, and the other one's gradient computed. A participant's own term, with the sums that
  arrived, is last;
- of a sum that is scattered, the cotangent is gathered: each block gives a part of one operand's gradient as it
  arrives, and all together the other operand's.

What one product waits for is the index at which the next begins: a compiler that has the choice would put a transfer
behind the product that is to hide it.

So both gradients of a product with a gathered operand are computed, even if one alone is asked for.

Sums of 16-bit floats travel in the operand's dtype, in which JAX adds up cotangents. What is kept for the gradient is
the operands alone, and of a transformer block what relu gives. Up to `UNROLLED` participants it is a `custom_vjp`,
which has no forward mode. Gradients are not looped: among more these are `shorter_way` and `alternating`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.collective_matmul import gathered, reduced
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    accumulator,
    aligned,
    places_back,
    unwritten,
    waiting,
)
from shardproof.impl.collective_matmul.pairs import in_pairs
from shardproof.impl.collectives import Block, axis_index, cast_varying, varying

Gradients = tuple[Left, Right]
Rule = Callable[[Left, Right, Result], Gradients]
"""Operands and the cotangent of the result to those of the operands."""

Arrived = Sequence[tuple[Block, Array]]
"""Blocks, and where each starts in the whole."""


def rows_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M_Y, K] W[K, N_Z]`: the gradient of W, which adds up all rows, is one product of the gathered A."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        rows, dimension = lhs.shape[-2], lhs.ndim - 2

        def term(start: Array) -> Block:
            return _times_transposed(lax.dynamic_slice_in_dim(ct, start, rows, dimension), rhs)

        arrived, sums = arriving(lhs, rows, axes), _sums(term, rows, lhs.dtype, axes)
        whole = assembled(arrived, dimension, (*ct.shape[:-1], lhs.shape[-1]))
        of_rhs = _transposed_times(whole, ct).astype(rhs.dtype)
        own = term(waiting(axis_index(axes) * rows, [of_rhs]))
        return _total(own, sums).astype(lhs.dtype), of_rhs

    return _paired(lambda a, w: gathered.shorter_way(gathered.rows_of_lhs(a, w, axes), axes), backward, lhs, rhs, axes)


def columns_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M, K_Y] W[K, N_Z]`: each block of A gives its rows of the gradient of W."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        def of_rhs(arrived: Arrived) -> Right:
            return assembled([(_transposed_times(one, ct).astype(rhs.dtype), at) for one, at in arrived], 0, rhs.shape)

        return _of_columns(lhs, rhs, ct, axes, arriving(lhs, lhs.shape[-1], axes), of_rhs)

    def forward(lhs: Left, rhs: Right) -> Result:
        return gathered.shorter_way(gathered.columns_of_lhs(lhs, rhs, axes), axes)

    return _paired(forward, backward, lhs, rhs, axes)


def block(x: Left, w_in: Right, w_out: Right, axes: Axes) -> Result:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D]`, whose columns are scattered; what relu gives is kept.

    Backward the cotangent comes first: each block of it gives columns of the gradient of W_out, and all together that
    of what is hidden. Beside that product X comes again, of which that of W_in is one product. For at most `UNROLLED`
    participants.
    """
    along = {*axes, *varying(x), *varying(w_in), *varying(w_out)}
    operands = [cast_varying(one, along) for one in (x, w_in, w_out)]
    dtype, dimension = jnp.result_type(*operands), x.ndim - 1

    def hidden_of(x: Left, w_in: Right) -> Result:
        wide = gathered.shorter_way(gathered.columns_of_lhs(x, w_in, axes), axes)
        return jax.nn.relu(wide.astype(jnp.result_type(x, w_in)))

    def summed(hidden: Left, w_out: Right) -> Result:
        return in_pairs(reduced.scattered(hidden, w_out, axes, 1, "operands"), axes).astype(dtype)

    def result(x: Left, w_in: Right, w_out: Right) -> Result:
        return summed(hidden_of(x, w_in), w_out)

    def kept(x: Left, w_in: Right, w_out: Right) -> tuple[Result, tuple[Array, ...]]:
        hidden = hidden_of(x, w_in)
        return summed(hidden, w_out), (x, w_in, w_out, hidden)

    def gradients(known: tuple[Array, ...], ct: Result) -> tuple[Left, Right, Right]:
        x, w_in, w_out, hidden = known
        arrived = arriving(ct, ct.shape[-1], axes, passed_on=True)
        of_out = assembled(arrived, 1, w_out.shape, lambda one: _transposed_times(hidden, one).astype(w_out.dtype))
        whole = assembled(arrived, dimension, (*ct.shape[:-1], w_out.shape[1]))
        of_hidden = _times_transposed(whole, w_out).astype(hidden.dtype)
        of_wide = jnp.where(hidden > 0, of_hidden, 0)

        def of_in(arrived: Arrived) -> Right:
            whole = assembled(arrived, dimension, (*x.shape[:-1], w_in.shape[0]))
            return _transposed_times(whole, of_wide).astype(w_in.dtype)

        again = arriving(x, x.shape[-1], axes, passed_on=True)
        return *_of_columns(x, w_in, of_wide, axes, again, of_in), of_out

    product = jax.custom_vjp(result)
    product.defvjp(kept, gradients)
    found: Result = product(*operands)
    return found


def _of_columns(
    lhs: Left, rhs: Right, ct: Result, axes: Axes, arrived: Arrived, of_rhs: Callable[[Arrived], Right]
) -> Gradients:
    """The gradients of `A[…, M, K_Y] W[K, N_Z]`: sums of that of A travel beside that of W, of the blocks of A."""
    columns = lhs.shape[-1]

    def term(start: Array) -> Block:
        return _times_transposed(ct, lax.dynamic_slice_in_dim(rhs, start, columns, 0))

    sums, found = _sums(term, columns, lhs.dtype, axes), of_rhs(arrived)
    own = term(waiting(axis_index(axes) * columns, [found, *sums]))
    return _total(own, sums).astype(lhs.dtype), found


def scattered(lhs: Left, rhs: Right, axes: Axes, scatter_dimension: int) -> Result:
    """`A[…, M, K_Y] W[K_Y, N]`, whose rows (dimension 0) or columns (dimension 1) are scattered."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        dimension = lhs.ndim - 2 + scatter_dimension
        arrived = arriving(ct, ct.shape[dimension], axes)
        whole = assembled(arrived, dimension, (*lhs.shape[:-1], rhs.shape[1]))
        if scatter_dimension == 0:
            of_lhs = assembled(arrived, dimension, lhs.shape, lambda one: _times_transposed(one, rhs).astype(lhs.dtype))
            return of_lhs, _transposed_times(lhs, whole).astype(rhs.dtype)
        of_rhs = assembled(arrived, 1, rhs.shape, lambda one: _transposed_times(lhs, one).astype(rhs.dtype))
        return _times_transposed(whole, rhs).astype(lhs.dtype), of_rhs

    def forward(lhs: Left, rhs: Right) -> Result:
        reducing = reduced.scattered(lhs, rhs, axes, scatter_dimension, "operands")
        if lax.axis_size(axes) > UNROLLED:
            return reduced.alternating(reducing, axes)
        return in_pairs(reducing, axes)

    return _paired(forward, backward, lhs, rhs, axes)


def _paired(forward: Callable[[Left, Right], Result], backward: Rule, lhs: Left, rhs: Right, axes: Axes) -> Result:
    """A product, rounded to the operands' dtype, and its gradient: a rule for operands that are typed alike."""

    def rounded(lhs: Left, rhs: Right) -> Result:
        return forward(lhs, rhs).astype(jnp.result_type(lhs, rhs))

    operands = aligned(lhs, rhs, axes)
    if lax.axis_size(axes) > UNROLLED:
        return rounded(*operands)

    def kept(lhs: Left, rhs: Right) -> tuple[Result, tuple[Left, Right]]:
        return rounded(lhs, rhs), (lhs, rhs)

    def gradients(known: tuple[Left, Right], ct: Result) -> Gradients:
        return backward(*known, ct)

    product = jax.custom_vjp(rounded)
    product.defvjp(kept, gradients)
    result: Result = product(*operands)
    return result


def arriving(block: Block, size: int, axes: Axes, *, passed_on: bool = False) -> list[tuple[Block, Array]]:
    """All participants' blocks, and where each starts in the whole, this one's first and the farthest one's last.

    The one opposite is passed on by a neighbour; but of four participants it is sent by its owner, over the same two
    links, and so it can begin before anything has arrived.

    Arguments:
        block: this participant's.
        size: the rows, or columns, of a block.
        axes: of the ring.
        passed_on: by a neighbour even of four: where something else is to have the links first.
    """
    p, back = lax.axis_size(axes), places_back(axes)
    rightward = leftward = block
    found = [(block, axis_index(axes) * size)]
    opposite = shift(block, axes, 2) if p == 4 and not passed_on else None
    for away in range(1, (p - 1) // 2 + 1):
        rightward, leftward = shift(rightward, axes, 1), shift(leftward, axes, -1)
        found += [(rightward, back(away) * size), (leftward, back(-away) * size)]
    if p % 2 == 0:
        opposite = shift(rightward, axes, 1) if opposite is None else opposite
        found.append((opposite, back(p // 2) * size))
    return found


def _sums(term: Callable[[Array], Block], size: int, dtype: Any, axes: Axes) -> list[Block]:
    """The sums of all other participants' terms that are this one's: one from each side, or one alone.

    Arguments:
        term: what this participant adds to the sum of the one whose block starts there.
        size: the rows, or columns, of a block.
        dtype: in which sums travel.
        axes: of the ring.
    """
    p, back = lax.axis_size(axes), places_back(axes)
    before: list[Block] = []

    def added(away: int, arrived: Sequence[Block]) -> Block:
        own = term(waiting(back(-away) * size, [*before, *arrived]))
        before[:] = [_total(own, arrived).astype(dtype)]
        return before[0]

    rightward: list[Block] = []
    leftward = [shift(added(p // 2, []), axes, -1)] if p % 2 == 0 else []
    for away in range((p - 1) // 2, 0, -1):
        rightward = [shift(added(away, rightward), axes, 1)]
        leftward = [shift(added(-away, leftward), axes, -1)]
    return [*rightward, *leftward]


def _total(own: Block, arrived: Sequence[Block]) -> Block:
    for one in arrived:
        own = own + one.astype(own.dtype)
    return own


def assembled(
    parts: Arrived,
    dimension: int,
    shape: Sequence[int],
    product: Callable[[Block], Block] | None = None,
) -> Block:
    """An array of a shape, of parts that start at rows of a dimension; or of their products, one after the other."""
    whole: list[Block] = []
    for part, at in parts:
        one = part if product is None else product(part)
        start = waiting(at, whole) if product is not None else at
        into = whole[0] if whole else unwritten(tuple(shape), one)
        whole = [lax.dynamic_update_slice_in_dim(into, one, start, dimension)]
    return whole[0]


def _transposed_times(lhs: Left, ct: Result) -> Right:
    """`[…, M, K]` and `[…, M, N]` to `[K, N]`, in the accumulator's dtype."""
    added = tuple(range(lhs.ndim - 1))
    return lax.dot_general(lhs, ct, ((added, added), ((), ())), preferred_element_type=accumulator(lhs, ct))


def _times_transposed(ct: Result, rhs: Right) -> Left:
    """`[…, M, N]` and `[K, N]` to `[…, M, K]`, in the accumulator's dtype."""
    added = ((ct.ndim - 1,), (1,))
    return lax.dot_general(ct, rhs, (added, ((), ())), preferred_element_type=accumulator(ct, rhs))
