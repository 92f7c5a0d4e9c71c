"""A multilayer perceptron of tensor parallelism whose activations are sharded by sequence where it does not need them.

`X[S_Y, B, D] -> gathered -> W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [S_Y, B, D]`, typed varying: the sum of all
participants' products is scattered as X was (Korthikanti et al., Reducing Activation Recomputation in Large Transformer
Models, 2022, section 4.2.2). Hidden values are rounded to the operands' dtype. The derivative of relu at zero is zero.

Positions and batch are one dimension of rows, so that a participant's piece is contiguous in it, and what gathers and
scatters them are the forms of `shardproof.impl.collective_matmul`.
"""

import jax
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import Axes, AxisName, check_axes, check_rank
from shardproof.impl.collective_matmul import (
    all_gather_matmul_lhs,
    bidirectional_all_gather_matmul_lhs,
    matmul_reduce_scatter,
)
from shardproof.impl.collective_matmul.operands import check_contraction
from shardproof.impl.collective_matmul.reduce_scatter import bidirectional_matmul_reduce_scatter
from shardproof.impl.rings import Right

Sequence = Shaped[Array, "s b d"]


def sequence_parallel_mlp(x: Sequence, w_in: Right, w_out: Right, axis_name: AxisName) -> Sequence:
    """`x [S_Y, B, D]`, `w_in [D, F_Y]`, `w_out [F_Y, D]` to `[S_Y, B, D]`: relu(x w_in) w_out.

    One all-gather of X, two products, and one reduce-scatter of their sums. The result has the dtype that all operands
    promote to.
    """
    axes = _check("sequence_parallel_mlp", x, w_in, w_out, axis_name)
    hidden = jax.nn.relu(all_gather_matmul_lhs(lax.collapse(x, 0, 2), w_in, axes))
    return matmul_reduce_scatter(hidden, w_out, axes).reshape(*x.shape[:2], w_out.shape[1])


def bidirectional_sequence_parallel_mlp(x: Sequence, w_in: Right, w_out: Right, axis_name: AxisName) -> Sequence:
    """`sequence_parallel_mlp`, both ways round the rings, half of every block and of every sum each way."""
    axes = _check("bidirectional_sequence_parallel_mlp", x, w_in, w_out, axis_name)
    hidden = jax.nn.relu(bidirectional_all_gather_matmul_lhs(lax.collapse(x, 0, 2), w_in, axes))
    return bidirectional_matmul_reduce_scatter(hidden, w_out, axes).reshape(*x.shape[:2], w_out.shape[1])


def _check(function: str, x: Sequence, w_in: Right, w_out: Right, axis_name: AxisName) -> Axes:
    axes = check_axes(function, axis_name)
    check_rank(function, "x", x, 3)
    check_contraction(function, "w_in", w_in.shape[0], x.shape[-1])
    check_contraction(function, "w_out", w_out.shape[0], w_in.shape[-1])
    return axes
