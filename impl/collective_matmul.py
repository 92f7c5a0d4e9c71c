"""Matrix products of sharded operands, naive: communicate, then multiply, or the other way round.

All run inside `jax.shard_map`, over one axis or a tuple of axes in any order (`Y`, in logical order). The left
operand may have leading batch dimensions. Sums of 16-bit floats are accumulated in float32 to the end,
across devices as well, and rounded once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from impl.arguments import AxisName, check_axes, check_divides, refuse
from impl.collectives import all_gather, all_reduce, cast_varying, reduce_scatter

Left = Shaped[Array, "... m k"]
Right = Shaped[Array, "rows n"]
Result = Shaped[Array, "... m_out n_out"]


def accumulator(*operands: Array) -> Any:
    """The dtype in which products are added up: float32 for 16-bit floats, the operands' own otherwise."""
    dtype = jnp.result_type(*operands)
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def multiply(lhs: Left, rhs: Right) -> Result:
    """`lhs @ rhs` in the accumulator's dtype."""
    return jnp.matmul(lhs, rhs, preferred_element_type=accumulator(lhs, rhs))


def check_contraction(function: str, argument: str, rows: int, columns: int) -> None:
    """As many rows of the right operand as columns of the left one, once both are whole.

    Raises:
        ValueError: if not.
    """
    if rows != columns:
        refuse(function, argument, f"{rows} rows", f"{columns} rows, as many as the left operand has columns in all")


def all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes("all_gather_matmul_lhs_contracting", axis_name)
    check_contraction("all_gather_matmul_lhs_contracting", "rhs", rhs.shape[0], lhs.shape[-1] * lax.axis_size(axes))
    return multiply(all_gather(lhs, axes, axis=-1, tiled=True), rhs).astype(jnp.result_type(lhs, rhs))


def all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`, typed varying: gathers A, then multiplies.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes("all_gather_matmul_lhs", axis_name)
    check_contraction("all_gather_matmul_lhs", "rhs", rhs.shape[0], lhs.shape[-1])
    return multiply(all_gather(lhs, axes, axis=-2, tiled=True), rhs).astype(jnp.result_type(lhs, rhs))


def all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`, typed varying: gathers W, as fully sharded data parallelism does.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes("all_gather_matmul_rhs", axis_name)
    check_contraction("all_gather_matmul_rhs", "rhs", rhs.shape[0] * lax.axis_size(axes), lhs.shape[-1])
    return multiply(lhs, all_gather(rhs, axes, axis=0, tiled=True)).astype(jnp.result_type(lhs, rhs))


def matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` (dimension 0) or `[M, N_Y]` (dimension 1), typed varying.

    The dimensions are those of the matrix, behind any batch dimensions.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, or one that does not divide by the number of members.
    """
    axes = check_axes("matmul_reduce_scatter", axis_name)
    check_contraction("matmul_reduce_scatter", "rhs", rhs.shape[0], lhs.shape[-1])
    if scatter_dimension not in (0, 1):
        refuse("matmul_reduce_scatter", "scatter_dimension", scatter_dimension, "0 or 1")
    size = lhs.shape[-2] if scatter_dimension == 0 else rhs.shape[-1]
    p = lax.axis_size(axes)
    check_divides("matmul_reduce_scatter", "scatter_dimension", scatter_dimension, size, p, tiled=True)
    partial = cast_varying(multiply(lhs, rhs), axes)
    scattered = reduce_scatter(partial, axes, scatter_dimension=scatter_dimension - 2, tiled=True)
    return scattered.astype(jnp.result_type(lhs, rhs))


def matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K_Y, N] -> [M, N]`, typed invariant: multiplies, then adds up.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes("matmul_all_reduce", axis_name)
    check_contraction("matmul_all_reduce", "rhs", rhs.shape[0], lhs.shape[-1])
    return all_reduce(multiply(lhs, rhs), axes).astype(jnp.result_type(lhs, rhs))


def transformer_block(
    x: Left, w_in: Shaped[Array, "d f"], w_out: Shaped[Array, "f_in d_out"], axis_name: AxisName
) -> Result:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, typed varying.

    The hidden values are rounded to the operands' dtype; the derivative of relu at zero is zero.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes("transformer_block", axis_name)
    check_contraction("transformer_block", "w_in", w_in.shape[0], x.shape[-1] * lax.axis_size(axes))
    check_contraction("transformer_block", "w_out", w_out.shape[0], w_in.shape[-1])
    hidden = jax.nn.relu(all_gather_matmul_lhs_contracting(x, w_in, axes))
    return matmul_reduce_scatter(hidden, w_out, axes, scatter_dimension=1)
