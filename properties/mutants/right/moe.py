"""Right forms of moe_layer: other ways to choose, to count who comes first, to weigh, and to bring tokens there."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, axis_index, reduce_scatter, ring_shift
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.moe import (
    Layer,
    Pairs,
    choose,
    count,
    keep,
    known,
    order,
    pairs_of,
    places,
    serve,
    typed,
    weigh,
)
from shardproof.properties.mutants.moe_expert_choice import chosen
from shardproof.properties.mutants.moe_gated import gated
from shardproof.properties.mutants.right.catalogue import right


@right("moe_layer")
def moe_counting_who_comes_first(*operands: Any, **options: Any) -> Array:
    """Compares all pairs with all others to know who is kept."""
    return Layer()(*operands, **options)


@right("moe_layer")
def moe_choosing_one_by_one(*operands: Any, **options: Any) -> Array:
    """Chooses the highest logit, and then the highest of the others, as often as there are choices."""

    def one_by_one(logits: Array, top_k: int) -> Array:
        left, chosen = lax.stop_gradient(logits), []
        for _ in range(top_k):
            chosen.append(jnp.argmax(left, axis=1))
            left = jnp.where(jnp.arange(left.shape[1]) == chosen[-1][:, None], -jnp.inf, left)
        return jnp.stack(chosen, axis=1)

    return Layer(choose=one_by_one)(*operands, **options)


@right("moe_layer")
def moe_choosing_by_a_stable_sort(*operands: Any, **options: Any) -> Array:
    """Sorts all logits of a token, in ascending order of their negatives."""

    def first(logits: Array, top_k: int) -> Array:
        return jnp.argsort(-lax.stop_gradient(logits), axis=1, stable=True)[:, :top_k]

    return Layer(choose=first)(*operands, **options)


@right("moe_layer")
def moe_weighing_by_a_mask(*operands: Any, **options: Any) -> Array:
    """Takes the softmax over all logits, of which those that are not chosen are minus infinity."""

    def masked(logits: Array, chosen: Array) -> Array:
        mask = jnp.any(jnp.arange(logits.shape[1]) == chosen[..., None], axis=1)
        weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf), axis=1)
        return jnp.take_along_axis(weights, chosen, axis=1)

    return Layer(weigh=masked)(*operands, **options)


@right("moe_layer")
def moe_weighing_by_logarithms(*operands: Any, **options: Any) -> Array:
    """The exponential of a logarithm of the softmax over all, divided by the sum of what is chosen."""

    def renormalised(logits: Array, chosen: Array) -> Array:
        best = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), chosen, axis=1)
        return jnp.exp(best - jax.nn.logsumexp(best, axis=1, keepdims=True))

    return Layer(weigh=renormalised)(*operands, **options)


@right("moe_layer")
def moe_without_a_division(*operands: Any, **options: Any) -> Array:
    """A gate is one by the sum of the exponentials of how much higher each chosen logit is."""

    def of_differences(logits: Array, chosen: Array) -> Array:
        best = jnp.take_along_axis(logits, chosen, axis=1)
        return 1 / jnp.sum(jnp.exp(best[:, None, :] - best[:, :, None]), axis=2)

    return Layer(weigh=of_differences)(*operands, **options)


@right("moe_layer")
def moe_counting_by_running_sums(*operands: Any, **options: Any) -> Array:
    """Sorts pairs once, and counts by running sums of one-hot rows, as a mask of experts by tokens."""

    def by_sums(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        if capacity is None or policy == "sender":
            return keep(pairs, capacity, policy)
        first = jnp.lexsort(tuple(reversed(order(pairs, policy))))
        hits = pairs.expert[first][:, None] == jnp.arange(operands[1].shape[1])
        before = jnp.cumsum(hits, axis=0) - hits
        place = jnp.sum(jnp.where(hits, before, 0), axis=1)
        return (place < capacity)[jnp.argsort(first)]

    return Layer(keep=by_sums)(*operands, **options)


@right("moe_layer")
def moe_with_room_for_all(*operands: Any, **options: Any) -> Array:
    """Takes no capacity for that of all pairs, and compares places all the same."""

    def counted(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        return keep(pairs, pairs.token.size if capacity is None else capacity, policy)

    return Layer(keep=counted)(*operands, **options)


@right("moe_layer")
def moe_numbering_from_behind(*operands: Any, **options: Any) -> Array:
    """Keeps who is not preceded by as many as there is room for, counted from the end."""

    def from_behind(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        if capacity is None or policy == "sender":
            return keep(pairs, capacity, policy)
        size = pairs.token.size
        ranks = jnp.argsort(jnp.lexsort(tuple(reversed(order(pairs, policy)))))
        behind = (ranks[None] > ranks[:, None]) & (pairs.expert[None] == pairs.expert[:, None])
        load = jnp.sum(pairs.expert[None] == pairs.expert[:, None], axis=1)
        return load - 1 - jnp.sum(behind, axis=1) < min(capacity, size)

    return Layer(keep=from_behind)(*operands, **options)


@right("moe_layer")
def moe_multiplying_by_zero(*operands: Any, **options: Any) -> Array:
    """What is dropped counts as often as a mask of floats says, zero times."""
    return Layer(count=lambda gates, kept: gates * kept.astype(gates.dtype))(*operands, **options)


@right("moe_layer")
def moe_gathering_axis_by_axis(*operands: Any, **options: Any) -> Array:
    """Gathers over one axis of the tuple after the other, the last one first, and scatters the other way round."""

    def gathered(x: Array, axes: Any) -> Array:
        for name in reversed(names(axes)):
            x = all_gather(x, name, tiled=True)
        return x

    def scattered(x: Array, axes: Any) -> Array:
        for name in names(axes):
            x = reduce_scatter(x, name, tiled=True)
        return x

    return Layer(gathered=gathered, scattered=scattered)(*operands, **options)


@right("moe_layer")
def moe_summing_for_everyone(*operands: Any, **options: Any) -> Array:
    """Adds up the sums of all tokens on all participants, of which each keeps its own rows."""

    def scattered(x: Array, axes: Any) -> Array:
        total, rows = lax.psum(x, axes), x.shape[0] // lax.axis_size(axes)
        return lax.dynamic_slice_in_dim(total, axis_index(axes) * rows, rows)

    return Layer(scattered=scattered)(*operands, **options)


@right("moe_layer")
def moe_expert_by_expert(*operands: Any, **options: Any) -> Array:
    """Experts look at all tokens one after the other, in a loop that forgets what it computes."""

    def in_turn(rows: Array, weights: Array) -> Array:
        each = jax.checkpoint(lambda w: rows @ w)
        return jnp.moveaxis(lax.map(each, weights), 0, 1)

    return Layer(serve=in_turn)(*operands, **options)


@right("moe_layer")
def moe_of_one_long_product(*operands: Any, **options: Any) -> Array:
    """All experts of a participant are one matrix, side by side."""

    def at_once(rows: Array, weights: Array) -> Array:
        held, features, outputs = weights.shape
        long = jnp.moveaxis(weights, 1, 0).reshape(features, held * outputs)
        return (rows @ long).reshape(-1, held, outputs)

    return Layer(serve=at_once)(*operands, **options)


@right("moe_layer")
def moe_with_a_gradient_of_its_own(*operands: Any, **options: Any) -> Array:
    """The product has a derivative that is written by hand, linear in tokens and in weights."""

    @jax.custom_jvp
    def product(rows: Array, weights: Array) -> Array:
        return serve(rows, weights)

    @product.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (rows, weights), (drows, dweights) = primals, tangents
        return product(rows, weights), serve(drows, weights) + serve(rows, dweights)

    return Layer(serve=product)(*operands, **options)


@right("moe_layer")
def moe_with_travelling_experts(
    tokens: Array,
    router_weights: Array,
    expert_weights: Array,
    axis_name: AxisName,
    *,
    top_k: int,
    capacity: int | None,
    policy: str,
) -> Array:
    """Tokens stay where they are, and experts go round the ring."""
    axes, dtype, held = names(axis_name), tokens.dtype, expert_weights.shape[0]
    tokens, router, weights = typed(axis_name, tokens, router_weights, expert_weights)
    logits = known(tokens @ router)
    chosen = choose(logits, top_k)
    gates = weigh(logits, chosen)
    everyone, all_gates = (all_gather(x, axes, tiled=True) for x in (chosen, gates))
    index, rows = axis_index(axes), len(tokens)
    kept = keep(pairs_of(everyone, all_gates, held, rows), capacity, policy).reshape(everyone.shape)
    own = count(gates, lax.dynamic_slice_in_dim(kept, index * rows, rows))
    total = jnp.zeros((rows, weights.shape[2]), tokens.dtype)
    for step in range(p := lax.axis_size(axes)):
        numbers = (index - step) % p * held + jnp.arange(held)
        shares = jnp.sum(jnp.where(chosen[..., None] == numbers, own[..., None], 0), axis=1)
        total = total + jnp.einsum("ne,nef->nf", shares, serve(tokens, weights))
        weights = ring_shift(weights, axes)
    return total.astype(dtype)


@right("moe_layer")
def moe_for_choices_of_tokens(*operands: Any, **options: Any) -> Array:
    """Supports no policy but that by position, and says so of all others."""
    if options["policy"] != "position":
        raise NotImplementedError(f"policy={options['policy']!r}")
    return Layer(keep=lambda pairs, n, policy: keep(pairs, n, "position"))(*operands, **options)


@right("moe_layer")
def moe_under_jit_and_remat(*operands: Any, **options: Any) -> Array:
    """The layer is compiled by itself, and computed again for its gradient."""
    *arrays, axis_name = operands
    layer = partial(Layer(), axis_name=axis_name, **options)
    result: Array = jax.jit(jax.checkpoint(lambda *xs: layer(*xs)))(*arrays)
    return result


@right("gated_moe_layer")
def gated_moe_of_hyperbolic_tangents(*operands: Any, **options: Any) -> Array:
    """Takes silu as half of `u (1 + tanh(u / 2))`."""
    return gated(*operands, hidden=lambda u, v: 0.5 * u * (1 + jnp.tanh(0.5 * u)) * v, **options)


@right("gated_moe_layer")
def gated_moe_of_weighed_gates(*operands: Any, **options: Any) -> Array:
    """Multiplies the second product by u first, and by the sigmoid then."""
    return gated(*operands, hidden=lambda u, v: (v * u) * jax.nn.sigmoid(u), **options)


@right("expert_choice_layer")
def expert_choice_counting_who_comes_first(*operands: Any, **options: Any) -> Array:
    """Compares all tokens with all others to know whom an expert chooses."""
    return chosen(*operands, **options)


@right("expert_choice_layer")
def expert_choice_with_room_for_all_others(*operands: Any, capacity: int, **options: Any) -> Array:
    """Leaves out those before whom as many or more come, which is all there is room for."""
    return chosen(
        *operands, keep=lambda pairs, n, policy: ~(places(pairs.expert, order(pairs, policy)) >= n),
        capacity=capacity, **options,
    )  # fmt: skip
