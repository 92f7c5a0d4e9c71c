"""Products with gradients of their own: both operands' gradients are computed beside one another.

The gradient of a ring adds up p small products. Here blocks come the shorter way round once, and a gradient that adds
up all rows is one product of full size. Backward,

- the gradient of an operand that was gathered is a sum over participants. Its terms are computed first, that of the
  farthest participant before the others, while the operand is gathered again; the sums follow the blocks, from two
  sides, beside the other operand's gradient. A participant's own term is last;
- the cotangent of a sum that was scattered is gathered: each block gives a part of one operand's gradient as it
  arrives, and all together the other operand's.

A product is scheduled by the index at which it begins: a compiler that has the choice would put a transfer behind the
product that is to hide it. Both gradients are computed, even if only one is used.

Sums of 16-bit floats travel in the operand's dtype, in which JAX adds up cotangents. Residuals are the operands, and
of a transformer block the output of relu. All are a `custom_vjp`, which has no forward mode. Among more than `UNROLLED`
participants, where loops are not unrolled, they are other forms: blocks come the shorter way, joined or alternating.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.all_gather import (
    add_products,
    assemble,
    gather_shorter_way,
    joined_all_gather_matmul_rhs,
    write_products,
)
from shardproof.impl.collective_matmul.operands import check_operands
from shardproof.impl.collective_matmul.reduce_scatter import (
    alternating_matmul_reduce_scatter,
    join_parts,
    parts_of_terms,
)
from shardproof.impl.collectives import Block, accumulator
from shardproof.impl.rings import (
    UNROLLED,
    Left,
    Result,
    Right,
    align_types,
    pass_shorter_way,
    ring_loop,
    schedule_after,
    shift,
    shift_both,
)

Pair = tuple[Block, Block]
"""A block that goes rightward, and one that goes leftward."""


@check_operands
def paired_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Whole blocks of A come the shorter way round: p - 1 permutes in floor(p/2) steps. Backward each block that comes
    again gives its rows of the gradient of W. No forward mode.

    Best where products take longer than transfers, and in the gradient: at 8192x8192 by 8192x16384 1.05 times the
    unsharded products.
    """

    def backward(lhs: Left, rhs: Right, ct: Result) -> tuple[Left, Right]:
        def term(start: Array) -> Left:
            return _times_rhs_transposed(ct, lax.dynamic_slice_in_dim(rhs, start, lhs.shape[-1], 0))

        arrived = gather_shorter_way(lhs, -1, axis_name, passed_on=True)
        sums = _sums_of_others(term, arrived, axis_name)
        of_rhs = assemble([(_lhs_transposed_times(one, ct).astype(rhs.dtype), at) for one, at in arrived], 0, rhs.shape)
        return _total(term(schedule_after(arrived[0][1], [of_rhs, *sums])), sums).astype(lhs.dtype), of_rhs

    forward = functools.partial(add_products, travel=pass_shorter_way)
    return _with_gradient(forward, backward, lhs, rhs, axis_name)


@check_operands
def paired_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Whole blocks of A come the shorter way round: p - 1 permutes in floor(p/2) steps. Backward the gradient of W, which
    adds up all rows, is one product of the gathered A. No forward mode.

    Best where products take longer than transfers, and in the gradient: at 8192x8192 by 8192x16384 1.13 times the
    unsharded products.
    """

    def backward(lhs: Left, rhs: Right, ct: Result) -> tuple[Left, Right]:
        def term(start: Array) -> Left:
            return _times_rhs_transposed(lax.dynamic_slice_in_dim(ct, start, lhs.shape[-2], ct.ndim - 2), rhs)

        arrived = gather_shorter_way(lhs, -2, axis_name, passed_on=True)
        sums = _sums_of_others(term, arrived, axis_name)
        whole = assemble(arrived, -2, (*ct.shape[:-1], lhs.shape[-1]))
        of_rhs = _lhs_transposed_times(whole, ct).astype(rhs.dtype)
        return _total(term(schedule_after(arrived[0][1], [of_rhs, *sums])), sums).astype(lhs.dtype), of_rhs

    forward = functools.partial(write_products, travel=functools.partial(pass_shorter_way, direct=True))
    return _with_gradient(forward, backward, lhs, rhs, axis_name)


@check_operands
def paired_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Forward as `joined`. Backward whole blocks of W come again, each of which gives its columns of the gradient of A. No
    forward mode.

    Best in the gradient: at 8192x8192 by 8192x16384 1.87 times the unsharded products, where links that are full all
    the time would take 1.68.
    """

    def backward(lhs: Left, rhs: Right, ct: Result) -> tuple[Left, Right]:
        def term(start: Array) -> Right:
            return _lhs_transposed_times(lax.dynamic_slice_in_dim(lhs, start, rhs.shape[0], lhs.ndim - 1), ct)

        arrived = gather_shorter_way(rhs, 0, axis_name, passed_on=True)
        sums = _sums_of_others(term, arrived, axis_name)
        columns = ((_times_rhs_transposed(ct, one).astype(lhs.dtype), at) for one, at in arrived)
        of_lhs = assemble(columns, -1, lhs.shape, in_turn=True)
        return of_lhs, _total(term(schedule_after(arrived[0][1], [of_lhs, *sums])), sums).astype(rhs.dtype)

    return _with_gradient(joined_all_gather_matmul_rhs, backward, lhs, rhs, axis_name)


