"""Matrix products of sharded operands, naive: communicate, then multiply, or the other way round."""

import jax
import jax.numpy as jnp

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import (
    Left,
    Result,
    Right,
    aligned,
    check_block,
    check_gathered_columns,
    check_gathered_rows,
    check_scattered,
    check_whole,
    multiply,
)
from shardproof.impl.collectives import all_gather, all_reduce, cast_varying, reduce_scatter


def all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_gathered_columns("all_gather_matmul_lhs_contracting", lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)
    return multiply(all_gather(lhs, axes, axis=-1, tiled=True), rhs).astype(jnp.result_type(lhs, rhs))


def all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_whole("all_gather_matmul_lhs", lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)
    return multiply(all_gather(lhs, axes, axis=-2, tiled=True), rhs).astype(jnp.result_type(lhs, rhs))


def all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`, typed varying: gathers W, as fully sharded data parallelism does.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_gathered_rows("all_gather_matmul_rhs", lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)
    return multiply(lhs, all_gather(rhs, axes, axis=0, tiled=True)).astype(jnp.result_type(lhs, rhs))


def matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` (dimension 0) or `[M, N_Y]` (dimension 1), typed varying.

    The dimensions are those of the matrix, behind any batch dimensions.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, or one that does not divide by the number of participants.
    """
    axes = check_scattered("matmul_reduce_scatter", lhs, rhs, axis_name, scatter_dimension)
    lhs, rhs = aligned(lhs, rhs)
    partial = cast_varying(multiply(lhs, rhs), axes)
    scattered = reduce_scatter(partial, axes, scatter_dimension=scatter_dimension - 2, tiled=True)
    return scattered.astype(jnp.result_type(lhs, rhs))


def matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M, N]`, typed invariant: multiplies, then adds up.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_whole("matmul_all_reduce", lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)
    return all_reduce(multiply(lhs, rhs), axes).astype(jnp.result_type(lhs, rhs))


def transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, typed varying.

    The hidden values are rounded to the operands' dtype; the derivative of relu at zero is zero.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, or columns of
            `w_out` that do not divide by the number of participants.
    """
    axes = check_block("transformer_block", x, w_in, w_out, axis_name)
    hidden = jax.nn.relu(all_gather_matmul_lhs_contracting(x, w_in, axes))
    return matmul_reduce_scatter(hidden, w_out, axes, scatter_dimension=1)
