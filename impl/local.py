"""Functions that each shard computes by itself, in JAX's two styles: nothing has to be sent.

The device-local functions run inside `jax.shard_map`. Those of global arrays are for `jax.jit`: a reshape splits the
sharded dimension into (shard, row in the shard), and that the compiler then sends nothing is for it to find out.
"""

import math

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import AxisName, as_axes


def shard_mean(x: Float[Array, "S D"], axis_name: AxisName, *, mesh: Mesh | AbstractMesh) -> Float[Array, "X D"]:
    """The mean over the rows of each shard: `[S_X, D_Y]` to `[X, D_Y]`, row i the mean of shard i."""
    return jnp.mean(_by_shard(x, axis_name, mesh), axis=1)


def shard_mean_of_block(block: Float[Array, "s d"]) -> Float[Array, "1 d"]:
    """The mean over the rows of a block: `[S_X, D_Y]` to `[1_X, D_Y]`, of which `shard_map` makes `[X, D_Y]`."""
    return jnp.mean(block, axis=0, keepdims=True)


def shard_roll(
    x: Shaped[Array, "S D"], axis_name: AxisName, *, shift: int, mesh: Mesh | AbstractMesh
) -> Shaped[Array, "S D"]:
    """`roll(x, shift) - x` of the rows within each shard: `[S_X, D_Y]` to `[S_X, D_Y]`, for any integer `shift`."""
    parts = _by_shard(x, axis_name, mesh)
    return (jnp.roll(parts, shift, axis=1) - parts).reshape(x.shape)


def shard_roll_of_block(block: Shaped[Array, "s d"], shift: int) -> Shaped[Array, "s d"]:
    """`roll(block, shift) - block` along the rows of a block."""
    return jnp.roll(block, shift, axis=0) - block


def _by_shard(x: Shaped[Array, "S D"], axis_name: AxisName, mesh: Mesh | AbstractMesh) -> Shaped[Array, "X s D"]:
    shards = math.prod(mesh.shape[name] for name in as_axes(axis_name))
    if x.shape[0] % shards:
        raise ValueError(f"axis_name={axis_name!r}: expected a divisor of the {x.shape[0]} rows of x, not {shards}")
    return x.reshape(shards, x.shape[0] // shards, *x.shape[1:])
