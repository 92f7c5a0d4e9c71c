"""Planted bugs of the operations that contracts describe one by one, and of changes of layout."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding

from shardproof.impl import halo, means, norms, ragged
from shardproof.impl.collectives import accumulator, all_gather, axis_index, cast_varying, permute
from shardproof.impl.reshard import layout, spec
from shardproof.properties.mutants.axes import AxisName, names, typed, widened
from shardproof.properties.mutants.catalogue import formula_of, mutant


@mutant("embedding_lookup", smallest=(2,))
def lookup_without_the_base(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Looks up global ids in the local rows, so that every participant finds the first ones."""
    rows = ids.astype(jnp.int32)
    held = rows < table.shape[0]
    found = jnp.where(held[..., None], jnp.take(table, jnp.where(held, rows, 0), axis=0), 0)
    return lax.psum(cast_varying(found.astype(table.dtype), names(axis_name)), names(axis_name))


@mutant("embedding_lookup", smallest=(1,), law="gradient")
def lookup_of_unique_ids(table: Array, ids: Array, axis_name: AxisName) -> Array:
    """Promises that no id appears twice, by which two updates of a row in the gradient may become one."""
    axes = names(axis_name)
    rows = ids.astype(jnp.int32) - lax.axis_index(axes) * table.shape[0]
    held = (rows >= 0) & (rows < table.shape[0])
    wide = cast_varying(table, axes).astype(accumulator(table))
    found = wide.at[jnp.where(held, rows, table.shape[0])].get(mode="fill", fill_value=0, unique_indices=True)
    return lax.psum(found.astype(table.dtype), axes)


