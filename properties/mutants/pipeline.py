"""Planted bugs of pipelines."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import pipeline as forms
from shardproof.impl.collectives import all_gather, cast_varying, permute, varying
from shardproof.properties.mutants.axes import AxisName, in_mesh_order, names
from shardproof.properties.mutants.catalogue import formula_of, mutant


def _same(x: Array) -> Array:
    return x


def _onward(p: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(p - 1)]


def _handed(
    weights: Array,
    x: Array,
    axis_name: AxisName,
    *,
    steps: Callable[[int, int], int] = lambda p, m: m + p - 1,
    pairs: Callable[[int], Sequence[tuple[int, int]]] = _onward,
    arriving: Callable[[Array], Array] = _same,
    takes: Callable[[Array, Array, Array], Array] = lambda is_first, own, given: jnp.where(is_first, own, given),
    layer: Callable[[Array, Array], Array] = lambda y, w: jnp.tanh(y @ w),
    collected: Callable[[list[Array], int], list[Array]] = lambda done, m: done[-m:],
    result: Callable[[Array, Array, tuple[str, ...]], Array] | None = None,
) -> Array:
    """A pipeline step by step, right as it is, of which a bug changes one thing."""
    axes, dtype = names(axis_name), x.dtype
    if weights.shape[0] > x.shape[-1]:
        raise NotImplementedError("several layers")
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    p, m, index = lax.axis_size(axes), x.shape[0], lax.axis_index(axes)
    y, done = jnp.zeros_like(x[0]), list[Array]()
    for t in range(steps(p, m)):
        arrived = arriving(permute(y, axes, perm=pairs(p))) if t else y
        y = layer(takes(index == 0, x[min(t, m - 1)], arrived), weights).astype(dtype)
        done.append(y)
    outputs = jnp.stack(collected(done, m))
    if result is not None:
        return result(outputs, index == p - 1, axes)
    return lax.psum(jnp.where(index == p - 1, outputs, jnp.zeros_like(outputs)), axes)


@mutant("pipeline", smallest=(2, 2))
def stages_in_mesh_order(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Hands microbatches on in mesh order, whatever the order of the axis tuple is."""
    return forms.pipeline(weights, x, in_mesh_order(axis_name))