@check_operands
def paired_matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0) -> Result:
    """Sums in two parts each way, in pairs that take turns; backward the cotangent is gathered once. No forward mode.

    Sums of 16-bit floats travel in 16 bits. Best in time for large products, but on v4 and v6e, and in the gradient,
    and exposes nothing where links take as long as products, of pieces of four rows and more: at 8192 cubed over 4
    participants of v5e 1.07 times the unsharded product, as XLA:TPU schedules it, and its gradient 1.15 times two; at
    8192x16384 by 16384x8192 over 8 of them 1.07 times, where `alternating` takes 1.51.
    """

    def backward(lhs: Left, rhs: Right, ct: Result) -> tuple[Left, Right]:
        dimension = lhs.ndim - 2 + scatter_dimension
        arrived = gather_shorter_way(ct, dimension, axis_name)
        whole = assemble(arrived, dimension, (*lhs.shape[:-1], rhs.shape[1]))
        if scatter_dimension == 0:
            rows = ((_times_rhs_transposed(one, rhs).astype(lhs.dtype), at) for one, at in arrived)
            of_lhs = assemble(rows, dimension, lhs.shape, in_turn=True)
            return of_lhs, _lhs_transposed_times(lhs, whole).astype(rhs.dtype)
        columns = ((_lhs_transposed_times(lhs, one).astype(rhs.dtype), at) for one, at in arrived)
        of_rhs = assemble(columns, 1, rhs.shape, in_turn=True)
        return _times_rhs_transposed(whole, rhs).astype(lhs.dtype), of_rhs

    forward = functools.partial(_sums_in_pairs, dimension=scatter_dimension)
    return _with_gradient(forward, backward, lhs, rhs, axis_name)


