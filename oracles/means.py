"""The mean over all participants' elements that a mask counts."""

import numpy as np

from shardproof.oracles.whole import Arrays, OfParticipants


class MaskedMean(OfParticipants):
    """`values [T_Y]`, `mask [T_Y]`, True where an element counts, to a scalar; 0 where everything is masked."""

    sharded = (-1, -1)

    def result(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The sum of the elements that count by their number."""
        if mask.shape != values.shape or mask.dtype != np.bool_:
            given = f"{list(mask.shape[2:])} of the kind {mask.dtype.kind!r}"
            raise ValueError(f"mask: {given}: expected bool{list(values.shape[2:])}")
        return np.where(mask, values, 0).sum(axis=elements(values)) / self.count(mask)

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """The mean is linear in the values: that of their tangents."""
        return self.result(tangents[0], wholes[1])

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray | None]:
        """Every element that counts gets its share."""
        _, mask = wholes
        share = cotangent / self.count(mask)
        return [np.where(mask, share.reshape(*share.shape, *[1] * (mask.ndim - 2)), 0), None]

    def count(self, mask: np.ndarray) -> np.ndarray:
        """The number of elements that count, and 1 where none does, to divide a sum of 0 by."""
        return np.maximum(mask.sum(axis=elements(mask)), 1)


def elements(whole: np.ndarray) -> tuple[int, ...]:
    """All dimensions of a whole array."""
    return tuple(range(2, whole.ndim))


masked_mean = MaskedMean()