@mutant("pipeline", smallest=(2,))
def stages_in_reverse(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Applies the last participant's layer first."""
    axes = names(axis_name)
    p = lax.axis_size(axes)
    turned = permute(weights, axes, perm=[(i, p - 1 - i) for i in range(p)])
    return forms.circular_pipeline(turned, x, axis_name)


@mutant("pipeline", smallest=(1,))
def last_microbatch_dropped(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Stops a step too early, and gives of the last microbatch what it has of the one before, or nothing."""
    if len(x) + lax.axis_size(axis_name) == 2:  # of one step nothing is left
        return jnp.zeros_like(x)
    return _handed(
        weights,
        x,
        axis_name,
        steps=lambda p, m: m + p - 2,
        collected=lambda done, m: [*done[len(done) - m + 1 :], done[-1]],
    )


@mutant("pipeline", smallest=(2,))
def collected_one_step_early(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Collects the results from the step before the first microbatch has come through."""
    return _handed(weights, x, axis_name, collected=lambda done, m: done[-m - 1 : -1] if len(done) > m else done)


@mutant("pipeline", smallest=(2,))
def bubbles_added_up(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Adds up what all participants have in the last steps, idle ones as well."""
    return _handed(weights, x, axis_name, result=lambda y, is_last, axes: lax.psum(y, axes))


@mutant("pipeline", smallest=(2,))
def bubbles_times_zero(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Multiplies what the others have by zero, which keeps a NaN of theirs."""
    return _handed(weights, x, axis_name, result=lambda y, is_last, axes: lax.psum(y * is_last.astype(y.dtype), axes))


@mutant("pipeline", smallest=(1,))
def bubbles_from_behind(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Hands on round the ring, and the first participant adds what comes back to what it takes up."""
    return _handed(
        weights,
        x,
        axis_name,
        pairs=lambda p: [(i, (i + 1) % p) for i in range(p)],
        takes=lambda is_first, own, given: jnp.where(is_first, own, jnp.zeros_like(own)) + given,
    )


@mutant("pipeline", smallest=(2,))
def result_on_the_last_alone(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Leaves the result where it is, and gives the others what they happened to compute."""
    return _handed(weights, x, axis_name, result=lambda y, is_last, axes: y)


@mutant("pipeline", smallest=(2,))
def mean_of_the_last(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes the mean over all participants, of which one has the result, for the sum."""
    return _handed(
        weights, x, axis_name, result=lambda y, is_last, axes: lax.pmean(jnp.where(is_last, y, jnp.zeros_like(y)), axes)
    )


@mutant("pipeline", smallest=(1, 2))
def result_over_the_first_axis(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Sends the result to the participants along the first axis of the tuple, and not to all."""
    return _handed(
        weights,
        x,
        axis_name,
        result=lambda y, is_last, axes: lax.psum(jnp.where(is_last, y, jnp.zeros_like(y)), axes[:1]),
    )


@mutant("pipeline", smallest=(2,))
def everyone_takes_up_its_own(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes up microbatches on all participants, whatever arrives."""
    return _handed(weights, x, axis_name, takes=lambda is_first, own, given: own)


@mutant("pipeline", smallest=(3,))
def second_stage_twice(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Counts places from the end of what a participant hands on: of three or more, the last two change places."""
    axes = names(axis_name)
    p = lax.axis_size(axes)
    order = [*range(p - 2), p - 1, p - 2] if p > 2 else [*range(p)]
    moved = permute(weights, axes, perm=[*enumerate(order)])
    return forms.circular_pipeline(moved, x, axis_name)


@mutant("pipeline", smallest=(1,))
def no_tanh_at_the_end(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes no tanh of what the last participant multiplies."""
    axes = names(axis_name)
    last = lax.axis_size(axes) - 1

    def layer(y: Array, w: Array) -> Array:
        product = y @ w
        return jnp.where(lax.axis_index(axes) == last, product, jnp.tanh(product))

    return _handed(weights, x, axis_name, layer=layer)


@mutant("pipeline", smallest=(1,))
def layers_transposed(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Multiplies by the transpose of a layer."""
    return _handed(weights, x, axis_name, layer=lambda y, w: jnp.tanh(y @ w.T))


@mutant("pipeline", smallest=(1,))
def layers_with_a_millionth_more(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Multiplies what a layer gives by a millionth too much."""
    return _handed(weights, x, axis_name, layer=lambda y, w: jnp.tanh(y @ w) * (1 + 1e-6))


@mutant("pipeline", smallest=(2,), law="gradient")
def stages_that_teach_no_other(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Stops the gradient of what arrives, so that the last layer alone learns."""
    return _handed(weights, x, axis_name, arriving=lax.stop_gradient)


@mutant("pipeline", smallest=(2,), law="gradient")
def gradient_of_weights_scaled(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Multiplies the gradient of the weights by the number of participants."""
    p = lax.axis_size(axis_name)
    return forms.circular_pipeline(p * weights - lax.stop_gradient((p - 1) * weights), x, axis_name)


@mutant("pipeline", smallest=(2,), law="gradient")
def gradient_of_x_from_everyone(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Counts the gradient of x once for every participant."""
    axes = names(axis_name)
    moving = lax.psum(cast_varying(x - lax.stop_gradient(x), {*axes, *varying(x)}), axes)
    return forms.circular_pipeline(weights, lax.stop_gradient(x) + moving, axis_name)


@mutant("pipeline", smallest=(1,), law="gradient")
def gradient_of_the_last_microbatch(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Gives the weights the gradient of the last microbatch alone, as if each took the place of the one before."""
    y = forms.circular_pipeline(weights, x, axis_name)
    last = forms.circular_pipeline(weights, lax.stop_gradient(x)[-1:], axis_name)
    still = forms.circular_pipeline(lax.stop_gradient(weights), x, axis_name)
    return lax.stop_gradient(y - still) + still + (last - lax.stop_gradient(last)) if len(x) > 1 else y


@mutant("pipeline", smallest=(2,), claims=("several_layers",))
def layers_of_one_after_another(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Takes all layers of a participant before those of the next one."""
    axes, d = names(axis_name), x.shape[-1]
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    for layer in all_gather(weights, axes, tiled=True).reshape(-1, d, d):
        x = jnp.tanh(x @ layer)
    return x


@mutant("pipeline", smallest=(2,), claims=("several_layers",))
def rounds_without_waiting(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Begins the second round when all microbatches are begun, though the first is not yet back."""
    axes, d = names(axis_name), x.shape[-1]
    m, late = x.shape[0], lax.axis_size(axes) - x.shape[0]
    if late <= 0 or weights.shape[0] == d:
        return forms.circular_pipeline(weights, x, axis_name)
    first = forms.circular_pipeline(weights[:d], x, axis_name)
    seen = jnp.concatenate([jnp.zeros_like(first[:1])] * min(late, m) + [first[: max(0, m - late)]])
    return forms.circular_pipeline(weights[d:], seen, axis_name)


@mutant("pipeline", law="communication", smallest=(1,), communication=formula_of("pipeline", "gpipe"))
def stages_that_gather_all_layers(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Gathers the layers of all participants, where microbatches are handed on."""
    axes, d, p = names(axis_name), x.shape[-1], lax.axis_size(names(axis_name))
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    layers = jnp.swapaxes(all_gather(weights, axes).reshape(p, -1, d, d), 0, 1)
    for layer in layers.reshape(-1, d, d):
        x = jnp.tanh(x @ layer)
    return x


@mutant("pipeline", law="communication", smallest=(2,), communication=formula_of("pipeline", "gpipe"))
def stages_that_send_everything(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Adds up over all participants after every step, for one of them to have what it needs."""
    axes = names(axis_name)
    if weights.shape[0] > x.shape[-1]:
        raise NotImplementedError("several layers")
    weights, x = cast_varying((weights, x), {*axes, *varying(weights), *varying(x)})
    for stage in range(lax.axis_size(axes)):
        y = jnp.tanh(x @ weights)
        x = lax.psum(jnp.where(lax.axis_index(axes) == stage, y, jnp.zeros_like(y)), axes)
        x = cast_varying(x, axes)
    return x


@mutant("pipeline", smallest=(1,), form="user")
def stages_with_four_buffers(weights: Array, x: Array, axis_name: AxisName) -> Array:
    """Keeps the results of four microbatches, in turn."""
    return forms.pipeline(weights, x, axis_name)[jnp.arange(x.shape[0]) % 4]
