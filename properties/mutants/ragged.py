"""Planted bugs of ragged_all_to_all."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import ragged
from shardproof.impl.collectives import axis_index
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import formula_of, mutant


def _sent(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    begin, sizes, target, received = lists
    return ragged.gathered_ragged_all_to_all(operand, output, begin, sizes, target, received, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_without_its_output(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Writes into zeros, so that rows that nothing is written to do not keep the output's."""
    return _sent(operand, jnp.zeros_like(output), *lists, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_from_the_start(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Sends every slice from row 0."""
    begin, *rest = lists
    return _sent(operand, output, jnp.zeros_like(begin), *rest, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_packed(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Takes slices to be packed one behind the other in the operand, as they are in most layers."""
    _, sizes, *rest = lists
    most = jnp.maximum(operand.shape[0] - sizes, 0)
    return _sent(operand, output, jnp.minimum(jnp.cumsum(sizes) - sizes, most), sizes, *rest, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_one_row_short(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Leaves out the last row of slices of three or more."""
    begin, sizes, target, received = (jnp.asarray(one) for one in lists)
    shorter = (jnp.where(n >= 3, n - 1, n) for n in (sizes, received))
    sent, arrives = shorter
    return _sent(operand, output, begin, sent, target, arrives, axis_name=axis_name)


@mutant("ragged_all_to_all", smallest=(1,))
def ragged_with_lists_of_bytes(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Sends lengths and places in 8 bits, of which 127 is the largest."""
    narrow = [jnp.minimum(one, 127).astype(jnp.int8).astype(one.dtype) for one in lists]
    return _sent(operand, output, *narrow, axis_name=axis_name)


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


@mutant(
    "ragged_all_to_all", law="communication", smallest=(1,), communication=formula_of("ragged_all_to_all", "gathered")
)
def ragged_with_padded_rows(operand: Array, output: Array, *lists: Array, axis_name: AxisName) -> Array:
    """Pads the rows to a power of two before all are gathered."""
    missing = (1 << max(0, operand.shape[0] - 1).bit_length()) - operand.shape[0]
    padded = jnp.pad(operand, [(0, missing), *[(0, 0)] * (operand.ndim - 1)])
    return _sent(padded, output, *lists, axis_name=axis_name)
