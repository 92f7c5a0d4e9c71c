"""A layer and its loss in JAX's three modes of sharding: automatic axes, explicit axes, and `shard_map`.

`X[B, D] W_in[D, F] + b_in[F] -> relu -> W_out[F, E] + b_out[E] -> [B, E]`, and the mean over B of the squared
differences to targets `[B, E]`, summed over E. Every array is laid out in its own way, also what is hidden.

Global functions, for `jax.jit`, of arrays on a mesh whose axes are of type Auto. `mixed_mlp` runs its first product on
explicit axes and the second on automatic ones inside of them. All raise a ValueError for arrays whose sizes do not
match one another, and for layouts of other numbers of dimensions, of axes that the mesh lacks, or that do not divide
them. 16-bit floats are multiplied, biases added and errors summed in float32, on a device and between devices, and what
leaves a layer or the loss is rounded once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import check_rank, check_shape, refuse
from shardproof.impl.model import activated, linear, squared_errors, wide
from shardproof.impl.reshard import abstract_of, exchanged, on_explicit_axes, spec
from shardproof.impl.rings import aligned, multiply

Axes = tuple[str, ...]
Entries = tuple[Axes, ...]
"""Of every dimension the axes that shard it, the last one varying fastest."""

Meshes = Mesh | AbstractMesh
Weights = Shaped[Array, "_ _"]
Bias = Shaped[Array, " _"]
Inputs = Float[Array, "B D"]
Targets = Float[Array, "B E"]
Outputs = Float[Array, "B E"]
Scalar = Float[Array, ""]
Parameters = tuple[Weights, Bias, Weights, Bias]
"""W_in[D, F], b_in[F], W_out[F, E], b_out[E]; sizes that do not match, every function refuses in words of its own."""


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


def automatic_mlp(x: Inputs, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Outputs:
    """On automatic axes: the compiler is told where the hidden values and the result are to be."""
    check("automatic_mlp", x, parameters, mesh, layouts)
    return _automatic(x, parameters, mesh, layouts).astype(x.dtype)


def explicit_mlp(x: Inputs, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Outputs:
    """On explicit axes: every product says how it is laid out, and a bias is laid out as the columns that it meets."""
    check("explicit_mlp", x, parameters, mesh, layouts)
    return on_explicit_axes(partial(_explicit, layouts), mesh, *layouts.operands)(x, *parameters).astype(x.dtype)


def mixed_mlp(x: Inputs, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Outputs:
    """On explicit axes up to the hidden values; from there on the compiler has them, up to the type of the result."""
    check("mixed_mlp", x, parameters, mesh, layouts)
    return on_explicit_axes(partial(_mixed, mesh, layouts), mesh, *layouts.operands)(x, *parameters).astype(x.dtype)


def manual_mlp(x: Inputs, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Outputs:
    """By `shard_map`: what a device lacks of the rows and columns that meet is sent, then blocks are multiplied."""
    check("manual_mlp", x, parameters, mesh, layouts)
    blocks = partial(mlp_of_blocks, layouts)
    return _manual(blocks, mesh, layouts.operands, layouts.result)(x, *parameters).astype(x.dtype)


def automatic_loss(x: Inputs, targets: Targets, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Scalar:
    """The loss on automatic axes, in the targets' dtype, as those that follow."""
    check("automatic_loss", x, parameters, mesh, layouts, targets)
    return _mean_error(_automatic(x, parameters, mesh, layouts), targets)


