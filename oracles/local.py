"""What each shard computes by itself, in global view: from the rows of every shard, and nothing else."""

import numpy as np


def shard_mean(x: np.ndarray, shards: int) -> np.ndarray:
    """Row i is the mean of the rows of shard i: `[S, D]` to `[X, D]`, in double precision."""
    return np.stack([rows.astype(np.float64).mean(axis=0) for rows in np.split(x, shards)])


def shard_roll(x: np.ndarray, shards: int, shift: int) -> np.ndarray:
    """In each shard, the row `shift` places before (counted around) less the row itself: `[S, D]` to `[S, D]`."""
    return np.concatenate(
        [np.stack([rows[(i - shift) % len(rows)] - rows[i] for i in range(len(rows))]) for rows in np.split(x, shards)]
    )
