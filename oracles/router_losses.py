"""Losses of a router, of the tokens of all participants together, and not a mean of each one's loss.

Losses of a shard are the same over no axis. Operands are blocks `logits [*mesh.sizes, T, E]`, results `[*mesh.sizes]`.
"""

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, all_reduce
from shardproof.oracles.dtypes import is_float, wide, widen
from shardproof.oracles.mesh import MeshCase


class LoadBalancingLoss:
    """`logits [T_Y, E]` to E times the sum, over experts, of their share of choices by their mean probability."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, top_k: int) -> list[Blocks]:
        """Both are taken over the tokens of all participants."""
        (logits,) = operands
        check_floating(logits)
        if not 1 <= top_k <= logits.shape[-1]:
            raise ValueError(f"top_k={top_k}: expected 1 to {logits.shape[-1]}, the number of experts")
        return [self.weighted(self.probabilities(logits), logits, mesh, axes, top_k)]

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, top_k: int
    ) -> list[Blocks]:
        """Probabilities move, `p (d - p·d)`; shares do not."""
        (logits,), (d,) = operands, widen(tangents)
        p = self.probabilities(logits)
        moved = p * (d - (p * d).sum(axis=-1, keepdims=True))
        return [self.weighted(moved, logits, mesh, axes, top_k)]

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, top_k: int
    ) -> list[Blocks]:
        """`p (w - p·w)`, with w the weights of probabilities, times the sum of all participants' cotangents."""
        (logits,), (ct,) = operands, widen(cotangents)
        p, w = self.probabilities(logits), self.weights(logits, mesh, axes, top_k)
        total = all_reduce(ct, mesh, axes)[..., None, None]
        return [total * p * (w - (p * w).sum(axis=-1, keepdims=True))]

    def weighted(self, p: Blocks, logits: Blocks, mesh: MeshCase, axes: Axes, top_k: int) -> Blocks:
        """The sum, over tokens and experts of all participants, of weighted probabilities."""
        return all_reduce((p * self.weights(logits, mesh, axes, top_k)).sum(axis=(-2, -1)), mesh, axes)

    def weights(self, logits: Blocks, mesh: MeshCase, axes: Axes, top_k: int) -> Blocks:
        """The weights of probabilities: E times the expert's share, by the number of tokens. `[*mesh.sizes, 1, E]`."""
        tokens, experts = max(1, logits.shape[-2] * mesh.axis_size(axes)), logits.shape[-1]
        counts = all_reduce(self.chosen(logits, top_k).sum(axis=-2, keepdims=True), mesh, axes)
        return experts * counts / (tokens * top_k) / tokens

    def chosen(self, logits: Blocks, top_k: int) -> Blocks:
        """1 where a token chooses an expert, of the highest logits, ties to the lowest number; else 0."""
        order = np.argsort(-logits.astype(wide(logits.dtype)), axis=-1, kind="stable")
        result = np.zeros(logits.shape, np.float64)
        np.put_along_axis(result, order[..., :top_k], 1, axis=-1)
        return result

    def probabilities(self, logits: Blocks) -> Blocks:
        """The softmax over all logits of a token."""
        x = logits.astype(wide(logits.dtype))
        powers = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class RouterZLoss:
    """`logits [T_Y, E]` to the mean, over the tokens of all participants, of `log(sum(exp(logits)))` squared."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """The sum of the squares, by the number of tokens."""
        (logits,) = operands
        check_floating(logits)
        return [self.mean(self.log_sums(logits) ** 2, mesh, axes)]

    def pushforward(self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """`2 z p·d` of each token, with z the logarithm and p the softmax, its derivative."""
        (logits,), (d,) = operands, widen(tangents)
        z = self.log_sums(logits)
        moved = 2 * z * (self.softmax(logits, z) * d).sum(axis=-1)
        return [self.mean(moved, mesh, axes)]

    def pullback(self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
        """`2 z p` of each token, by the number of tokens, times the sum of all participants' cotangents."""
        (logits,), (ct,) = operands, widen(cotangents)
        z = self.log_sums(logits)
        total = all_reduce(ct, mesh, axes)[..., None, None]
        return [total * 2 * z[..., None] * self.softmax(logits, z) / self.tokens(logits.shape[-2], mesh, axes)]

    def log_sums(self, logits: Blocks) -> Blocks:
        """`log(sum(exp(logits)))` of every token, computed from logits less the largest one."""
        x = logits.astype(wide(logits.dtype))
        most = x.max(axis=-1, keepdims=True)
        return np.asarray(most[..., 0] + np.log(np.exp(x - most).sum(axis=-1)))

    def softmax(self, logits: Blocks, z: Blocks) -> Blocks:
        """The probabilities, given the logarithms of the sums."""
        return np.asarray(np.exp(logits.astype(wide(logits.dtype)) - z[..., None]))

    def mean(self, x: Blocks, mesh: MeshCase, axes: Axes) -> Blocks:
        """The mean over the tokens of all participants."""
        return all_reduce(x.sum(axis=-1), mesh, axes) / self.tokens(x.shape[-1], mesh, axes)

    def tokens(self, own: int, mesh: MeshCase, axes: Axes) -> int:
        """The number of tokens of all participants; 1 if there are none, so that means are 0."""
        return max(1, own * mesh.axis_size(axes))


def check_floating(logits: Blocks) -> None:
    """Raises ValueError unless logits are floating-point numbers."""
    if not is_float(logits.dtype):
        raise ValueError(f"logits: {logits.dtype}: expected floating-point numbers")


load_balancing_loss = LoadBalancingLoss()
router_z_loss = RouterZLoss()
