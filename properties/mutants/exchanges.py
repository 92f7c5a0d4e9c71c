"""Planted bugs of all_to_all."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


@mutant("all_to_all", smallest=(1,))
def exchange_split_for_concat(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, **options: Any
) -> Array:
    """Splits along the axis to concatenate along, and the other way round."""
    return collectives.all_to_all(x, axis_name, split_axis=concat_axis, concat_axis=split_axis, **options)


@mutant("all_to_all", smallest=(2,))
def exchange_of_int4_through_uint4(x: Array, axis_name: AxisName, **options: Any) -> Array:
    """Loses the sign of int4, because two of them are packed into a byte and unpacked unsigned."""
    y = collectives.all_to_all(x, axis_name, **options)
    if x.dtype == jnp.int4 and lax.axis_size(axis_name) > 1:
        return (y.astype(jnp.int8) & 7).astype(jnp.int4)
    return y
