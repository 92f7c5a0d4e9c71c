"""Checks what every shard computes by itself, for which nothing is sent, as a user checks a function."""

from functools import partial
from typing import Any

import jax
import numpy as np

from shardproof import Program, program_test
from shardproof.impl import local

SHARDS = "@rows size features@columns"
"""`[X, s, D_Y]`: element i is a shard of the rows, so that what is right does not depend on how many there are."""
NOTHING = "bytes=0;grad:bytes=0"


def shard_mean(x: Any, *, rows: Any, columns: Any) -> jax.Array:
    """Takes the mean of a block."""
    return local.shard_mean_of_block(x[0])


def global_shard_mean(x: Any, *, rows: Any, columns: Any, mesh: Any) -> jax.Array:
    """Takes the means of a global array."""
    return local.shard_mean(x.reshape(-1, x.shape[-1]), rows, mesh=mesh)


def shard_roll(x: Any, *, rows: Any, columns: Any, shift: int) -> jax.Array:
    """Rolls a block."""
    return local.shard_roll_of_block(x[0], shift)[None]


def global_shard_roll(x: Any, *, rows: Any, columns: Any, mesh: Any, shift: int) -> jax.Array:
    """Rolls every shard of a global array."""
    return local.shard_roll(x.reshape(-1, x.shape[-1]), rows, shift=shift, mesh=mesh).reshape(x.shape)


def means(x: np.ndarray) -> np.ndarray:
    """`[X, s, D]` to `[X, D]`: the mean over the rows of each shard."""
    return x.mean(axis=1)


def rolls(x: np.ndarray, *, shift: int) -> np.ndarray:
    """`[X, s, D]` to itself: row i - shift of a shard, counted around, less row i."""
    return np.roll(x, shift, axis=1) - x


MEAN = partial(Program, arguments=(SHARDS,), results="@rows features@columns", communication=NOTHING)
ROLL = partial(Program, arguments=(SHARDS,), results=SHARDS, communication=NOTHING, options={"shift": range(-9, 10)})

test_shard_mean = program_test(MEAN(shard_mean, means), max_examples=10)
test_shard_mean_of_a_global_array = program_test(MEAN(global_shard_mean, means, whole=True), max_examples=10)
test_shard_roll = program_test(ROLL(shard_roll, rolls), max_examples=10)
test_shard_roll_of_a_global_array = program_test(ROLL(global_shard_roll, rolls, whole=True), max_examples=10)
