"""Attention over a sharded sequence: every participant has its piece of that over the whole one.

Operands are blocks `[*mesh.sizes, S, H, D]`.
"""

from collections.abc import Callable

import numpy as np

from shardproof.oracles.collectives import Axes, Blocks, Operands, among_participants
from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.mesh import MeshCase

Whole = np.ndarray
"""A whole sequence of every set of participants, heads first: `[others, H, p S, D]`."""


class Attention:
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`: `softmax(q k^T / sqrt(D)) v` over the whole sequence, for each head."""

    def value(self, operands: Operands, mesh: MeshCase, axes: Axes, *, causal: bool = False) -> list[Blocks]:
        """Every query's mean of the values, weighted by the softmax of its logits; causal: of keys not behind it."""

        def attend(q: Whole, k: Whole, v: Whole) -> list[Whole]:
            return [self.weights(q, k, causal) @ v]

        return of_wholes(attend, operands, mesh, axes)

    def pushforward(
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, *, causal: bool = False
    ) -> list[Blocks]:
        """Weights w of logits l have dw = w (dl - sum(w dl)), and results dw v + w dv."""

        def attend(q: Whole, k: Whole, v: Whole, dq: Whole, dk: Whole, dv: Whole) -> list[Whole]:
            w = self.weights(q, k, causal)
            dl = (dq @ transposed(k) + q @ transposed(dk)) / np.sqrt(wide_of(q, q.shape[-1]))
            return [self.through_softmax(w, dl) @ v + w @ dv]

        return of_wholes(attend, [*operands, *tangents], mesh, axes)

    def pullback(
        self, operands: Operands, cotangents: Operands, mesh: MeshCase, axes: Axes, *, causal: bool = False
    ) -> list[Blocks]:
        """The softmax's Jacobian is symmetric: the logits get it times ct v^T, and v gets w^T ct."""

        def attend(q: Whole, k: Whole, v: Whole, ct: Whole) -> list[Whole]:
            w = self.weights(q, k, causal)
            of_logits = self.through_softmax(w, ct @ transposed(v)) / np.sqrt(wide_of(q, q.shape[-1]))
            return [of_logits @ k, transposed(of_logits) @ q, transposed(w) @ ct]

        return of_wholes(attend, [*operands, *cotangents], mesh, axes)

    def weights(self, q: Whole, k: Whole, causal: bool) -> np.ndarray:
        """The softmax of the logits of each query, `[others, H, p S, p S]`; causal: 0 for keys behind it."""
        with np.errstate(invalid="ignore"):
            logits = q @ transposed(k) / np.sqrt(wide_of(q, q.shape[-1]))
            if causal:
                logits = np.where(np.tri(q.shape[-2], dtype=bool), logits, -np.inf)
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    def through_softmax(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The Jacobian of a softmax with weights w, `diag(w) - w w^T`, times x."""
        return w * (x - (w * x).sum(axis=-1, keepdims=True))


def of_wholes(function: Callable[..., list[Whole]], operands: Operands, mesh: MeshCase, axes: Axes) -> list[Blocks]:
    """A function of whole sequences, as one of blocks: every participant gets its piece of each result."""
    at = len(mesh.sizes)
    if not all(is_float(x.dtype) for x in operands):
        raise ValueError(f"operands: {', '.join(str(x.dtype) for x in operands)}: expected floating-point dtypes")
    if len({x.shape for x in operands}) > 1:
        raise ValueError(f"operands: shapes {[x.shape[at:] for x in operands]}: expected the same of all")

    def exchange(participants: np.ndarray) -> np.ndarray:  # [p, others, operands, S, H, D]
        p, others, count, rows, heads, features = participants.shape
        whole = participants.transpose(2, 1, 4, 0, 3, 5).reshape(count, others, heads, p * rows, features)
        results = np.stack(function(*whole))
        pieces = results.reshape(len(results), others, heads, p, rows, features)
        return pieces.transpose(3, 1, 0, 4, 2, 5)

    stacked = np.stack([x.astype(wide(x.dtype)) for x in operands], axis=at)
    return list(np.moveaxis(among_participants(stacked, mesh, axes, None, exchange), at, 0))


def transposed(x: np.ndarray) -> np.ndarray:
    """Matrices with rows for columns."""
    return x.swapaxes(-1, -2)


def wide_of(x: np.ndarray, number: int) -> np.ndarray:
    """A number in the dtype of an array."""
    return np.asarray(number, x.dtype)


attention = Attention()
