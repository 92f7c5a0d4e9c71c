"""Right forms of moe_layer: other ways to choose, to count who comes first, to weigh, and to bring tokens there."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import all_gather, reduce_scatter
from shardproof.properties.mutants.axes import names
from shardproof.properties.mutants.moe import (
    Layer,
    Pairs,
    keep,
    order,
    places,
    serve,
)
from shardproof.properties.mutants.moe_expert_choice import chosen
from shardproof.properties.mutants.moe_gated import gated
from shardproof.properties.mutants.right.catalogue import right


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
def moe_weighing_by_a_mask(*operands: Any, **options: Any) -> Array:
    """Takes the softmax over all logits, of which those that are not chosen are minus infinity."""

    def masked(logits: Array, chosen: Array) -> Array:
        mask = jnp.any(jnp.arange(logits.shape[1]) == chosen[..., None], axis=1)
        weights = jax.nn.softmax(jnp.where(mask, logits, -jnp.inf), axis=1)
        return jnp.take_along_axis(weights, chosen, axis=1)

    return Layer(weigh=masked)(*operands, **options)


@right("moe_layer")
def moe_without_a_division(*operands: Any, **options: Any) -> Array:
    """A gate is one by the sum of the exponentials of how much higher each chosen logit is."""

    def of_differences(logits: Array, chosen: Array) -> Array:
        best = jnp.take_along_axis(logits, chosen, axis=1)
        return 1 / jnp.sum(jnp.exp(best[:, None, :] - best[:, :, None]), axis=2)

    return Layer(weigh=of_differences)(*operands, **options)


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
def moe_for_choices_of_tokens(*operands: Any, **options: Any) -> Array:
    """Supports no policy but that by position, and says so of all others."""
    if options["policy"] != "position":
        raise NotImplementedError(f"policy={options['policy']!r}")
    return Layer(keep=lambda pairs, n, policy: keep(pairs, n, "position"))(*operands, **options)


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