@check_operands
def paired_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, typed varying.

    Blocks come the shorter way, sums in two parts each way. Backward the cotangent comes first: each block of it gives
    columns of the gradient of W_out, and all together that of the hidden values. Beside that product X comes again, of
    which the gradient of W_in is one product. No forward mode.

    Sums of 16-bit floats travel in 16 bits. Best for large blocks, and in the gradient: at 8192x8192
    by 8192x16384 by 16384x8192 over 4 participants of v5e 1.04 times the unsharded products, as XLA:TPU schedules it,
    and over 8 of them 1.19 times, where `alternating` takes 1.39. The gradient takes 1.10 times the unsharded one, at
    8192 cubed 1.22 times (the naive form's 1.16 and 1.28).
    """
    x, w_in, w_out = align_types(x, w_in, w_out, axis_name=axis_name)

    def forward(x: Left, w_in: Right, w_out: Right) -> tuple[Result, tuple[Array, ...]]:
        hidden = jax.nn.relu(add_products(x, w_in, axis_name, pass_shorter_way))
        return _sums_in_pairs(hidden, w_out, axis_name, 1), (x, w_in, w_out, hidden)

    def backward(kept: tuple[Array, ...], ct: Result) -> tuple[Left, Right, Right]:
        x, w_in, w_out, hidden = kept
        arrived = gather_shorter_way(ct, -1, axis_name, passed_on=True)
        columns = ((_lhs_transposed_times(hidden, one).astype(w_out.dtype), at) for one, at in arrived)
        of_out = assemble(columns, 1, w_out.shape, in_turn=True)
        whole = assemble(arrived, -1, (*ct.shape[:-1], w_out.shape[1]))
        of_hidden = jnp.where(hidden > 0, _times_rhs_transposed(whole, w_out).astype(hidden.dtype), 0)

        def term(start: Array) -> Left:
            return _times_rhs_transposed(of_hidden, lax.dynamic_slice_in_dim(w_in, start, x.shape[-1], 0))

        arrived = gather_shorter_way(x, -1, axis_name, passed_on=True)
        sums = _sums_of_others(term, arrived, axis_name)
        whole = assemble(arrived, -1, (*x.shape[:-1], w_in.shape[0]))
        of_in = _lhs_transposed_times(whole, of_hidden).astype(w_in.dtype)
        return _total(term(schedule_after(arrived[0][1], [of_in, *sums])), sums).astype(x.dtype), of_in, of_out

    if lax.axis_size(axis_name) > UNROLLED:
        return forward(x, w_in, w_out)[0]
    block = jax.custom_vjp(lambda x, w_in, w_out: forward(x, w_in, w_out)[0])
    block.defvjp(forward, backward)
    found: Result = block(x, w_in, w_out)
    return found


def _with_gradient(
    form: Callable[[Left, Right, AxisName], Result],
    backward: Callable[[Left, Right, Result], tuple[Left, Right]],
    lhs: Left,
    rhs: Right,
    axis_name: AxisName,
) -> Result:
    """A product with a gradient of its own, of operands with the same type."""
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    if lax.axis_size(axis_name) > UNROLLED:
        return form(lhs, rhs, axis_name)
    product = jax.custom_vjp(lambda lhs, rhs: form(lhs, rhs, axis_name))
    product.defvjp(
        lambda lhs, rhs: (form(lhs, rhs, axis_name), (lhs, rhs)), lambda kept, ct: backward(kept[0], kept[1], ct)
    )
    found: Result = product(lhs, rhs)
    return found


def _sums_in_pairs(lhs: Left, rhs: Right, axis_name: AxisName, dimension: int) -> Result:
    """A matmul reduce-scatter in quarters: while a pair travels, one each way, the other pair's terms are computed.

    Each term is scheduled after its sum and the pair before, and each part that is sent after the one before it on its
    way. So it travels beside the other pair's terms, all of them, where a half of `alternating` travels beside one, and
    nothing is exposed where links take as long as products. Of one participant, or more than `UNROLLED`, or a piece of
    fewer than four rows, it is `alternating`.
    """
    p, dtype = lax.axis_size(axis_name), jnp.result_type(lhs, rhs)
    lhs, rhs = align_types(lhs, rhs, axis_name=axis_name)
    term, sizes = parts_of_terms(lhs, rhs, axis_name, dimension, 4)
    if p == 1 or p > UNROLLED or len(sizes) < 4:
        return alternating_matmul_reduce_scatter(lhs, rhs, axis_name, scatter_dimension=dimension)

    def totals(first: int, distance: Array | int, arrived: Pair, behind: Pair) -> Pair:
        terms = [term(first + i, distance, (one, *behind)) for i, one in enumerate(arrived)]
        right, left = ((one.astype(own.dtype) + own).astype(dtype) for one, own in zip(arrived, terms, strict=True))
        return right, left

    def sent(pair: Pair, before: Pair) -> Pair:
        right, left = (schedule_after(one, [ahead]) for one, ahead in zip(pair, before, strict=True))
        return shift_both(right, left, axis_name)

    def step(carry: tuple[Pair, Pair], distance: Array) -> tuple[Pair, Pair]:
        passed, complete = carry  # the first pair's sums have come, the second's are to be sent
        arrived = sent(complete, passed)
        ours = totals(0, distance, passed, complete)
        passed = sent(ours, arrived)
        return passed, totals(2, distance, arrived, ours)

    ours = term(0, 1, ()).astype(dtype), term(1, 1, ()).astype(dtype)
    passed = shift_both(*ours, axis_name)
    complete = term(2, 1, ours).astype(dtype), term(3, 1, ours).astype(dtype)
    passed, complete = ring_loop(step, (passed, complete), 2, p, axis_name)
    arrived = sent(complete, passed)
    done = totals(0, p, passed, complete)
    return join_parts([*done, *totals(2, p, arrived, done)], lhs.ndim - 2 + dimension)


def _sums_of_others(
    term: Callable[[Array], Block], arrived: Sequence[tuple[Block, Array]], axis_name: AxisName
) -> list[Block]:
    """The sums of all other participants' terms for this one: one from each side, or only one.

    `term(start)` is what this participant adds to the sum of the one whose block of the operand starts there. Blocks
    have the links first: sums, of which none is known before a product, are sent behind them.
    """
    p, dtype = len(arrived), arrived[0][0].dtype
    behind = [one for one, _ in arrived[1 : p - 1 + p % 2]]  # those that come from both sides
    sums: dict[int, list[Block]] = {1: [], -1: []}
    before: list[Block] = []
    for i in range(p - 1, 0, -1):  # from the farthest on; what came from the left belongs there
        way = -1 if i % 2 else 1
        own = term(schedule_after(arrived[i][1], [*before, *sums[way]]))
        before = [_total(own, sums[way]).astype(dtype)]
        sent = schedule_after(before[0], behind) if (i + 1) // 2 == p // 2 else before[0]
        sums[way] = [shift(sent, axis_name, way)]
    return [*sums[1], *sums[-1]]


def _total(own: Block, arrived: Sequence[Block]) -> Block:
    """A participant's own term and the sums that arrived."""
    for one in arrived:
        own = own + one.astype(own.dtype)
    return own


def _lhs_transposed_times(lhs: Left, ct: Result) -> Right:
    """`[…, M, K]` and `[…, M, N]` to `[K, N]`, in the accumulator's dtype."""
    added = tuple(range(lhs.ndim - 1))
    return lax.dot_general(lhs, ct, ((added, added), ((), ())), preferred_element_type=accumulator(lhs, ct))


def _times_rhs_transposed(ct: Result, rhs: Right) -> Left:
    """`[…, M, N]` and `[K, N]` to `[…, M, K]`, in the accumulator's dtype."""
    added = ((ct.ndim - 1,), (1,))
    return lax.dot_general(ct, rhs, (added, ((), ())), preferred_element_type=accumulator(ct, rhs))
