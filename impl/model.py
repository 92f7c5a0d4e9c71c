"""A multilayer perceptron as a pytree: a list of layers `(W [D_in, D_out], b [D_out])`, with ReLU between them.

Nothing here is sharded: how devices share parameters and batch is what `shardproof.impl.losses` is about.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from shardproof.impl.collectives import accumulator
from shardproof.impl.rings import multiply

Layer = tuple[Shaped[Array, "..."], Shaped[Array, "..."]]
"""Weights `[D_in, D_out]` and biases `[D_out]`."""

Params = list[Layer]
Batch = tuple[Shaped[Array, "..."], Shaped[Array, "..."]]
"""Inputs `[B, D_0]` and targets `[B, D_n]`; what is none, a loss refuses in words of its own."""


def initialise(key: Array, sizes: Sequence[int], dtype: Any = jnp.float32) -> Params:
    """Random parameters: weights with the variance 1 / D_in (LeCun et al. 1998, section 4.6), biases with 1.

    `sizes` are `D_0` to `D_n`, of the inputs, of the result of every layer, and of the outputs.

    Raises:
        ValueError: unless there are two sizes at least, all of them positive.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"initialise: sizes={tuple(sizes)}: expected the sizes of inputs and outputs at least, all positive"
        )
    params = []
    for key_of_layer, d_in, d_out in zip(jax.random.split(key, len(sizes) - 1), sizes[:-1], sizes[1:], strict=True):
        of_weights, of_biases = jax.random.split(key_of_layer)
        weights = jax.random.normal(of_weights, (d_in, d_out), jnp.float32) / d_in**0.5
        params.append((weights.astype(dtype), jax.random.normal(of_biases, (d_out,), jnp.float32).astype(dtype)))
    return params


def random_batch(key: Array, examples: int, sizes: Sequence[int], dtype: Any = jnp.float32) -> Batch:
    """Normally distributed inputs `[examples, D_0]` and targets `[examples, D_n]`, for a model of such `sizes`."""
    of_inputs, of_targets = jax.random.split(key)
    inputs = jax.random.normal(of_inputs, (examples, sizes[0]), jnp.float32)
    return inputs.astype(dtype), jax.random.normal(of_targets, (examples, sizes[-1]), jnp.float32).astype(dtype)


def wide(x: Array) -> Array:
    """The array in the dtype in which it is added up: 16-bit floats in float32."""
    return x.astype(accumulator(x))


def linear(x: Float[Array, "b d_in"], w: Float[Array, "_ _"], b: Float[Array, "_"]) -> Float[Array, "b d_out"]:
    """`x W + b`, in the accumulator's dtype."""
    return multiply(wide(x), wide(w)) + wide(b)


def activate(y: Float[Array, "b d"], dtype: Any) -> Float[Array, "b d"]:
    """The output of a hidden layer, rounded once; the derivative of ReLU at 0 is 0."""
    return jax.nn.relu(y).astype(dtype)


def forward(
    params: Params, inputs: Float[Array, "b d_first"], layer: Callable[[Array, Array, Array], Array] = linear
) -> Float[Array, "b d_last"]:
    """The outputs of the model, in the accumulator's dtype: no ReLU after the last layer.

    `layer` is `x W + b` in the accumulator's dtype, of whole arrays or of blocks, as parameters and inputs are.
    """
    x = inputs
    for at, (w, b) in enumerate(params):
        y = layer(x, w, b)
        x = activate(y, inputs.dtype) if at < len(params) - 1 else y
    return x


def squared_errors(outputs: Float[Array, "b d"], targets: Float[Array, "b d"]) -> Float[Array, "b"]:
    """The sum of squared errors of each example, in the accumulator's dtype."""
    return jnp.sum(jnp.square(wide(outputs) - wide(targets)), axis=-1)


def unsharded_loss(params: Params, batch: Batch) -> Float[Array, ""]:
    """The mean over the examples of their squared errors, in the dtype of the inputs: the reference of all losses."""
    inputs, targets = batch
    return jnp.mean(squared_errors(forward(params, inputs), targets)).astype(inputs.dtype)