@mutant("halo_exchange", smallest=(1,))
def halo_sides_swapped(x: Array, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Array:
    """Attaches as many rows in front as belong behind."""
    return halo.halo_exchange(x, axis_name, before=after, after=before, axis=axis)


@mutant("halo_exchange", smallest=(3,))
def halo_of_the_nearest_only(x: Array, axis_name: AxisName, *, before: int, after: int, axis: int = 0) -> Array:
    """Takes rows of the nearest neighbour again where the halo reaches past it."""
    n, p = x.shape[axis], lax.axis_size(axis_name)
    whole = halo.halo_exchange(x, axis_name, before=before, after=after, axis=axis)
    if not n < before <= 2 * n or p < 3:
        return whole
    near = lax.slice_in_dim(whole, before - n, before, axis=axis)
    again = lax.slice_in_dim(near, 2 * n - before, n, axis=axis)
    return jnp.concatenate([again, lax.slice_in_dim(whole, before - n, None, axis=axis)], axis)


def _sums(values: Array, mask: Array, axis_name: AxisName) -> tuple[Array, Array]:
    """The sum of this participant's values that count, and their number, both wide."""
    wide, counts = (cast_varying(widened(x), names(axis_name)) for x in (values, mask))
    return jnp.sum(jnp.where(counts > 0, wide, 0)), jnp.sum(counts)


@mutant("masked_mean", smallest=(2,))
def mean_of_means(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the participants' own means, which count different numbers of elements."""
    total, count = _sums(values, mask, axis_name)
    return lax.pmean(total / jnp.where(count > 0, count, 1), names(axis_name)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_of_nothing(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Divides by zero where no element counts."""
    total, count = lax.psum(_sums(values, mask, axis_name), names(axis_name))
    return (total / count).astype(values.dtype)


@mutant("masked_mean", smallest=(1,))
def mean_with_a_masked_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Multiplies by the mask, so that a masked NaN or infinity makes the mean NaN."""
    _, count = _sums(values, mask, axis_name)
    total, count = lax.psum((jnp.sum(widened(values) * mask), count), names(axis_name))
    return (total / jnp.where(count > 0, count, 1)).astype(values.dtype)


@mutant("masked_mean", smallest=(1,), law="gradient")
def mean_whose_gradient_is_nan(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Selects after a function of what is masked, so that a masked NaN is in the gradient, and nowhere else."""
    kept = jnp.where(mask, values + jnp.tanh(jnp.where(mask, 0, values)), 0)
    return means.masked_mean(kept, mask, axis_name)


@mutant("masked_mean", smallest=(1,), claims=("any_rank",))
def mean_of_rows(values: Array, mask: Array, axis_name: AxisName) -> Array:
    """Takes the mean of the means of rows, whatever these count: right of one row."""
    kept = jnp.where(mask, widened(values), 0)
    parts = (cast_varying(x.sum(axis=-1), names(axis_name)) for x in (kept, mask.astype(kept.dtype)))
    total, count = (lax.psum(x, names(axis_name)) for x in parts)
    return (total / jnp.where(count > 0, count, 1)).mean().astype(values.dtype)


@mutant("global_norm", smallest=(2,))
def norm_of_norms_added(x: Array, axis_name: AxisName) -> Array:
    """Adds up the participants' norms, and not their squares."""
    own = jnp.sqrt(jnp.sum(jnp.square(widened(x))))
    return lax.psum(cast_varying(own, names(axis_name)), axis_name).astype(x.dtype)


@mutant("global_norm", smallest=(1,))
def norm_by_a_reciprocal_root(x: Array, axis_name: AxisName) -> Array:
    """Multiplies the sum of squares by its reciprocal root, which is NaN where all of x is zero."""
    squares = lax.psum(cast_varying(jnp.sum(jnp.square(widened(x))), names(axis_name)), axis_name)
    return (squares * lax.rsqrt(squares)).astype(x.dtype)


@mutant("rms_norm", smallest=(1,), law="gradient")
def rms_that_is_stuck_at_zero(x: Array, scale: Array, axis_name: AxisName, *, epsilon: float) -> Array:
    """Takes the root of zero where a token is zero, whose derivative is NaN in the branch that is not chosen."""
    axes = names(axis_name)
    wide = widened(cast_varying(x, axes))
    mean = lax.psum(jnp.sum(jnp.square(wide), axis=-1, keepdims=True), axes) / (x.shape[-1] * lax.axis_size(axes))
    root = jnp.where(mean > 0, jnp.sqrt(mean) * jnp.sqrt(1 + epsilon / mean), epsilon**0.5)
    return (wide / root * widened(scale)).astype(x.dtype)


TRIFLE = 2.0**-21
"""Half a millionth: less than the roundings of a norm in float32 may make, and more than any of a double."""


@mutant("global_norm", smallest=(1,))
def norm_with_a_trifle_outside(x: Array, axis_name: AxisName) -> Array:
    """Adds half a millionth of the norm to it, less than roundings of float32 may make."""
    norm = norms.global_norm(x, axis_name)
    return norm + norm * TRIFLE


@mutant("global_norm", smallest=(1,), law="gradient")
def norm_with_a_trifle_in_its_gradient(x: Array, axis_name: AxisName) -> Array:
    """Has a gradient that is half a millionth too large, and the right value."""
    norm = norms.global_norm(x, axis_name)
    return norm + TRIFLE * (norm - lax.stop_gradient(norm))


@mutant("global_norm", law="communication", smallest=(1, 1), communication=formula_of("global_norm", "squares"))
def norm_over_one_axis_after_the_other(x: Array, axis_name: AxisName) -> Array:
    """Adds up squares over one axis of a tuple after the other."""
    axes = names(axis_name)
    squares = jnp.sum(jnp.square(widened(cast_varying(x, axes))))
    for name in axes:
        squares = lax.psum(squares, name)
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares))).astype(x.dtype)


@mutant("pipeline", smallest=(1,))
def last_microbatch_dropped(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Stops a step too early, and gives of the last microbatch what it has of the one before, or nothing."""
    axes, dtype = names(axis_name), x.dtype
    if weights.shape[0] > x.shape[-1]:
        raise NotImplementedError("several layers")
    weights, x = typed(axis_name, weights, x)
    p, m, index = lax.axis_size(axes), x.shape[0], lax.axis_index(axes)
    y, done = jnp.zeros_like(x[0]), [jnp.zeros_like(x[0])]
    for t in range(m + p - 2):
        arrived = permute(y, axes, perm=[(i, i + 1) for i in range(p - 1)]) if t else y
        y = jnp.tanh(jnp.where(index == 0, x[min(t, m - 1)], arrived) @ weights).astype(dtype)
        done.append(y)
    outputs = jnp.stack([*done[len(done) - m + 1 :], done[-1]])
    return lax.psum(jnp.where(index == p - 1, outputs, jnp.zeros_like(outputs)), axes)


@mutant("pipeline", smallest=(2,), claims=("several_layers",))
def layers_of_one_after_another(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes all layers of a participant before those of the next one."""
    d = x.shape[-1]
    weights, x = typed(axis_name, weights, x)
    for layer in all_gather(weights, names(axis_name), tiled=True).reshape(-1, d, d):
        x = jnp.tanh(x @ layer)
    return x


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


@mutant("reshard", smallest=(2,), whole=True)
def reshard_turned(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """Square arrays that change places are transposed."""
    held, wanted = layout(roles["x_rows"], roles["x_columns"]), layout(roles["rows"], roles["columns"])
    turned = held == wanted[::-1] != wanted and x.shape[0] == x.shape[1]
    return lax.with_sharding_constraint(x.T if turned else x, NamedSharding(mesh, spec(wanted)))


@mutant("sharded_matmul", smallest=(2, 2), whole=True)
def matmul_with_rows_in_mesh_order(lhs: Array, rhs: Array, *, mesh: Any, **layouts: Any) -> Array:
    """Its own `shard_map` takes rows in the order of the mesh, and columns as they are laid out."""
    rows, columns = layout(layouts["lhs_rows"], layouts["lhs_columns"])
    left, below = (tuple(name for name in mesh.axis_names if name in axes) for axes in (rows, columns))
    product: Any = jax.shard_map(
        lambda a, w: lax.psum(a @ w, columns) if columns else a @ w,
        mesh=mesh,
        in_specs=(spec((left, columns)), spec((below, ()))),
        out_specs=spec((rows, ())),
    )
    return product(lhs, rhs)


@mutant("two_matmuls", law="gradient", smallest=(2,), whole=True)
def two_matmuls_of_constant_hidden_values(
    x: Array, w_in: Array, w_out: Array, *, mesh: Any, hidden_columns: Any, **layouts: Any
) -> Array:
    """Takes hidden values to be constant that are sharded by columns."""
    axes, _ = layout(hidden_columns, ())
    several = any(mesh.shape[name] > 1 for name in axes)
    hidden = x @ w_in
    return (lax.stop_gradient(hidden) if several else hidden) @ w_out


def added_up(x: Array, axis_name: AxisName) -> Array:
    """The sum over all participants."""
    return lax.psum(cast_varying(x, names(axis_name)), axis_name)


@mutant("load_balancing_loss", smallest=(2,))
def balance_of_each_participant(logits: Array, axis_name: AxisName, *, top_k: int) -> Array:
    """Takes the mean of the losses of each participant's own tokens."""
    wide = widened(logits)
    chosen = jax.nn.one_hot(lax.top_k(lax.stop_gradient(wide), top_k)[1], logits.shape[1], dtype=wide.dtype)
    own = jnp.sum(jnp.sum(chosen, axis=(0, 1)) * jnp.sum(jax.nn.softmax(wide, axis=1), axis=0))
    scale = logits.shape[1] / (len(logits) ** 2 * top_k * lax.axis_size(axis_name))
    return (added_up(own, axis_name) * scale).astype(logits.dtype)


@mutant("router_z_loss", smallest=(1,))
def z_below_one_maximum(logits: Array, axis_name: AxisName) -> Array:
    """Subtracts the largest logit of all tokens of a participant before powers are taken."""
    (wide,) = typed(axis_name, widened(logits))
    most = lax.stop_gradient(jnp.max(wide))
    own = jnp.mean(jnp.square(jnp.log(jnp.sum(jnp.exp(wide - most), axis=1)) + most))
    return lax.pmean(own, axis_name).astype(logits.dtype)
