"""Planted bugs of projected_cross_entropy."""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import projected_cross_entropy as forms
from shardproof.properties.mutants.axes import AxisName, widened
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.cross_entropy import loss_with


def _logits(x: Array, w: Array, labels: Array, ignore_index: int) -> Array:
    counts = labels.astype(jnp.int32) != ignore_index
    return jnp.where(counts[:, None], widened(x), 0) @ widened(w)


@mutant("projected_cross_entropy", smallest=(1,))
def projection_to_rounded_logits(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Rounds logits of 16-bit floats to 16 bits before it takes their loss."""
    logits = _logits(x, w, labels, options["ignore_index"]).astype(x.dtype)
    return loss_with(logits, labels, axis_name, **options)


@mutant("projected_cross_entropy", smallest=(1,), law="gradient")
def projection_whose_last_chunk_stays(x: Array, w: Array, labels: Array, axis_name: AxisName, **options: Any) -> Array:
    """Leaves the gradient of the last class out, as a loop does that is one chunk short on its way back."""
    held = jnp.concatenate([w[:, :-1], lax.stop_gradient(w[:, -1:])], axis=1)
    return forms.projected_cross_entropy(x, held, labels, axis_name, **options)