def explicit_loss(x: Inputs, targets: Targets, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Scalar:
    """The loss on explicit axes: its type says that every device has it."""
    check("explicit_loss", x, parameters, mesh, layouts, targets)
    return _typed_loss(partial(_explicit, layouts), x, targets, parameters, mesh, layouts)


def mixed_loss(x: Inputs, targets: Targets, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Scalar:
    """The loss on explicit axes, of a layer whose second half is on automatic ones."""
    check("mixed_loss", x, parameters, mesh, layouts, targets)
    return _typed_loss(partial(_mixed, mesh, layouts), x, targets, parameters, mesh, layouts)


def manual_loss(x: Inputs, targets: Targets, parameters: Parameters, *, mesh: Meshes, layouts: Layouts) -> Scalar:
    """The loss by `shard_map`: every device adds up its own part, and all parts are added up."""
    check("manual_loss", x, parameters, mesh, layouts, targets)
    axes, batch = tuple(name for entry in layouts.result for name in entry), x.shape[0]

    def loss(targets: Array, *operands: Array) -> Array:
        own = jnp.sum(squared_errors(mlp_of_blocks(layouts, *operands), targets))
        return (lax.psum(own, axes) if axes else own) / batch

    return _manual(loss, mesh, (layouts.result, *layouts.operands), ())(targets, x, *parameters).astype(targets.dtype)


def check(
    function: str,
    x: Shaped[Array, "..."],
    parameters: Sequence[Shaped[Array, "..."]],
    mesh: Meshes,
    layouts: Layouts,
    targets: Shaped[Array, "..."] | None = None,
) -> None:
    """Arguments of a function of this module.

    Raises:
        ValueError: for arrays whose sizes do not match one another; for a layout of another number of dimensions, of
            axes that the mesh lacks or that are named twice, or whose parts do not divide an array.
    """
    with jax.sharding.use_abstract_mesh(abstract_of(mesh)):
        if len(parameters) != 4:
            refuse(function, "parameters", f"{len(parameters)} arrays", "w_in, b_in, w_out and b_out")
        w_in, b_in, w_out, b_out = parameters
        for name, array, rank in (("x", x, 2), ("w_in", w_in, 2), ("w_out", w_out, 2)):
            check_rank(function, name, array, rank)
        (b, d), f, e = x.shape, w_in.shape[1], w_out.shape[1]
        check_shape(function, "w_in", w_in, (d, f), f"[D, F] for x [B, D] of {d} columns")
        check_shape(function, "b_in", b_in, (f,), f"[F] for w_in [D, F] of {f} columns")
        check_shape(function, "w_out", w_out, (f, e), f"[F, E] for w_in [D, F] of {f} columns")
        check_shape(function, "b_out", b_out, (e,), f"[E] for w_out [F, E] of {e} columns")
        if targets is not None:
            check_shape(function, "targets", targets, (b, e), "[B, E]")
        shapes = {"x": (b, d), "w_in": (d, f), "b_in": (f,), "w_out": (f, e), "b_out": (e,)}
        for name, shape in {**shapes, "hidden": (b, f), "result": (b, e)}.items():
            _check_layout(function, name, getattr(layouts, name), shape, abstract_of(mesh))


def _check_layout(function: str, name: str, entries: Entries, shape: tuple[int, ...], mesh: AbstractMesh) -> None:
    named = [axis for entry in entries for axis in entry]
    if len(entries) != len(shape):
        refuse(function, f"layouts.{name}", entries, f"axes of {len(shape)} dimensions")
    if not {*named} <= {*mesh.axis_names} or len({*named}) != len(named):
        refuse(function, f"layouts.{name}", entries, f"distinct axes out of {', '.join(mesh.axis_names)}")
    for size, entry in zip(shape, entries, strict=True):
        parts = math.prod(mesh.shape[axis] for axis in entry)
        if size % parts:
            refuse(function, f"layouts.{name}", entries, f"axes whose {parts} parts divide {list(shape)}")


def _automatic(x: Array, parameters: Parameters, mesh: Meshes, layouts: Layouts) -> Array:
    """The layer in the accumulator's dtype, as are those that follow."""
    w_in, b_in, w_out, b_out = parameters

    def at(y: Array, entries: Entries) -> Array:
        return lax.with_sharding_constraint(y, NamedSharding(mesh, spec(entries)))

    hidden = at(activated(linear(x, w_in, b_in), x.dtype), layouts.hidden)
    return at(linear(hidden, w_out, b_out), layouts.result)


def _explicit(layouts: Layouts, x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
    hidden = activated(_typed_linear(x, w_in, b_in, layouts.hidden), x.dtype)
    return _typed_linear(hidden, w_out, b_out, layouts.result)


def _mixed(mesh: Meshes, layouts: Layouts, x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
    before = _typed_linear(x, w_in, b_in, layouts.hidden)
    second = jax.sharding.auto_axes(
        lambda y, w, b: linear(activated(y, x.dtype), w, b),
        axes=abstract_of(mesh).axis_names,
        out_sharding=spec(layouts.result),
    )
    result: Array = second(before, w_out, b_out)
    return result


def _typed_linear(x: Array, w: Array, b: Array, entries: Entries) -> Array:
    """`x W + b` on explicit axes, with that type."""
    product = jnp.matmul(wide(x), wide(w), out_sharding=spec(entries))
    return product + jax.reshard(wide(b), spec(entries[1:]))


def _typed_loss(
    mlp: Callable[..., Array], x: Array, targets: Array, parameters: Parameters, mesh: Meshes, layouts: Layouts
) -> Array:
    def loss(targets: Array, *operands: Array) -> Array:
        return _mean_error(mlp(*operands), targets)

    return on_explicit_axes(loss, mesh, layouts.result, *layouts.operands)(targets, x, *parameters)


def _mean_error(y: Array, targets: Array) -> Array:
    """The mean over B of the squared differences, summed over E, in the targets' dtype."""
    return (jnp.sum(squared_errors(y, targets)) / y.shape[0]).astype(targets.dtype)


def mlp_of_blocks(layouts: Layouts, x: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Array:
    """The block of the layer, of blocks, inside of `jax.shard_map`, in the accumulator's dtype."""
    first = _linear_of_blocks(x, w_in, b_in, (layouts.x, layouts.w_in, layouts.b_in), layouts.hidden)
    of_second = (layouts.hidden, layouts.w_out, layouts.b_out)
    return _linear_of_blocks(activated(first, x.dtype), w_out, b_out, of_second, layouts.result)


def _linear_of_blocks(x: Array, w: Array, b: Array, held: Sequence[Entries], wanted: Entries) -> Array:
    """The block of `x W + b`, of the rows of x and the columns of W that it is made of."""
    rows, columns = wanted
    of_x = exchanged(x, held[0], (rows, ()))
    of_w = exchanged(w, held[1], ((), columns))
    return multiply(*aligned(of_x, of_w)) + wide(exchanged(b, held[2], (columns,)))


def _manual(
    function: Callable[..., Array], mesh: Meshes, given: Sequence[Entries], wanted: Entries
) -> Callable[..., Array]:
    mapped: Any = jax.shard_map(function, mesh=mesh, in_specs=tuple(map(spec, given)), out_specs=spec(wanted))
    return mapped
