"""Planted bugs that end or stop the process that they run in."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


@mutant("ring_shift", smallest=(2,), runs="isolated")
def shift_hangs(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Enters the permute on participant 0 only, which waits for the others for ever."""
    x = collectives.cast_varying(x, (axis_name,) if isinstance(axis_name, str) else axis_name)
    return lax.cond(
        lax.axis_index(axis_name) == 0, lambda x: collectives.ring_shift(x, axis_name, offset=offset), lambda x: x, x
    )


@mutant("ring_shift", smallest=(2,), runs="isolated")
def shift_hangs_unseen(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """The same, beside an approximate maximum, which the interpreter lacks: only XLA finds that it does not end."""
    one = lax.approx_max_k(jnp.ones(1), 1)[0][0].astype(jnp.int32)
    x = collectives.cast_varying(x, (axis_name,) if isinstance(axis_name, str) else axis_name)
    return lax.cond(
        lax.axis_index(axis_name) < one, lambda x: collectives.ring_shift(x, axis_name, offset=offset), lambda x: x, x
    )


@mutant("ring_shift", smallest=(1,), runs="isolated")
def shift_never_ends(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Computes for ever in a loop whose condition never fails."""
    shifted = collectives.ring_shift(x, axis_name, offset=offset)
    end = lax.while_loop(lambda i: i >= 0, lambda i: i ^ 1, jnp.int32(1))
    return jnp.where(end == 0, jnp.zeros_like(shifted), shifted)  # a loop on which nothing depends is left out


@mutant("all_reduce", smallest=(1,), runs="isolated")
def reduce_aborts(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Aborts the process while it runs."""

    def abort(block: Any) -> np.ndarray:
        os.abort()

    result = collectives.all_reduce(x, axis_name, op=op)
    return jax.pure_callback(abort, jax.ShapeDtypeStruct(result.shape, result.dtype), result)


@mutant("all_gather", smallest=(1,), runs="isolated")
def gather_recurses_for_ever(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Calls itself on one device as well, where the recursion should end."""
    return gather_recurses_for_ever(x, axis_name, axis=axis, tiled=tiled)


@mutant("broadcast", smallest=(1,), runs="isolated")
def broadcast_eats_memory(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Makes copies until there is no memory left."""
    copies = []
    while True:
        copies.append(np.ones(2**24))  # written to, so that the memory is really taken
