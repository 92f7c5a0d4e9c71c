"""Ragged all-to-all: slices of different lengths, from every participant to every other.

Both forms mean what `jax.lax.ragged_all_to_all` means. The lists have K = k p entries, k for each of the p
participants: entry e belongs to participant e // k, in logical order. For slices *sent* to it, `input_offsets` has
their starts in this participant's operand, `send_sizes` their numbers of rows, and `output_offsets` their starts in
*its* output; for slices *received* from it, `recv_sizes` has their numbers of rows.

Slices of the operand may overlap; those of an output must not. An empty slice may begin anywhere.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from shardproof.impl.arguments import Axes, AxisName, check_axes, check_kind, check_shape, refuse, refuse_batches
from shardproof.impl.collectives import Block, accumulator, all_gather, all_to_all, cast_varying, varying
from shardproof.impl.indices import quotient
from shardproof.impl.rings import align_types

Lists = tuple[Block, Block, Block, Block]


def ragged_all_to_all(
    operand: Block,
    output: Block,
    input_offsets: Block,
    send_sizes: Block,
    output_offsets: Block,
    recv_sizes: Block,
    *,
    axis_name: AxisName,
    disjoint: bool = False,
) -> Block:
    """`operand [N, …]`, `output [M, …]` to `[M, …]`, typed varying: the collective of XLA, of which CPU has none.

    The derivatives are its own, as JAX's are wrong where slices of the operand overlap, and where an empty slice
    begins where another one does. Backward, cotangents arrive in a buffer of min(K N, p M) rows, as any row may have
    been sent K times; in one of N rows if slices are `disjoint`.

    Arguments:
        operand: rows to send, of any dtype.
        output: rows of the same shape and dtype, which the result has wherever nothing is written.
        input_offsets: integers [K].
        send_sizes: integers [K]; entry e on participant i is that of `recv_sizes` of i on participant e // k.
        output_offsets: integers [K].
        recv_sizes: integers [K].
        disjoint: that no slices of an operand overlap, on any participant. Where they do, the gradient is undefined.

    Raises:
        NotImplementedError: for a derivative under `jax.vmap`, which JAX cannot map.
    """
    axes, lists = _check(
        "ragged_all_to_all", operand, output, (input_offsets, send_sizes, output_offsets, recv_sizes), axis_name
    )
    operand, output, lists = align_types(operand, output, lists, axis_name=axes)
    if not (operand.size and output.size and lists[0].size):
        return output
    return _differentiable(axes, disjoint)(operand, output, lists)


def gathered_ragged_all_to_all(
    operand: Block,
    output: Block,
    input_offsets: Block,
    send_sizes: Block,
    output_offsets: Block,
    recv_sizes: Block,
    *,
    axis_name: AxisName,
) -> Block:
    """`operand [N, …]`, `output [M, …]` to `[M, …]`, typed varying, on every platform: gathers all operands.

    Arguments are those of `ragged_all_to_all`. Every participant holds all p N rows, and takes its own out of them.
    """
    lists = (input_offsets, send_sizes, output_offsets, recv_sizes)
    axes, lists = _check("gathered_ragged_all_to_all", operand, output, lists, axis_name)
    # what is gathered would cast itself where it meets the lists, and a sum of all rows would be its transpose
    operand, output, (begin, _, target, sizes) = align_types(operand, output, lists, axis_name=axes)
    if not (operand.size and output.size and begin.size):
        return output
    rows = operand.shape[0]
    starts, targets = all_to_all(jnp.stack([begin, target]), axes, split_axis=1, concat_axis=1, tiled=True)
    sender = quotient(jnp.arange(starts.size), starts.size // lax.axis_size(axes))
    written, entry, within = _slices(targets, sizes, output.shape[0])
    source = jnp.where(written, (sender * rows + starts)[entry] + within, 0)
    whole = all_gather(operand, axes, tiled=True)
    # widened before rows are taken, so that the cotangents of rows sent twice are added up in float32
    taken = jnp.take(whole.astype(accumulator(whole)), source, axis=0, mode="clip").astype(operand.dtype)
    return jnp.where(_beside(written, output), taken, output)


def _check(function: str, operand: Block, output: Block, lists: Lists, axis_name: AxisName) -> tuple[Axes, Lists]:
    """The axis tuple, and the lists in one dtype that holds every row number."""
    axes = check_axes(function, axis_name)
    for argument, rows in (("operand", operand), ("output", output)):
        if not rows.ndim:
            refuse(
                function, argument, str(jax.typeof(rows)), "an array of at least 1 dimension, the first of them rows"
            )
    check_shape(function, "output", output, (output.shape[0], *operand.shape[1:]), "with rows as those of operand")
    if output.dtype != operand.dtype:
        refuse(function, "output", str(jax.typeof(output)), f"an array of {operand.dtype}, the dtype of operand")
    p, entries = lax.axis_size(axes), lists[0].shape[:1]
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    for argument, one in zip(names, lists, strict=True):
        check_kind(function, argument, one, jnp.integer, "integers")
        check_shape(function, argument, one, entries or (p,), "the length of input_offsets" if entries else "a list")
        if one.size % p:
            refuse(function, argument, str(jax.typeof(one)), f"a multiple of {p} entries, as many for each participant")
    dtype = jnp.int64 if any(one.dtype.itemsize > 4 for one in lists) else jnp.int32
    begin, sent, target, received = (one.astype(dtype) for one in lists)
    return axes, (begin, sent, target, received)


def _slices(starts: Block, sizes: Block, rows: int) -> tuple[Block, Block, Block]:
    """For each row, whether a slice has it, which one, and its distance from the slice's start; each `[rows]`.

    Slices do not overlap. Each is marked at its first row, and found from the rows behind: an array of rows by slices
    would grow with the square of the participants.
    """
    at = jnp.arange(rows)
    begins = jnp.where(sizes > 0, starts, rows)  # an empty slice has no row, wherever it begins
    marks = jnp.full(rows, -1).at[begins].set(jnp.arange(starts.size), mode="drop")
    start = lax.cummax(jnp.where(marks >= 0, at, -1))
    entry = jnp.maximum(marks[jnp.maximum(start, 0)], 0)
    within = at - start
    return (start >= 0) & (within < sizes[entry]), entry, within


def _beside(mask: Block, rows: Block) -> Block:
    """A mask of rows, as one of whatever they hold."""
    return mask.reshape(mask.shape + (1,) * (rows.ndim - 1))


def _differentiable(axes: Axes, disjoint: bool) -> "jax.custom_jvp[Block]":
    """The exchange with derivatives of its own: linear in operand and output, with the transpose of `_returned`."""

    @jax.custom_jvp
    def exchange(operand: Block, output: Block, lists: Lists) -> Block:
        return _exchange(operand, output, lists, axes)

    def derivative(
        primals: tuple[Block, Block, Lists], tangents: tuple[Block | SymbolicZero, Block | SymbolicZero, Any]
    ) -> tuple[Block, Block]:
        operand, output, lists = primals
        wanted = "a derivative outside of jax.vmap"
        refuse_batches("ragged_all_to_all", "axis_name", axes, wanted, operand, output, lists)
        # JAX transposes no linear_call of which an operand is known to be zero
        moving = [i for i in range(2) if not isinstance(tangents[i], SymbolicZero)]

        def forward(lists: Lists, along: list[Block]) -> Block:
            known = dict(zip(moving, along, strict=True))
            rows, into = (
                known[i] if i in known else cast_varying(jnp.zeros_like(x), varying(x))
                for i, x in enumerate((operand, output))
            )
            return _exchange(rows, into, lists, axes)

        def backward(lists: Lists, ct: Block) -> list[Block]:
            both = _returned(ct, lists, operand.shape[0], axes, disjoint)
            return [both[i] for i in moving]

        tangent = jax.custom_derivatives.linear_call(forward, backward, lists, [tangents[i] for i in moving])
        return exchange(operand, output, lists), tangent

    exchange.defjvp(derivative, symbolic_zeros=True)
    return exchange


def _returned(ct: Block, lists: Lists, rows: int, axes: Axes, disjoint: bool) -> tuple[Block, Block]:
    """The cotangents of operand and output: those of written rows go back, and add up where slices overlap."""
    begin, sent, target, received = lists
    # where slices overlap they cannot be written to the operand's rows: they are packed one behind the other
    packed = begin if disjoint else jnp.cumsum(sent) - sent
    back, places = all_to_all(jnp.stack([target, packed]), axes, split_axis=1, concat_axis=1, tiled=True)
    room = rows if disjoint else min(sent.size * rows, lax.axis_size(axes) * ct.shape[0])
    buffer = cast_varying(jnp.zeros((room, *ct.shape[1:]), ct.dtype), varying(ct))
    operand = _exchange(ct, buffer, (back, received, places, sent), axes)
    if not disjoint:
        used, entry, within = _slices(packed, sent, room)
        origin = jnp.where(used, begin[entry] + within, rows)
        total = cast_varying(jnp.zeros((rows, *ct.shape[1:]), accumulator(ct)), varying(ct))
        operand = total.at[origin].add(operand.astype(total.dtype), mode="drop").astype(ct.dtype)
    written, _, _ = _slices(back, received, ct.shape[0])
    return operand, jnp.where(_beside(written, ct), 0, ct)


def _exchange(operand: Block, output: Block, lists: Lists, axes: Axes) -> Block:
    """The collective, with a rule for `jax.vmap`: JAX's own fails unless all operands are mapped."""

    @jax.custom_batching.custom_vmap
    def exchange(operand: Block, output: Block, lists: Lists) -> Block:
        return lax.ragged_all_to_all(operand, output, *lists, axis_name=axes)

    @exchange.def_vmap
    def _(size: int, batched: Any, *operands: Any) -> tuple[Block, bool]:
        operand, output, *lists = (
            x if mapped else jnp.broadcast_to(x, (size, *x.shape))
            for x, mapped in zip(jax.tree.leaves(operands), jax.tree.leaves(batched), strict=True)
        )
        begin, sent, target, received = (
            jnp.moveaxis(one.reshape(size, lax.axis_size(axes), -1), 0, 1) for one in lists
        )
        element = jnp.arange(size, dtype=begin.dtype)[None, :, None]  # XLA takes lists of one dtype alone
        lists = [begin + element * operand.shape[1], sent, target + element * output.shape[1], received]
        joined, into = (rows.reshape(math.prod(rows.shape[:2]), *rows.shape[2:]) for rows in (operand, output))
        result = exchange(joined, into, tuple(one.ravel() for one in lists))
        return result.reshape(output.shape), True

    return exchange(operand, output, lists)
