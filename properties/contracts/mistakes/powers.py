"""Powers of logits of which no maximum was subtracted: those beyond the accumulator's numbers are infinite, or zero."""

import numpy as np


def bounded_powers(logits: np.ndarray, given: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Powers of logits, and their sums along the last dimension, in the range of an accumulator.

    It is that of operands that were widened to the dtype `given`: float32, or float64.
    """
    limits = np.finfo(np.float64 if given == np.longdouble else np.float32)

    def held(x: np.ndarray) -> np.ndarray:
        return np.where(x > float(limits.max), np.inf, np.where(x < float(limits.tiny), 0, x))

    powers = held(np.exp(logits))
    return powers, held(powers.sum(axis=-1, keepdims=True))
