"""Transformer blocks, overlapped: a ring that gathers and multiplies, relu, and a ring that multiplies and reduces.

All of them: `X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, typed varying, with the rounding
and the derivative of `shardproof.impl.collective_matmul.naive.transformer_block`, but where sums travel in 16 bits.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axis_count
from shardproof.impl.collective_matmul import gathered, paired, reduced
from shardproof.impl.collective_matmul.operands import UNROLLED, Axes, Left, Result, Right, check_block, check_scattered
from shardproof.impl.collective_matmul.reduced import Sums, check_sums


def overlapped_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """One ring after the other: 2(p-1) permutes, of blocks of X and of sums.

    Best where links carry one transfer at a time: at two of six shapes on H100, by timelines.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, or columns of
            `w_out` that do not divide by the number of participants.
    """
    return _block("overlapped_transformer_block", gathered.ring, reduced.ring, x, w_in, w_out, axis_name)


def alternating_transformer_block(
    x: Left, w_in: Right, w_out: Right, axis_name: AxisName, *, sums: Sums = "operands"
) -> Result:
    """Blocks come the shorter way, whole; half sums go each way, in turns, as in `alternating_matmul_reduce_scatter`.

    Best in time for small blocks over 4 participants of v5e, as XLA:TPU schedules them. At 8192x8192 by 8192x16384 by
    16384x8192 it takes 1.05 times the unsharded products there, where XLA's own form takes 1.38 times and the naive one
    1.61.

    Raises:
        ValueError: as `overlapped_transformer_block`, or for `sums` that is neither.
    """
    function = "alternating_transformer_block"
    check_sums(function, sums)
    return _block(function, gathered.shorter_way, reduced.alternating, x, w_in, w_out, axis_name, sums)


def paired_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """Blocks come the shorter way, sums in two parts each way; backward X and the cotangent come once, whole.

    No forward mode. Sums of 16-bit floats travel in 16 bits. Best for large blocks, and in the gradient: at 8192x8192
    by 8192x16384 by 16384x8192 over 4 participants of v5e 1.04 times the unsharded products, as XLA:TPU schedules it,
    and over 8 of them 1.19 times, where `alternating` takes 1.39. The gradient takes 1.10 times the unsharded one, at
    8192 cubed 1.22 times (the naive form's 1.16 and 1.28).

    Raises:
        ValueError: as `overlapped_transformer_block`.
    """
    function = "paired_transformer_block"
    axes = check_block(function, x, w_in, w_out, axis_name)
    if lax.axis_size(axes) > UNROLLED:
        return _block(function, gathered.shorter_way, reduced.alternating, x, w_in, w_out, axes, "operands")
    check_scattered(function, w_in, w_out, axes, 1)
    return paired.block(x, w_in, w_out, axes)


def nested_transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """Over two axes, rings over the first of rings over the second: every permute goes along one axis.

    Best where the first axis is slow: a link of it carries a - 1 blocks of ab of each kind.

    Raises:
        ValueError: as `overlapped_transformer_block`.
        NotImplementedError: unless the axis tuple has two axes.
    """
    return _block("nested_transformer_block", gathered.nested, reduced.nested, x, w_in, w_out, axis_name)


def _block(
    function: str,
    gather: Callable[[gathered.Gathering, Axes], Result],
    scatter: Callable[[reduced.Reducing, Axes], Result],
    x: Left,
    w_in: Right,
    w_out: Right,
    axis_name: AxisName,
    sums: Sums = "accumulator",
) -> Result:
    axes = check_block(function, x, w_in, w_out, axis_name)
    if gather is gathered.nested:
        check_axis_count(function, axes, (2,))
    wide = gather(gathered.columns_of_lhs(x, w_in, axes), axes)
    hidden = jax.nn.relu(wide.astype(jnp.result_type(x, w_in)))
    check_scattered(function, hidden, w_out, axes, 1)
    piece = scatter(reduced.scattered(hidden, w_out, axes, 1, sums), axes)
    return piece.astype(jnp.result_type(hidden, w_out))
