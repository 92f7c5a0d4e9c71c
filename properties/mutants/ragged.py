"""Planted bugs of ragged_all_to_all."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import ragged
from shardproof.impl.collectives import axis_index
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


def _sent(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    begin, sizes, target, received = lists
    return ragged.gathered_ragged_all_to_all(operand, output, begin, sizes, target, received, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_without_its_output(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Writes into zeros, so that rows that nothing is written to do not keep the output's."""
    return _sent(operand, jnp.zeros_like(output), *lists, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_packed(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Takes slices to be packed one behind the other in the operand, as they are in most layers."""
    _, sizes, *rest = lists
    most = jnp.maximum(operand.shape[0] - sizes, 0)
    return _sent(operand, output, jnp.minimum(jnp.cumsum(sizes) - sizes, most), sizes, *rest, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_with_one_slice_each(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Exchanges the first slice of each participant, and forgets that there may be several."""
    p = lax.axis_size(axis_name)
    each = lists[0].shape[0] // p
    first: list[Any] = [one.reshape(p, each)[:, 0] for one in lists]
    return _sent(operand, output, *first, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(2,))
def ragged_to_the_own_offset(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Takes the output offsets for the receiver's own list, and not for the senders'."""
    begin, sizes, target, received = lists
    p, index = lax.axis_size(axis_name), axis_index(axis_name)
    each = target.shape[0] // p
    whole = lax.all_gather(target, axis_name).reshape(p, p, each)
    theirs = jnp.take(whole, index, axis=1).reshape(-1)
    return _sent(operand, output, begin, sizes, theirs, received, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,), law="gradient")
def ragged_that_keeps_the_gradient(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Gives the output its whole cotangent, even where it was overwritten."""
    exact = _sent(operand, lax.stop_gradient(output), *lists, axis_name=axis_name)
    return exact + (output - lax.stop_gradient(output)).astype(exact.dtype)
