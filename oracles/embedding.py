"""An embedding lookup: row `ids[t]` of the whole table, for ids within it, and zeros for all others."""

from typing import Any

import numpy as np

from shardproof.oracles.whole import Arrays, OfParticipants


class EmbeddingLookup(OfParticipants):
    """`table [V_Y, D]`, `ids […]`, integers, to `[…, D]`, which is the same on all participants if the ids are."""

    sharded = (-2, None)

    def result(self, table: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Every id's row; all others have that of zeros behind the last one."""
        if ids.dtype.kind not in "iu":
            raise ValueError(f"ids: {ids.dtype}: expected integers")
        longer = np.concatenate([table, np.zeros_like(table, shape=(*table.shape[:2], 1, table.shape[-1]))], axis=-2)
        return np.asarray(longer[rows_of(table, ids)])

    def tangent(self, wholes: Arrays, tangents: Arrays) -> np.ndarray:
        """The lookup is linear in the table: that in its tangent."""
        return self.result(tangents[0], wholes[1])

    def cotangents(self, wholes: Arrays, cotangent: np.ndarray) -> list[np.ndarray | None]:
        """A row's cotangent is the sum of those of all places, on all participants, where its id is."""
        table, ids = wholes
        found = np.zeros_like(table, shape=(*table.shape[:2], table.shape[-2] + 1, table.shape[-1]))
        np.add.at(found, rows_of(table, ids), cotangent)
        return [found[..., :-1, :], None]


def rows_of(table: np.ndarray, ids: np.ndarray) -> tuple[Any, ...]:
    """The places of ids in the tables of their process groups; of those of no row, behind the last one."""
    groups = np.arange(ids.shape[1]).reshape(-1, *[1] * (ids.ndim - 2))
    v = table.shape[-2]
    return 0, groups, np.where((ids >= 0) & (ids < v), ids.astype(np.int64), v)


embedding_lookup = EmbeddingLookup()
