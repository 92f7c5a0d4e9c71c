"""Right implementations in styles that are rare: classes, recursion, tables, padding, bit patterns, switches."""

import functools
import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.right.catalogue import enter, right
from shardproof.properties.mutants.right.pieces import accumulator, combined, cut, divided, join, spread
from shardproof.properties.mutants.right.products import multiplied
from shardproof.properties.mutants.right.reductions import whole
from shardproof.properties.mutants.right.shifts import Pairs

BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
LANES = 128


@dataclass(frozen=True)
class Gatherer:
    """An object that is called like a function."""

    broadcasting: bool

    def __call__(self, x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
        """The gathered blocks: every participant sends p copies of its own in an all-to-all."""
        p = lax.axis_size(axis_name)
        copies = jnp.broadcast_to(x, (p, *x.shape)) if self.broadcasting else jnp.stack([x] * p)
        blocks = collectives.all_to_all(copies, axis_name, split_axis=0, concat_axis=0, tiled=True)
        return join(blocks, axis, tiled)


enter("gather_with_an_object", "all_gather", "An object with a method __call__.", Gatherer(broadcasting=True))


@right("all_gather")
def gather_bit_patterns(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Sends the bits of floats as integers, with a custom_vjp since bits have no gradient."""

    @jax.custom_vjp
    def gather(x: Array) -> Array:
        unsigned = BITS.get(x.dtype.itemsize) if jnp.issubdtype(x.dtype, jnp.floating) else None
        if unsigned is None:
            return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)
        bits = lax.bitcast_convert_type(x, unsigned)
        return lax.bitcast_convert_type(collectives.all_gather(bits, axis_name, axis=axis, tiled=tiled), x.dtype)

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.reduce_scatter(ct, axis_name, scatter_dimension=axis, tiled=tiled),)

    gather.defvjp(lambda x: (gather(x), None), backward)
    return gather(spread(x, axis_name))


@right("all_gather")
def gather_behind_a_barrier(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Ties the block to a number with an optimization_barrier before it is sent."""
    x, _ = lax.optimization_barrier((x, jnp.float32(1.5)))
    return collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)


@right("all_gather_invariant")
def gather_invariant_in_two_hops(x: Array, axis_name: AxisName, *, axis: int = 0, tiled: bool = False) -> Array:
    """Gathers over the last name, and what comes of that over the others, each hop typed invariant."""
    *others, last = names(axis_name)
    blocks = collectives.all_gather_invariant(x, last)
    if others:
        blocks = collectives.all_gather_invariant(blocks, tuple(others), tiled=True)
    return join(blocks, axis, tiled)


@right("all_reduce")
def reduce_with_the_operators_of_python(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Folds the list of gathered blocks with functools.reduce and the operators of the standard library."""
    blocks = list(collectives.all_gather(whole(x, op), axis_name))
    folds: dict[str, Any] = {"sum": operator.add, "mean": operator.add, "max": jnp.maximum, "min": jnp.minimum}
    result = functools.reduce(folds[op], blocks)
    return divided(result, len(blocks)) if op == "mean" else result


@right("all_reduce")
def reduce_in_pairs(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Adds up neighbours, then neighbours of those, in a dtype that is wider."""
    blocks = collectives.all_gather(whole(x, op), axis_name)
    p = len(blocks)
    blocks = blocks.astype(accumulator(x.dtype)) if op in ("sum", "mean") else blocks
    while len(blocks) > 1:
        even, odd, rest = blocks[:-1:2], blocks[1::2], blocks[len(blocks) // 2 * 2 :]
        blocks = jnp.concatenate([combined(even[: len(odd)], odd, op), rest])
    if op == "mean":
        return divided(blocks[0], p).astype(x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.float32)
    return blocks[0].astype(x.dtype)


@right("all_reduce")
def reduce_padded_lanes(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Fills the flat block up to rows of 128 with its first element, reduces those, and cuts the filling off."""
    if x.size == 0:
        return collectives.all_reduce(x, axis_name, op=op)
    flat = x.ravel()
    lanes = jnp.concatenate([flat, jnp.broadcast_to(flat[0], (-x.size % LANES,))]).reshape(-1, LANES)
    return collectives.all_reduce(lanes, axis_name, op=op).ravel()[: x.size].reshape(x.shape)


@right("all_reduce")
def reduce_parts_of_a_dictionary(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces the rows of the block as the leaves of a dictionary."""
    if x.ndim == 0 or len(x) == 0:
        return collectives.all_reduce(x, axis_name, op=op)
    rows = collectives.all_reduce({f"row {i:03}": row for i, row in enumerate(x)}, axis_name, op=op)
    return jnp.stack([rows[f"row {i:03}"] for i in range(len(x))])


@right("reduce_scatter")
def scatter_one_axis_at_a_time(
    x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False
) -> Array:
    """Scatters over the names of the tuple in turn, with `lax.psum_scatter`, in a dtype that is wider."""
    pieces = cut(x.astype(accumulator(x.dtype)), lax.axis_size(axis_name), scatter_dimension, tiled)
    shape, size = pieces.shape[1:], lax.axis_size(axis_name)
    flat = pieces.reshape(size, -1)
    if flat.size == 0:
        return spread(jnp.zeros(shape, x.dtype), axis_name)
    for name in names(axis_name):
        flat = lax.psum_scatter(flat, name, scatter_dimension=0, tiled=True)
    return flat.reshape(shape).astype(x.dtype)


@right("reduce_scatter")
def scatter_by_masking(x: Array, axis_name: AxisName, *, scatter_dimension: int = 0, tiled: bool = False) -> Array:
    """Sums all pieces on every device and picks its own one with a chain of `jnp.where`."""
    p = lax.axis_size(axis_name)
    pieces = cut(collectives.all_reduce(x, axis_name, op="sum"), p, scatter_dimension, tiled)
    index = lax.axis_index(axis_name)
    kept = pieces[0]
    for participant in range(1, p):
        kept = jnp.where(index == participant, pieces[participant], kept)
    return spread(kept, axis_name)


@right("all_to_all")
def exchange_by_rolling(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Rolls the pieces by the own index, shifts row d by d, and rolls and flips them back."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    rows = jnp.roll(cut(spread(x, axis_name), p, split_axis, tiled), -index, axis=0)
    shifted = jnp.stack([collectives.ring_shift(rows[d], axis_name, offset=d) for d in range(p)])
    senders = jnp.roll(jnp.flip(shifted, 0), index + 1, axis=0)
    return join(senders, concat_axis, tiled)


@right("all_to_all")
def exchange_named_parts(
    x: Array, axis_name: AxisName, *, split_axis: int, concat_axis: int, tiled: bool = False
) -> Array:
    """Two jitted functions inside one another, one of them for every size, under a name for profiles."""

    @functools.partial(jax.jit, static_argnames=("parts",))
    def pieces(x: Array, parts: int) -> Array:
        return cut(x, parts, split_axis, tiled)

    @jax.jit
    def exchange(x: Array) -> Array:
        with jax.named_scope("exchange"):
            received = collectives.all_to_all(
                pieces(x, parts=lax.axis_size(axis_name)), axis_name, split_axis=0, concat_axis=0, tiled=True
            )
        return join(received, concat_axis, tiled)

    return exchange(x)


@right("permute")
def permute_through_a_switch(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Looks up in a `lax.switch` over the own index which of all blocks to take, or zeros."""
    blocks, source = collectives.all_gather(x, axis_name), {target: source for source, target in perm}
    branches: list[Any] = [lambda blocks: jnp.zeros_like(blocks[0])]
    branches += [lambda blocks, at=at: blocks[at] for at in range(lax.axis_size(axis_name))]
    chosen = np.array([source.get(participant, -1) + 1 for participant in range(lax.axis_size(axis_name))])
    return lax.switch(jnp.asarray(chosen)[lax.axis_index(axis_name)], branches, blocks)


@right("permute")
def permute_real_and_imaginary_parts(x: Array, axis_name: AxisName, *, perm: Pairs) -> Array:
    """Sends the parts of complex numbers by themselves."""
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return collectives.permute(x, axis_name, perm=perm)
    real, imaginary = (collectives.permute(part, axis_name, perm=perm) for part in (x.real, x.imag))
    return lax.complex(real, imaginary)


@right("ring_shift")
def shift_by_a_table_of_floats(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Finds its source with floating-point arithmetic, in a table that NumPy made."""
    p = lax.axis_size(axis_name)
    table = jnp.asarray(np.mod(np.arange(p, dtype=np.float32) - offset, p))
    source = jnp.round(table[lax.axis_index(axis_name)]).astype(jnp.int32)
    return jnp.take(collectives.all_gather(x, axis_name), source, axis=0)


@right("ring_shift")
def shift_a_padded_block(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Fills the flat block up to whole rows of 128 before it is sent."""
    flat = jnp.pad(x.ravel(), (0, -x.size % LANES)).reshape(-1, LANES)
    return collectives.ring_shift(flat, axis_name, offset=offset).ravel()[: x.size].reshape(x.shape)


@right("ring_shift")
def shift_column_by_column(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Shifts what `lax.map` hands it, row after row of the flat block."""
    rows = spread(x, axis_name).reshape(-1, 1)
    return lax.map(lambda row: collectives.ring_shift(row, axis_name, offset=offset), rows).reshape(x.shape)


@right("broadcast")
def broadcast_as_a_gather_of_one(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Sends the root's block to everyone in an all-to-all in which only the root's pieces count."""
    p = lax.axis_size(axis_name)
    received = collectives.all_to_all(
        jnp.broadcast_to(x, (p, *x.shape)), axis_name, split_axis=0, concat_axis=0, tiled=True
    )
    return received[np.arange(p).tolist()[root]]


@right("broadcast")
def broadcast_one_axis_after_the_other(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Takes the root's coordinates apart with divmod, and broadcasts along one name after the other."""
    for name in reversed(names(axis_name)):
        root, at = divmod(root, lax.axis_size(name))
        x = lax.all_gather(x, name)[at] if x.size else spread(x, name)
    return x


@right("all_gather_matmul_lhs")
def multiply_a_transposed_product(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Multiplies the transposed weights with the transposed rows, and transposes the product."""
    rows = collectives.all_gather(lhs, axis_name, tiled=True)
    return multiplied("nk,km->nm", rhs.T, rows.T).T.astype(lhs.dtype)


@right("all_gather_matmul_lhs")
def multiply_halves_of_the_columns(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Contracts the two halves of K by themselves, and adds them in the accumulator."""
    rows, k = collectives.all_gather(lhs, axis_name, tiled=True), lhs.shape[1] // 2
    first, second = multiplied("mk,kn->mn", rows[:, :k], rhs[:k]), multiplied("mk,kn->mn", rows[:, k:], rhs[k:])
    return (first + second).astype(lhs.dtype)


@right("matmul_reduce_scatter")
def scatter_a_sum_of_floats(lhs: Array, rhs: Array, axis_name: AxisName, *, scatter_dimension: int = 0) -> Array:
    """Scatters the sum in the accumulator's dtype, column blocks moved to the front."""
    product = jnp.moveaxis(multiplied("mk,kn->mn", lhs, rhs), scatter_dimension, 0)
    piece = collectives.reduce_scatter(product, axis_name, tiled=True)
    return jnp.moveaxis(piece, 0, scatter_dimension).astype(lhs.dtype)


@right("matmul_all_reduce")
def add_up_pieces_that_everyone_gathers(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Exchanges the terms, adds up its own piece of them, and gathers the pieces."""
    product, p = multiplied("mk,kn->mn", lhs, rhs), lax.axis_size(axis_name)
    flat = product.ravel()
    pieces = jnp.pad(flat, (0, -flat.size % p)).reshape(p, -1)
    terms = collectives.all_to_all(spread(pieces, axis_name), axis_name, split_axis=0, concat_axis=0, tiled=True)
    summed = jnp.sum(terms.reshape(p, -1), 0, dtype=terms.dtype)
    return collectives.all_gather(summed, axis_name, tiled=True)[: flat.size].reshape(product.shape).astype(lhs.dtype)


@right("transformer_block")
def block_of_hidden_pieces(x: Array, w_in: Array, w_out: Array, axis_name: AxisName) -> Array:
    """Computes every hidden unit by itself, in a loop over them, and adds up outer products."""
    whole_x = collectives.all_gather(x, axis_name, axis=1, tiled=True)
    hidden = jax.nn.relu(multiplied("bd,df->bf", whole_x, w_in).astype(x.dtype))
    terms = [multiplied("b,d->bd", hidden[:, f], w_out[f]) for f in range(w_out.shape[0])]
    total = functools.reduce(operator.add, terms, multiplied("bf,fd->bd", hidden[:, :0], w_out[:0]))
    return collectives.reduce_scatter(total, axis_name, scatter_dimension=1, tiled=True).astype(x.dtype)
