"""Right forms of the operations that contracts describe one by one: halos, means, lookups, norms, ragged exchanges."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collectives import accumulator
from shardproof.impl.reshard import layout, spec
from shardproof.impl.rings import multiply
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import right


@right("halo_exchange")
def halo_added_up(x: Array, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Array:
    """Every block is put in its place in zeros, and all of them are added up."""
    p, n = lax.axis_size(axis_name), x.shape[axis]
    axes = names(axis_name)
    x = collectives.cast_varying(x, axes)
    if x.size == 0:
        shape = list(x.shape)
        shape[axis] = before + n + after
        return collectives.cast_varying(jnp.zeros(shape, x.dtype), collectives.varying(x))
    i = lax.axis_index(axes)
    front = jnp.moveaxis(x, axis, 0)
    at = jnp.arange(p).reshape(p, *(1,) * front.ndim) == i
    whole = lax.psum(jnp.where(at, front[None], jnp.zeros((), x.dtype)), axes).astype(x.dtype)
    whole = whole.reshape(p * n, *front.shape[1:])
    whole = jnp.roll(jnp.concatenate([whole, whole, whole]), -(i * n - before + p * n), axis=0)
    return jnp.moveaxis(whole[: before + n + after], 0, axis)


@right("masked_mean")
def masked_mean_weighted_means(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """The weight of an element is 1 by the global count, which travels first."""
    axes = names(axis_name)
    values, mask = collectives.cast_varying((values, mask), axes)
    count = lax.psum(jnp.sum(mask, dtype=jnp.int32), axes)
    share = jnp.where(mask, widened(values), 0) / jnp.maximum(count, 1)
    return lax.psum(jnp.sum(share), axes).astype(values.dtype)


@right("rms_norm")
def rms_mean_of_means(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """All participants have as many features, so the mean is that of their means; by the reciprocal root."""
    x, scale = collectives.cast_varying((x, scale), names(axis_name))
    if not x.size:
        return x
    mean = lax.pmean(jnp.mean(jnp.square(widened(x)), -1, keepdims=True), names(axis_name))
    return (widened(scale) * (widened(x) * lax.rsqrt(mean + epsilon))).astype(x.dtype)


@right("ragged_all_to_all")
def ragged_added_up(
    operand: Array,
    output: Array,
    input_offsets: Array,
    send_sizes: Array,
    output_offsets: Array,
    recv_sizes: Array,
    *,
    axis_name: AxisName,
) -> Array:
    """Everyone writes its rows into zeros in the form of all outputs, and these are added up and scattered."""
    axes = names(axis_name)
    operand, output, begin, sent, target = typed(axis_name, operand, output, input_offsets, send_sizes, output_offsets)
    if not (operand.size and output.size and begin.size):
        return output
    dtype = output.dtype
    operand = operand.astype(jnp.int8) if dtype == jnp.bool_ else operand
    p, m, n = lax.axis_size(axes), output.shape[0], operand.shape[0]
    to = jnp.arange(begin.size) // (begin.size // p)
    rows = jnp.where(jnp.arange(n) < sent[:, None], begin[:, None] + jnp.arange(n), 0)
    places = jnp.where(jnp.arange(n) < sent[:, None], to[:, None] * m + target[:, None] + jnp.arange(n), p * m).ravel()
    buffer = collectives.cast_varying(
        jnp.zeros((p * m, *output.shape[1:]), operand.dtype), collectives.varying(operand) | set(axes)
    )
    marks = collectives.cast_varying(jnp.zeros(p * m, jnp.int32), collectives.varying(places) | set(axes))
    values = buffer.at[places].set(jnp.take(operand, rows.ravel(), axis=0, mode="clip"), mode="drop")
    marks = marks.at[places].set(1, mode="drop")
    total = collectives.reduce_scatter(values, axes, tiled=True)
    written = collectives.reduce_scatter(marks, axes, tiled=True) > 0
    return jnp.where(written.reshape(-1, *(1,) * (output.ndim - 1)), total.astype(dtype), output)


def _ids(ids: Array) -> Array:
    return ids.astype(jnp.int64 if ids.dtype.itemsize > 4 else jnp.int32)


@right("reshard", whole=True)
def reshard_by_a_function_of_blocks(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """A `shard_map` that does nothing: what it takes is laid out as it must be."""
    wanted = spec(layout(roles["rows"], roles["columns"]))
    same: Any = jax.shard_map(lambda x: x, mesh=mesh, in_specs=wanted, out_specs=wanted)
    return same(x)


@right("two_matmuls", whole=True)
def two_matmuls_weights_first(x: Array, w_in: Array, w_out: Array, *, mesh: Any, **layouts: Any) -> Array:
    """Multiplies the weights with one another, on every device of its own `shard_map`."""
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def product(x: Array, w_in: Array, w_out: Array) -> Array:
        weights = jnp.matmul(w_in, w_out, preferred_element_type=wide)
        return jnp.matmul(x.astype(wide), weights).astype(x.dtype)

    rows, _ = layout(layouts["rows"], ())
    of_rows = spec((rows, ()))
    whole = spec(((), ()))
    on_all: Any = jax.shard_map(product, mesh=mesh, in_specs=(of_rows, whole, whole), out_specs=of_rows)
    return on_all(x, w_in, w_out)


def _root(total: Array) -> Array:
    return jnp.where(total == 0, 0, jnp.sqrt(jnp.where(total == 0, 1, total)))


@right("global_norm")
def norm_norms_gathered(x: Array, axis_name: AxisName) -> Array:
    """The norm of all participants' norms."""
    axes = names(axis_name)
    own = _root(jnp.sum(jnp.square(widened(collectives.cast_varying(x, axes)))))
    return _root(jnp.sum(jnp.square(collectives.all_gather_invariant(own, axes)))).astype(x.dtype)


@right("embedding_lookup")
def embedding_filled(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """The gathered table gets a row of zeros behind its last one, to which all others are sent."""
    whole = collectives.all_gather_invariant(
        collectives.cast_varying(table, names(axis_name)), names(axis_name), tiled=True
    )
    longer = jnp.pad(whole.astype(accumulator(whole)), ((0, 1), (0, 0)))
    ids, v = _ids(ids), whole.shape[0]
    return longer[jnp.where((ids >= 0) & (ids < v), ids, v)].astype(table.dtype)


@right("sharded_matmul", whole=True)
def matmul_on_whole_arrays(lhs: Array, rhs: Array, **layouts: Any) -> Array:
    """Leaves everything to the compiler."""
    return multiply(lhs, rhs).astype(lhs.dtype)
