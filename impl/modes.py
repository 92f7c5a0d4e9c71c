"""A layer and its loss in JAX's three modes of sharding: automatic axes, explicit axes, and `shard_map`.

`X[B, D] W_in[D, F] + b_in[F] -> relu -> W_out[F, E] + b_out[E] -> [B, E]`, and the mean over B of the squared
differences to targets `[B, E]`, summed over E. Every array is laid out in its own way, also what is hidden.

Global functions, for `jax.jit`, of arrays on a mesh whose axes are of type Auto. `mixed_mlp` runs its first product on
explicit axes and the second on automatic ones inside of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jaxtyping import Array, Float, Shaped

from shardproof.impl.baselines import abstract_of, on_explicit_axes, spec
from shardproof.impl.collective_matmul.operands import aligned, multiply
from shardproof.impl.relaying import exchanged

Axes = tuple[str, ...]
Entries = tuple[Axes, ...]
"""Of every dimension the axes that shard it, the last one varying fastest."""

Meshes = Mesh | AbstractMesh
Weights = Shaped[Array, "_ _"]
Bias = Shaped[Array, " _"]
Parameters = tuple[Weights, Bias, Weights, Bias]
"""W_in[D, F], b_in[F], W_out[F, E], b_out[E]."""


@dataclass(frozen=True)
class Layouts:
    """How each array is laid out.

    Arguments:
        x: `[B, D]`.
        w_in: `[D, F]`.
        b_in: `[F]`.
        w_out: `[F, E]`.
        b_out: `[E]`.
        hidden: `[B, F]`, between the products.
        result: `[B, E]`; the targets of the loss as well.
    """

    x: Entries
    w_in: Entries
    b_in: Entries
    w_out: Entries
    b_out: Entries
    hidden: Entries
    result: Entries

    @property
    def operands(self) -> tuple[Entries, ...]:
        """Those of x and of the parameters."""
        return (self.x, self.w_in, self.b_in, self.w_out, self.b_out)


def automatic_mlp(
    x: Float[Array, "B D"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, "B E"]:
    """On automatic axes: the compiler is told where the hidden values and the result are to be."""
    w_in, b_in, w_out, b_out = parameters

    def at(y: Array, entries: Entries) -> Array:
        return lax.with_sharding_constraint(y, NamedSharding(mesh, spec(entries)))

    hidden = at(jax.nn.relu(x @ w_in + b_in), layouts.hidden)
    return at(hidden @ w_out + b_out, layouts.result)


def explicit_mlp(
    x: Float[Array, "B D"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, "B E"]:
    """On explicit axes: every product says how it is laid out, and a bias is laid out as the columns that it meets."""
    return on_explicit_axes(_typed_mlp(layouts), mesh, *layouts.operands)(x, *parameters)


def mixed_mlp(x: Float[Array, "B D"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Float[Array, "B E"]:
    """On explicit axes up to the hidden values; from there on the compiler has them, up to the type of the result."""

    def layers(x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
        hidden = _typed_layer(x, w_in, b_in, layouts.hidden)
        second = jax.sharding.auto_axes(
            lambda h, w, b: jax.nn.relu(h) @ w + b, axes=abstract_of(mesh).axis_names, out_sharding=spec(layouts.result)
        )
        return second(hidden, w_out, b_out)

    return on_explicit_axes(layers, mesh, *layouts.operands)(x, *parameters)


def manual_mlp(
    x: Float[Array, "B D"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, "B E"]:
    """By `shard_map`: what a device lacks of the rows and columns that meet is sent, then blocks are multiplied."""
    return _manual(partial(mlp_of_blocks, layouts), mesh, layouts.operands, layouts.result)(x, *parameters)


def automatic_loss(
    x: Float[Array, "B D"], targets: Float[Array, "B E"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, ""]:
    """The loss on automatic axes."""
    return squared_error(automatic_mlp(x, parameters, mesh=mesh, layouts=layouts), targets)


def explicit_loss(
    x: Float[Array, "B D"], targets: Float[Array, "B E"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, ""]:
    """The loss on explicit axes: its type says that every device has it."""

    def loss(x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array, targets: Array) -> Array:
        return squared_error(_typed_mlp(layouts)(x, w_in, b_in, w_out, b_out), targets)

    return on_explicit_axes(loss, mesh, *layouts.operands, layouts.result)(x, *parameters, targets)


def manual_loss(
    x: Float[Array, "B D"], targets: Float[Array, "B E"], parameters: Parameters, *, mesh: Meshes, layouts: Layouts
) -> Float[Array, ""]:
    """The loss by `shard_map`: every device adds up its own part, and all parts are added up."""
    axes = tuple(name for entry in layouts.result for name in entry)

    def loss(x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array, targets: Array) -> Array:
        own = jnp.sum(jnp.square(mlp_of_blocks(layouts, x, w_in, b_in, w_out, b_out) - targets))
        return (lax.psum(own, axes) if axes else own) / batch

    batch = x.shape[0]
    return _manual(loss, mesh, (*layouts.operands, layouts.result), ())(x, *parameters, targets)


def squared_error(y: Float[Array, "B E"], targets: Float[Array, "B E"]) -> Float[Array, ""]:
    """The mean over B of the squared differences, summed over E."""
    return jnp.sum(jnp.square(y - targets)) / y.shape[0]


def _typed_mlp(layouts: Layouts) -> Callable[..., Array]:
    def mlp(x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
        hidden = jax.nn.relu(_typed_layer(x, w_in, b_in, layouts.hidden))
        return _typed_layer(hidden, w_out, b_out, layouts.result)

    return mlp


def _typed_layer(x: Array, w: Array, b: Array, entries: Entries) -> Array:
    """`x W + b` on explicit axes, with that type."""
    product = jnp.matmul(x, w, out_sharding=spec(entries))
    return product + jax.reshard(b, spec(entries[1:]))


def mlp_of_blocks(layouts: Layouts, x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
    """The block of the layer, of blocks, inside of `jax.shard_map`."""
    hidden = jax.nn.relu(_layer_of_blocks(x, w_in, b_in, (layouts.x, layouts.w_in, layouts.b_in), layouts.hidden))
    return _layer_of_blocks(hidden, w_out, b_out, (layouts.hidden, layouts.w_out, layouts.b_out), layouts.result)


def _layer_of_blocks(x: Array, w: Array, b: Array, held: Sequence[Entries], wanted: Entries) -> Array:
    """The block of `x W + b`, of the rows of x and the columns of W that it is made of."""
    rows, columns = wanted
    of_x = exchanged(x, held[0], (rows, ()))
    of_w = exchanged(w, held[1], ((), columns))
    return multiply(*aligned(of_x, of_w)).astype(x.dtype) + exchanged(b, held[2], (columns,))


def _manual(
    function: Callable[..., Array], mesh: Meshes, given: Sequence[Entries], wanted: Entries
) -> Callable[..., Array]:
    mapped: Any = jax.shard_map(function, mesh=mesh, in_specs=tuple(map(spec, given)), out_specs=spec(wanted))
    return mapped
