"""The softmax along the last dimension, its logarithm and its derivative, with all digits where one weight is nearly 1.

There `1 - w` of the largest weight w, as a difference, would be what rounding left of it; it is the sum of the others.
"""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """`exp(l) / sum(exp(l))`."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def log_sum(logits: np.ndarray) -> np.ndarray:
    """`log(sum(exp(l)))` less the largest logit: `log(1 + the powers of the others)`. `[…, 1]`."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.log1p(np.where(is_first_largest(logits), 0, powers).sum(axis=-1, keepdims=True))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """`l - log(sum(exp(l)))`."""
    return np.asarray(logits - logits.max(axis=-1, keepdims=True) - log_sum(logits))


def through_softmax(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The Jacobian of a softmax with weights w, `diag(w) - w w^T`, times x, from which a number may be taken away."""
    x = np.broadcast_to(x, weights.shape)
    x = x - np.take_along_axis(x, weights.argmax(axis=-1)[..., None], axis=-1)
    return np.asarray(weights * (x - (weights * x).sum(axis=-1, keepdims=True)))


def is_first_largest(x: np.ndarray) -> np.ndarray:
    """True at the first of the largest numbers of each row."""
    if not x.shape[-1]:
        return np.zeros(x.shape, bool)
    return np.asarray(np.arange(x.shape[-1]) == x.argmax(axis=-1)[..., None])
