"""Matrix products of sharded operands, naive: communicate, then multiply, or the other way round.

A `scatter_dimension` is 0 or 1, and the number of participants divides it, or the columns of `w_out`.
"""

import jax
import jax.numpy as jnp

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import check_operands
from shardproof.impl.collectives import all_gather, all_reduce, cast_varying, reduce_scatter
from shardproof.impl.rings import Left, Result, Right, align_types, multiply, rounded_product


@check_operands
def all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies."""
    lhs, rhs = align_types(lhs, rhs)
    return rounded_product(all_gather(lhs, axis_name, axis=-1, tiled=True), rhs)


@check_operands
def all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies."""
    lhs, rhs = align_types(lhs, rhs)
    return rounded_product(all_gather(lhs, axis_name, axis=-2, tiled=True), rhs)


@check_operands
def all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`, typed varying: gathers W, as fully sharded data parallelism does."""
    lhs, rhs = align_types(lhs, rhs)
    return rounded_product(lhs, all_gather(rhs, axis_name, axis=0, tiled=True))


@check_operands
def matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` (dimension 0) or `[M, N_Y]` (dimension 1), typed varying.

    The dimensions are those of the matrix, behind any batch dimensions.
    """
    lhs, rhs = align_types(lhs, rhs)
    partial = cast_varying(multiply(lhs, rhs), axis_name)
    scattered = reduce_scatter(partial, axis_name, scatter_dimension=scatter_dimension - 2, tiled=True)
    return scattered.astype(jnp.result_type(lhs, rhs))


@check_operands
def matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M, N]`, typed invariant: multiplies, then adds up."""
    lhs, rhs = align_types(lhs, rhs)
    return all_reduce(multiply(lhs, rhs), axis_name).astype(jnp.result_type(lhs, rhs))


@check_operands
def transformer_block(x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Result:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, typed varying.

    The hidden values are rounded to the operands' dtype; the derivative of relu at zero is zero.
    """
    hidden = jax.nn.relu(all_gather_matmul_lhs_contracting(x, w_in, axis_name))
    return matmul_reduce_scatter(hidden, w_out, axis_name, scatter_dimension=1)
