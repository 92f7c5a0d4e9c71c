"""Matrix products of sharded operands, and their derivatives by hand; `Y` is the axis tuple.

Leading batch dimensions belong to the left operand (`x` of a block) and to the result.
"""

from typing import Any

import numpy as np

from shardproof.oracles.dtypes import round_to
from shardproof.oracles.layout import Axes, Blocks, Operands
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.whole import Arrays, OfParticipants


class Rounded(OfParticipants):
    """An oracle whose value is rounded once, to the operands' dtype, which is that of the result."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, **options: Any) -> list[Blocks]:
        """The result's blocks."""
        return [round_to(y, np.result_type(*operands)) for y in super().value(operands, mesh, axes, **options)]


class Product(Rounded):
    """The product of two operands, given the dimensions in which participants share them."""

    def __init__(self, lhs: int | None, rhs: int | None) -> None:
        self.sharded = lhs, rhs

    def result(self, lhs: np.ndarray, rhs: np.ndarray, **options: int) -> np.ndarray:
        """`A W`."""
        return product(lhs, rhs)

    def tangent(self, wholes: Arrays, tangents: Arrays, **options: int) -> np.ndarray:
        """The product rule: `d(A W) = dA W + A dW`."""
        (a, w), (da, dw) = wholes, tangents
        return np.asarray(product(da, w) + product(a, dw))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, **options: int) -> list[np.ndarray]:
        """`dA = ct W^T` and `dW = A^T ct`."""
        lhs, rhs = wholes
        return [product(cotangent, rhs.swapaxes(-1, -2)), for_rhs(lhs, cotangent)]


class ScatteredProduct(Product):
    """A product of which each participant has a piece, of rows (dimension 0) or columns (1) of the matrices."""

    def scatters(self, **options: int) -> int:
        """The same dimension, from the back."""
        return options["scatter_dimension"] - 2


class TransformerBlock(Rounded):
    """An input by W_in, relu, and by W_out: the hidden values are shared, and so is one dimension of the input.

    The derivative of relu at zero is zero.
    """

    def __init__(self, shared: int) -> None:
        self.sharded, self.scattered = (shared, -1, -2), shared

    def result(self, x: np.ndarray, w_in: np.ndarray, w_out: np.ndarray, **options: Any) -> np.ndarray:
        """Both products."""
        return product(np.maximum(product(x, w_in), 0), w_out)

    def tangent(self, wholes: Arrays, tangents: Arrays, **options: Any) -> np.ndarray:
        """The chain rule, forward."""
        (x, w_in, w_out), (dx, dw_in, dw_out) = wholes, tangents
        before = product(x, w_in)
        moved = np.where(before > 0, product(dx, w_in) + product(x, dw_in), 0)
        return np.asarray(product(moved, w_out) + product(np.maximum(before, 0), dw_out))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, **options: Any) -> list[np.ndarray]:
        """The chain rule, backward."""
        x, w_in, w_out = wholes
        before = product(x, w_in)
        of_hidden = np.where(before > 0, product(cotangent, w_out.swapaxes(-1, -2)), 0)
        of_out = for_rhs(np.maximum(before, 0), cotangent)
        return [product(of_hidden, w_in.swapaxes(-1, -2)), for_rhs(x, of_hidden), of_out]


def product(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """`[…, *batch, M, K] @ […, K, N]`, of every process group."""
    between = [1] * (lhs.ndim - rhs.ndim)
    return np.asarray(lhs @ rhs.reshape(*rhs.shape[:2], *between, *rhs.shape[2:]))


def for_rhs(lhs: np.ndarray, ct: np.ndarray) -> np.ndarray:
    """The cotangent of `rhs` in `lhs @ rhs`: `lhs^T @ ct`, added up over batch dimensions."""
    each = lhs.swapaxes(-1, -2) @ ct
    return np.asarray(each.sum(axis=tuple(range(2, each.ndim - 2))))


all_gather_matmul_lhs_contracting = Product(-1, None)
"""`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`: the columns of A are gathered."""

all_gather_matmul_lhs = Product(-2, None)
"""`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`: the rows of A are gathered."""

all_gather_matmul_rhs = Product(None, -2)
"""`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`: the rows of W are gathered, as in fully sharded data parallelism."""

matmul_all_reduce = Product(-1, -2)
"""`A[…, M, K_Y] W[K_Y, N] -> [M, N]`: the products are added up on every participant."""

matmul_reduce_scatter = ScatteredProduct(-1, -2)
"""`A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` or `[M, N_Y]`: each participant gets its piece of the sum of the products."""

transformer_block = TransformerBlock(-1)
"""`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`."""

sequence_parallel_mlp = TransformerBlock(-3)
"""`X[S_Y, B, D] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [S_Y, B, D]`."""
