"""Attention over a sharded sequence: every participant has its piece of that over the whole one."""

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.softmax import softmax, through_softmax
from shardproof.oracles.whole import Arrays, OfParticipants


class Attention(OfParticipants):
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`: `softmax(q k^T / sqrt(D)) v` over the whole sequence, for each head."""

    sharded, scattered = (-3, -3, -3), -3

    def result(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False) -> np.ndarray:
        """Every query's mean of the values, weighted by the softmax of its logits; causal: of keys not behind it."""
        check(q, k, v)
        return by_turns(weights(q, k, causal) @ by_turns(v))

    def tangent(self, wholes: Arrays, tangents: Arrays, *, causal: bool = False) -> np.ndarray:
        """Weights w of logits l have dw = w (dl - sum(w dl)), and results dw v + w dv."""
        (q, k, v), (dq, dk, dv) = wholes, tangents
        w = weights(q, k, causal)
        moved = through_softmax(w, products(dq, k) + products(q, dk))
        return by_turns(moved @ by_turns(v) + w @ by_turns(dv))

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray, *, causal: bool = False) -> list[np.ndarray]:
        """The softmax's Jacobian is symmetric: the logits get it times ct v^T, and v gets w^T ct."""
        (q, k, v), ct = map(by_turns, wholes), by_turns(cotangent)
        w = weights(wholes[0], wholes[1], causal)
        of_logits = through_softmax(w, ct @ transposed(v)) / root(q)
        return [by_turns(x) for x in (of_logits @ k, transposed(of_logits) @ q, transposed(w) @ ct)]


def check(*operands: np.ndarray) -> None:
    """Raises ValueError unless all are floating-point and of one shape."""
    if not all(is_float(x.dtype) for x in operands):
        raise ValueError(f"operands: {', '.join(str(x.dtype) for x in operands)}: expected floating-point dtypes")
    if len({x.shape for x in operands}) > 1:
        raise ValueError(f"operands: shapes {[x.shape[2:] for x in operands]}: expected the same of all")


def weights(q: np.ndarray, k: np.ndarray, causal: bool) -> np.ndarray:
    """The softmax of the logits of each query, `[…, H, S, S]`; causal: 0 for keys behind it."""
    logits = products(q, k)
    if causal:
        logits = np.where(np.tri(q.shape[-3], dtype=bool), logits, -np.inf)
    return softmax(logits)


def products(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Every query by every key, `[…, H, S, S]`, by the root of their features."""
    return np.asarray(by_turns(q) @ transposed(by_turns(k)) / root(q))


def by_turns(x: np.ndarray) -> np.ndarray:
    """Positions and heads in the other order: `[…, S, H, D]` to `[…, H, S, D]`, and back."""
    return x.swapaxes(-2, -3)


def transposed(x: np.ndarray) -> np.ndarray:
    """Matrices with rows for columns."""
    return x.swapaxes(-1, -2)


def root(q: np.ndarray) -> np.ndarray:
    """The root of the number of features, in the dtype of the array."""
    return np.asarray(np.sqrt(np.asarray(q.shape[-1], q.dtype)))


attention = Attention()
