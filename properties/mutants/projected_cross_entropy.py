"""Planted bugs of projected_cross_entropy."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import projected_cross_entropy as forms
from shardproof.impl.collectives import cast_varying
from shardproof.properties.mutants.axes import AxisName, names, widened
from shardproof.properties.mutants.catalogue import formula_of, mutant
from shardproof.properties.mutants.cross_entropy import loss_with


def _logits(x: Array, w: Array, labels: Array, ignore_index: int) -> Array:
    counts = labels.astype(jnp.int32) != ignore_index
    return jnp.where(counts[:, None], widened(x), 0) @ widened(w)


@mutant("projected_cross_entropy", smallest=(1,))
def projection_to_rounded_logits(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Rounds logits of 16-bit floats to 16 bits before it takes their loss."""
    logits = _logits(x, w, labels, options["ignore_index"]).astype(x.dtype)
    return loss_with(logits, labels, axis_name, **options)


def _by_columns(logits: Array, largest: Array, beyond: int) -> Array:
    """The sum of exponentials less the largest logit of all, a class at a time."""

    def step(carry: tuple[Array, Array], column: Array) -> tuple[tuple[Array, Array], None]:
        most, total = carry
        new = jnp.maximum(most, column)
        return (new, total * jnp.exp(most - new) + jnp.exp(column - new)), None

    columns = jnp.pad(logits, [(0, 0), (0, beyond)]).T
    first = lax.stop_gradient(logits[:, 0])
    (own, total), _ = lax.scan(step, (first, jnp.zeros_like(first)), columns)
    return total * jnp.exp(own - largest)


@mutant("projected_cross_entropy", smallest=(1,))
def projection_to_padded_classes(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Counts the zeros that fill up the last chunk as logits, where classes are an odd number."""
    axes, ignored = names(axis_name), options["ignore_index"]
    logits = cast_varying(_logits(x, w, labels, ignored), axes)
    right = forms.projected_cross_entropy(widened(x), widened(w), labels, axis_name, **options)
    largest = lax.pmax(lax.stop_gradient(jnp.max(logits, axis=-1)), axes)
    one, other = (jnp.log(lax.psum(_by_columns(logits, largest, n), axes)) for n in (w.shape[-1] % 2, 0))
    return (right + jnp.where(labels.astype(jnp.int32) == ignored, 0, one - other)).astype(x.dtype)


@mutant("projected_cross_entropy", smallest=(1,), law="gradient")
def projection_whose_last_chunk_stays(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Leaves the gradient of the last class out, as a loop does that is one chunk short on its way back."""
    held = jnp.concatenate([w[:, :-1], lax.stop_gradient(w[:, -1:])], axis=1)
    return forms.projected_cross_entropy(x, held, labels, axis_name, **options)


@mutant(
    "projected_cross_entropy",
    law="communication",
    smallest=(1,),
    communication=formula_of("projected_cross_entropy", "plain"),
)
def projection_by_gathered_weights(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Gathers all weights besides, and takes its own out of them."""
    axes = names(axis_name)
    every = lax.all_gather(cast_varying(w, axes), axes, axis=0)
    own = lax.dynamic_index_in_dim(every, lax.axis_index(axes), keepdims=False)
    return forms.projected_cross_entropy(x, own, labels, axis_name, **options)
