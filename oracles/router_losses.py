"""Losses of a router, of the tokens of all participants together, and not a mean of each one's loss.

Losses of a shard are the same over no axis.
"""

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.softmax import log_sum, softmax, through_softmax
from shardproof.oracles.whole import Arrays, OfParticipants


class LoadBalancingLoss(OfParticipants):
    """`logits [T_Y, E]` to E times the sum, over experts, of their share of choices by their mean probability."""

    sharded = (-2,)

    def result(self, logits: np.ndarray, *, top_k: int) -> np.ndarray:
        """Both are taken over all tokens."""
        check_floating(logits)
        if not 1 <= top_k <= logits.shape[-1]:
            raise ValueError(f"top_k={top_k}: expected 1 to {logits.shape[-1]}, the number of experts")
        return np.asarray((softmax(logits) * self.weights(logits, top_k)).sum(axis=(-2, -1)))

    def tangent(self, wholes: Arrays, tangents: Arrays, *, top_k: int) -> np.ndarray:
        """Probabilities move, `p (d - p·d)`; shares do not."""
        (logits,), (d,) = wholes, tangents
        return np.asarray((through_softmax(softmax(logits), d) * self.weights(logits, top_k)).sum(axis=(-2, -1)))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, *, top_k: int) -> list[np.ndarray]:
        """`p (w - p·w)`, with w the weights of probabilities, times the cotangent."""
        (logits,) = wholes
        return [cotangent[..., None, None] * through_softmax(softmax(logits), self.weights(logits, top_k))]

    def weights(self, logits: np.ndarray, top_k: int) -> np.ndarray:
        """The weights of probabilities: E times the expert's share, by the number of tokens. `[…, 1, E]`."""
        count, experts = max(1, logits.shape[-2]), logits.shape[-1]
        return np.asarray(experts * self.chosen(logits, top_k).sum(axis=-2, keepdims=True) / (count * top_k) / count)

    def chosen(self, logits: np.ndarray, top_k: int) -> np.ndarray:
        """1 where a token chooses an expert, of the highest logits, ties to the lowest number; else 0."""
        order = np.argsort(-logits, axis=-1, kind="stable")
        result = np.zeros(logits.shape, np.float64)
        np.put_along_axis(result, order[..., :top_k], 1, axis=-1)
        return result


class RouterZLoss(OfParticipants):
    """`logits [T_Y, E]` to the mean, over the tokens of all participants, of `log(sum(exp(logits)))` squared."""

    sharded = (-2,)

    def result(self, logits: np.ndarray) -> np.ndarray:
        """The sum of the squares, by the number of tokens."""
        check_floating(logits)
        return np.asarray((log_sums(logits) ** 2).sum(axis=(-2, -1)) / max(1, logits.shape[-2]))

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """The inner product of the slope with the tangent."""
        return np.asarray((self.slope(*wholes) * tangents[0]).sum(axis=(-2, -1)))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray]:
        """The slope times the cotangent."""
        return [cotangent[..., None, None] * self.slope(*wholes)]

    def slope(self, logits: np.ndarray) -> np.ndarray:
        """`2 z p` of each token, by the number of tokens: p, the softmax, is the derivative of z, the logarithm."""
        return 2 * log_sums(logits) * softmax(logits) / max(1, logits.shape[-2])


def log_sums(logits: np.ndarray) -> np.ndarray:
    """`log(sum(exp(logits)))` of every token, computed from logits less the largest one: `[…, 1]`."""
    return np.asarray(logits.max(axis=-1, keepdims=True) + log_sum(logits))


def check_floating(logits: np.ndarray) -> None:
    """Raises ValueError unless logits are floating-point numbers."""
    if not is_float(logits.dtype):
        raise ValueError(f"logits: {logits.dtype}: expected floating-point numbers")


load_balancing_loss = LoadBalancingLoss()
router_z_loss = RouterZLoss()
