"""Matrix products of sharded operands: the blocks of every device, and derivatives by hand.

Blocks in, blocks out (`[*mesh.sizes, …, M, K]` and `[*mesh.sizes, K, N]`), mesh axes leading; `Y` is the axis
tuple. Every operation is written as gathering or adding up whole blocks around one product per device,
in arithmetic that loses nothing that matters, and rounded once, to the operands' dtype.
Leading batch dimensions belong to the left operand (`x` of a block) and to the result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardproof.oracles import transposes
from shardproof.oracles.collectives import Axes, Blocks, Operands, all_gather, all_reduce, reduce_scatter
from shardproof.oracles.dtypes import round_to, widen
from shardproof.oracles.mesh import MeshCase

Map = Callable[..., Blocks]


def product(lhs: Blocks, rhs: Blocks, mesh: MeshCase) -> Blocks:
    """Every device's own `[…, M, K] @ [K, N]`."""
    lead = len(mesh.sizes)
    between = (1,) * (lhs.ndim - lead - 2)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.matmul(lhs, rhs.reshape(*mesh.sizes, *between, *rhs.shape[lead:])))


def for_rhs(lhs: Blocks, ct: Blocks, mesh: MeshCase) -> Blocks:
    """The cotangent of `rhs` in `lhs @ rhs`: `lhs^T @ ct`, added up over batch dimensions."""
    with np.errstate(invalid="ignore", over="ignore"):
        each = np.matmul(np.swapaxes(lhs, -1, -2), ct)
        return np.asarray(each.sum(axis=tuple(range(len(mesh.sizes), each.ndim - 2))))


@dataclass(frozen=True)
class Product:
    """A product of two operands, with what happens to each before it and to the result after it."""

    before: tuple[Map | None, Map | None]  # gathers each operand; None: does not
    after: Map | None  # reduces the product; None: does not
    back: tuple[Map | None, Map | None, Map | None]  # the transposes of these three

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, **options: int) -> list[Blocks]:
        """The result's blocks."""
        dtype = np.result_type(*operands)
        return [round_to(self._wide(widen(operands), mesh, axes, options), dtype)]

    def _wide(self, operands: Operands, mesh: MeshCase, axes: Axes, options: Mapping[str, int]) -> Blocks:
        lhs, rhs = (g(o, mesh, axes) if g else o for g, o in zip(self.before, operands, strict=True))
        result = product(lhs, rhs, mesh)
        return self.after(result, mesh, axes, **options) if self.after else result

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, **options: int
    ) -> list[Blocks]:
        """The product rule: `d(A W) = dA W + A dW`."""
        dtype = np.result_type(*operands)
        (a, w), (da, dw) = widen(operands), widen(tangents)
        moved = self._wide([da, w], mesh, axes, options) + self._wide([a, dw], mesh, axes, options)
        return [round_to(moved, dtype)]

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, **options: int
    ) -> list[Blocks]:
        """`dA = ct W^T` and `dW = A^T ct`, through the transposes of `before` and `after`."""
        lhs, rhs = (g(o, mesh, axes) if g else o for g, o in zip(self.before, widen(operands), strict=True))
        to_lhs, to_rhs, to_result = self.back
        (held,) = widen(cotangents)
        held = to_result(held, mesh, axes, **options) if to_result else held
        pulled = [product(held, np.swapaxes(rhs, -1, -2), mesh), for_rhs(lhs, held, mesh)]
        moved = [g(p, mesh, axes) if g else p for g, p in zip((to_lhs, to_rhs), pulled, strict=True)]
        return [round_to(m, o.dtype) for m, o in zip(moved, operands, strict=True)]


def _gather(axis: int) -> Map:
    return lambda blocks, mesh, axes: all_gather(blocks, mesh, axes, axis=axis, tiled=True)


def _ungather(axis: int) -> Map:
    return lambda ct, mesh, axes: transposes.all_gather_transpose(ct, mesh, axes, axis=axis, tiled=True)


def _scatter(blocks: Blocks, mesh: MeshCase, axes: Axes, *, scatter_dimension: int) -> Blocks:
    """Dimensions 0 and 1 are those of the matrix, behind any batch dimensions."""
    return reduce_scatter(blocks, mesh, axes, scatter_dimension=scatter_dimension - 2, tiled=True)


def _unscatter(ct: Blocks, mesh: MeshCase, axes: Axes, *, scatter_dimension: int) -> Blocks:
    return transposes.reduce_scatter_transpose(ct, mesh, axes, scatter_dimension=scatter_dimension - 2, tiled=True)


all_gather_matmul_lhs_contracting = Product((_gather(-1), None), None, (_ungather(-1), None, None))
"""`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`: the columns of A are gathered."""

all_gather_matmul_lhs = Product((_gather(-2), None), None, (_ungather(-2), None, None))
"""`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`: the rows of A are gathered."""

all_gather_matmul_rhs = Product((None, _gather(-2)), None, (None, _ungather(-2), None))
"""`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`: the rows of W are gathered, as in fully sharded data parallelism."""

matmul_all_reduce = Product((None, None), all_reduce, (None, None, transposes.all_reduce_transpose))
"""`A[…, M, K_Y] W[K_Y, N] -> [M, N]`: the products are added up on every participant."""


matmul_reduce_scatter = Product((None, None), _scatter, (None, None, _unscatter))
"""`A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` or `[M, N_Y]`: each participant gets its piece of the sum of the products."""


class TransformerBlock:
    """`X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [B, D_Y]`, and its derivatives: two products, by turns.

    The derivative of relu at zero is zero. `sharded` is the dimension of the input that is gathered, and of the result
    that is scattered.
    """

    def __init__(self, sharded: int = -1) -> None:
        self.first = Product((_gather(sharded), None), None, (_ungather(sharded), None, None))
        self.scattered = {"scatter_dimension": sharded + 2}

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The result's blocks."""
        x, w_in, w_out = widen(operands)
        (before,) = self.first.value([x, w_in], mesh, axes)
        (result,) = matmul_reduce_scatter.value([np.maximum(before, 0), w_out], mesh, axes, **self.scattered)
        return [round_to(result, operands[0].dtype)]

    def pushforward(self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The chain rule, forward."""
        (x, w_in, w_out), (dx, dw_in, dw_out) = widen(operands), widen(tangents)
        (before,) = self.first.value([x, w_in], mesh, axes)
        (moved,) = self.first.pushforward([x, w_in], [dx, dw_in], mesh, axes)
        hidden, along = [np.maximum(before, 0), w_out], [np.where(before > 0, moved, 0), dw_out]
        (result,) = matmul_reduce_scatter.pushforward(hidden, along, mesh, axes, **self.scattered)
        return [round_to(result, operands[0].dtype)]

    def pullback(self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The chain rule, backward."""
        x, w_in, w_out = widen(operands)
        (before,) = self.first.value([x, w_in], mesh, axes)
        hidden, ct = np.maximum(before, 0), widen(cotangents)
        of_hidden, of_w_out = matmul_reduce_scatter.pullback([hidden, w_out], ct, mesh, axes, **self.scattered)
        of_first = self.first.pullback([x, w_in], [np.where(before > 0, of_hidden, 0)], mesh, axes)
        return [round_to(p, o.dtype) for p, o in zip((*of_first, of_w_out), operands, strict=True)]


transformer_block = TransformerBlock()
