"""Products whose gradient is not that of their rings: what both operands' gradients need moves beside whole products.

The gradient of a ring adds up p small products. Here blocks come the shorter way round once, and a gradient that adds
up all rows is one product of full size. What moves for the gradient:

- of an operand that is gathered, that operand's gradient is a sum over participants. Its terms come first, that of the
  farthest participant before the others, while the operand is gathered again; behind its blocks, and beside the other
  one's gradient, sums come the shorter way round, from two sides. A participant's own term, with them, is last;
- of a sum that is scattered, the cotangent is gathered: each block gives a part of one operand's gradient as it
  arrives, and all together the other operand's.

What one product waits for is the index at which the next begins: a compiler that has the choice would put a transfer
behind the product that is to hide it.

So both gradients of a product with a gathered operand are computed, even if one alone is asked for.

Sums of 16-bit floats travel in the operand's dtype, in which JAX adds up cotangents. What is kept for the gradient is
the operands alone, and of a transformer block what relu gives. Up to `UNROLLED` participants it is a `custom_vjp`,
which has no forward mode. Gradients are not looped: among more these are `shorter_way`, `joined` and `alternating`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.collective_matmul import gathered, reduced
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    accumulator,
    aligned,
    waiting,
)
from shardproof.impl.collective_matmul.pairs import in_pairs
from shardproof.impl.collective_matmul.passing import Arrived, arriving, assembled, summing, total
from shardproof.impl.collectives import Block, axis_index, cast_varying, varying

Gradients = tuple[Left, Right]
Rule = Callable[[Left, Right, Result], Gradients]
"""Operands and the cotangent of the result to those of the operands."""


def rows_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M_Y, K] W[K, N_Z]`: the gradient of W, which adds up all rows, is one product of the gathered A."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        rows, dimension = lhs.shape[-2], lhs.ndim - 2

        def term(start: Array) -> Block:
            return _times_transposed(lax.dynamic_slice_in_dim(ct, start, rows, dimension), rhs)

        def of_rhs(arrived: Arrived) -> Right:
            whole = assembled(arrived, dimension, (*ct.shape[:-1], lhs.shape[-1]))
            return _transposed_times(whole, ct).astype(rhs.dtype)

        return _beside(lhs, rows, term, of_rhs, axes)

    return _paired(lambda a, w: gathered.shorter_way(gathered.rows_of_lhs(a, w, axes), axes), backward, lhs, rhs, axes)


def columns_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M, K_Y] W[K, N_Z]`: each block of A gives its rows of the gradient of W."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        def of_rhs(arrived: Arrived) -> Right:
            return assembled([(_transposed_times(one, ct).astype(rhs.dtype), at) for one, at in arrived], 0, rhs.shape)

        return _of_columns(lhs, rhs, ct, axes, of_rhs)

    def forward(lhs: Left, rhs: Right) -> Result:
        return gathered.shorter_way(gathered.columns_of_lhs(lhs, rhs, axes), axes)

    return _paired(forward, backward, lhs, rhs, axes)


def rows_of_rhs(lhs: Left, rhs: Right, axes: Axes) -> Result:
    """`A[…, M_Z, K] W[K_Y, N]`: each block of W gives its columns of the gradient of A; forward as `joined`."""

    def backward(lhs: Left, rhs: Right, ct: Result) -> Gradients:
        rows, dimension = rhs.shape[0], lhs.ndim - 1

        def term(start: Array) -> Block:
            return _transposed_times(lax.dynamic_slice_in_dim(lhs, start, rows, dimension), ct)

        def of_lhs(arrived: Arrived) -> Left:
            return assembled(arrived, dimension, lhs.shape, lambda one: _times_transposed(ct, one).astype(lhs.dtype))

        of_rhs, found = _beside(rhs, rows, term, of_lhs, axes)
        return found, of_rhs

    def forward(lhs: Left, rhs: Right) -> Result:
        return gathered.joined(gathered.rows_of_rhs(lhs, rhs, axes), axes)

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

        return *_of_columns(x, w_in, of_wide, axes, of_in), of_out

    product = jax.custom_vjp(result)
    product.defvjp(kept, gradients)
    found: Result = product(*operands)
    return found


def _of_columns(lhs: Left, rhs: Right, ct: Result, axes: Axes, of_rhs: Callable[[Arrived], Right]) -> Gradients:
    """The gradients of `A[…, M, K_Y] W[K, N_Z]`: sums of that of A travel beside that of W, of the blocks of A."""

    def term(start: Array) -> Block:
        return _times_transposed(ct, lax.dynamic_slice_in_dim(rhs, start, lhs.shape[-1], 0))

    return _beside(lhs, lhs.shape[-1], term, of_rhs, axes)


def _beside(
    moving: Block, size: int, term: Callable[[Array], Block], other: Callable[[Arrived], Block], axes: Axes
) -> tuple[Block, Block]:
    """The gradient of an operand that is gathered, a sum, beside that of the other one, which needs its blocks.

    Blocks have the links first: sums, of which none is known before a product, are sent behind them.

    Arguments:
        moving: this participant's block of that operand.
        size: its rows, or columns.
        term: what this participant adds to the sum of the one whose block starts there.
        other: the other gradient, of all participants' blocks.
        axes: of the ring.
    """
    p, arrived = lax.axis_size(axes), arriving(moving, size, axes, passed_on=True)
    from_both_sides = [one for one, _ in arrived[1 : 1 + 2 * ((p - 1) // 2)]]
    sums = summing(term, size, moving.dtype, axes, from_both_sides)
    found = other(arrived)
    own = term(waiting(axis_index(axes) * size, [found, *sums]))
    return total(own, sums).astype(moving.dtype), found


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


def _transposed_times(lhs: Left, ct: Result) -> Right:
    """`[…, M, K]` and `[…, M, N]` to `[K, N]`, in the accumulator's dtype."""
    added = tuple(range(lhs.ndim - 1))
    return lax.dot_general(lhs, ct, ((added, added), ((), ())), preferred_element_type=accumulator(lhs, ct))


def _times_transposed(ct: Result, rhs: Right) -> Left:
    """`[…, M, N]` and `[K, N]` to `[…, M, K]`, in the accumulator's dtype."""
    added = ((ct.ndim - 1,), (1,))
    return lax.dot_general(ct, rhs, (added, ((), ())), preferred_element_type=accumulator(ct, rhs))
