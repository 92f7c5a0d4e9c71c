"""A pipeline of layers: every participant has a layer, or several, and microbatches go from one to the next.

A layer is `tanh(x W)`. Participant i of p has the i-th layer; of several it has every p-th: its r-th one is the layer
r p + i. What a layer gives is rounded to the dtype of the operands, as it is what travels. The result is that of the
last layer, on all participants.

A participant works on one microbatch at a time, and is idle before the first one reaches it and after the last one has
left: M microbatches take M + p - 1 steps, of which it is idle in p - 1 (Huang et al., GPipe, 2019, section 2.3). In
such a step it computes with whatever is there, and the result is not used.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_rank, refuse
from shardproof.impl.collectives import Block, axis_index
from shardproof.impl.indices import quotient
from shardproof.impl.rings import align_types, multiply, send

Layer = Float[Array, "d d"]
Microbatch = Float[Array, "b d"]
Microbatches = Float[Array, "m b d"]


def pipeline(weights: Block, x: Block, axis_name: AxisName) -> Block:
    """`weights [D_Y, D]`, `x [M, B, D]` to `[M, B, D]`, typed invariant: microbatches follow one another round a ring.

    In each step every participant applies a layer to one microbatch, and sends it on before the next step. From the
    last participant a microbatch comes back to the first, once for each of its further layers, which holds it until all
    M have been begun; so that M microbatches, if there are p of them or more, take v M + p - 1 steps for v layers of
    each participant, and p - 1 of those are idle: a v-th of what v pipelines one after the other have (Narayanan et
    al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 2.2). Of fewer
    than p a round takes p steps. The result of the last participant is then added up with the zeros of all others.

    Weights are one layer `[D, D]`, or several, one below the other; x is the same on all participants. Both are
    floating-point, and the result has the dtype that they promote to.
    """
    axes, weights, x = _operands(weights, x, axis_name)
    weights, x, dtype = *align_types(weights, x, axis_name=axes), jnp.result_type(weights, x)
    layers = weights.reshape(-1, x.shape[-1], x.shape[-1])
    p, v, count, index = lax.axis_size(axes), len(layers), x.shape[0], axis_index(axes)
    onward = [(i, (i + 1) % p) for i in range(p)]
    span = max(count, p)  # steps from one round of a participant to its next
    steps = np.arange((v - 1) * span + count + p - 1)
    # participant i is at step t in its own step t - i; what comes round at step t was begun at t - p
    numbers = jnp.clip(quotient(jnp.asarray(steps, jnp.int32) - index, span), 0, v - 1)

    def applied(y: Microbatch, number: Int[Array, ""]) -> Microbatch:
        return _apply_layer(layers[0] if v == 1 else _at(layers, number), y, dtype)

    def hop(carried: tuple[Microbatch, Microbatches], at: Any) -> tuple[tuple[Microbatch, Microbatches], Microbatch]:
        (y, kept), (following, number, is_new, back, due) = carried, at
        arrived = send(y, axes, onward) if p > 1 else y
        if v > 1:
            kept = lax.dynamic_update_index_in_dim(kept, arrived, back, 0, allow_negative_indices=False)
            following = jnp.where(is_new, following, _at(kept, due))
        y = applied(jnp.where(index == 0, following, arrived), number)
        return (y, kept), y

    # the first participant begins zeros in the end
    begun = jnp.concatenate([x, jnp.zeros_like(x, shape=(len(steps) - count, *x.shape[1:]))])
    slots = [jnp.asarray(some % span, jnp.int32)[1:] for some in (steps - p, steps)]
    first = applied(begun[0], numbers[0])
    kept = jnp.zeros_like(x, shape=(span, *x.shape[1:]))
    each = (begun[1:], numbers[1:], jnp.asarray(steps < span)[1:], *slots)
    _, more = lax.scan(hop, (first, kept), each)
    last = jnp.concatenate([first[None], more])[-count:]
    # other participants add zeros, whatever they have, be it NaN
    return lax.psum(jnp.where(index == p - 1, last, jnp.zeros_like(last)), axes)


def _operands(weights: Block, x: Block, axis_name: AxisName) -> tuple[tuple[str, ...], Block, Block]:
    function = "pipeline"
    axes = check_axes(function, axis_name)
    check_floating(function, weights=weights, x=x)
    for name, one, rank in (("weights", weights, 2), ("x", x, 3)):
        check_rank(function, name, one, rank)
    if not x.size:
        refuse(function, "x", str(jax.typeof(x)), "an array of at least one element")
    (rows, columns), features = weights.shape, x.shape[-1]
    if columns != features or not rows or rows % features:
        layers = f"layers of {features} rows and columns, as x has features"
        refuse(function, "weights", str(jax.typeof(weights)), layers)
    return axes, weights, x


def _at(some: Float[Array, "n ..."], index: Int[Array, ""]) -> Float[Array, "..."]:
    return lax.dynamic_index_in_dim(some, index, 0, keepdims=False, allow_negative_indices=False)


def _apply_layer(layer: Layer, y: Float[Array, "*m b d"], dtype: jnp.dtype) -> Float[Array, "*m b d"]:
    return jnp.tanh(multiply(y, layer)).astype(dtype)
