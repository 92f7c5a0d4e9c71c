"""Planted bugs of what every shard computes by itself."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives, local
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("shard_roll", smallest=(1,))
def shard_roll_the_other_way(x: Array, *, shift: int) -> Array:
    """Rolls towards lower indices: of two rows both ways are the same."""
    return local.shard_roll_of_block(x, -shift)


@mutant("shard_mean", law="communication", smallest=(2,), communication=formula_of("shard_mean", "mean"))
def shard_mean_sent_there_and_back(x: Array) -> Array:
    """Sends the block to another device, and back."""
    axes = _varying(x)
    for offset in (1, -1) if axes and lax.axis_size(axes) > 1 else ():
        x = collectives.ring_shift(x, axes, offset=offset)
    return local.shard_mean_of_block(x)


def _varying(x: Array) -> tuple[str, ...]:
    return tuple(sorted(collectives.varying(x)))


@mutant("shard_mean", smallest=(2,), whole=True)
def shard_mean_of_every_other_row(x: Array, axis_name: AxisName, *, mesh: Any) -> Array:
    """Splits the rows of the global array into (row in the shard, shard)."""
    shards = math.prod(mesh.shape[name] for name in names(axis_name))
    return jnp.mean(x.reshape(-1, shards, x.shape[1]), axis=0)
