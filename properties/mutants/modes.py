"""Planted bugs of a layer and its loss in the three modes, and right ones that look odd."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import modes
from shardproof.impl.baselines import spec
from shardproof.impl.modes import Entries, Layouts

WRONG_LAYERS: dict[str, Callable[..., Array]] = {}
WRONG_LOSSES: dict[str, Callable[..., Array]] = {}
NARROW_LOSSES: dict[str, Callable[..., Array]] = {}
"""Losses that are wrong in 16 bits alone."""

OF_INPUTS: dict[str, Callable[..., Array]] = {}
"""Losses whose dtype is not that of the targets."""

UNPLACED: dict[str, Callable[..., Array]] = {}
"""Layers that are right, and not where they were to be."""

ODD_LAYERS: dict[str, Callable[..., Array]] = {}


def _unasked(layouts: Layouts) -> Layouts:
    """Without a word of the hidden values."""
    return dataclasses.replace(layouts, hidden=((), ()))


OTHERWISE: dict[str, tuple[str, Callable[..., Array]]] = {
    "explicit_for_mixed": ("mixed", modes.explicit_mlp),
    "manual_for_mixed": ("mixed", modes.manual_mlp),
    "automatic_for_explicit": ("explicit", modes.automatic_mlp),
    "hidden_anywhere_on_automatic_axes": (
        "automatic",
        lambda x, parameters, *, mesh, layouts: modes.automatic_mlp(
            x, parameters, mesh=mesh, layouts=_unasked(layouts)
        ),
    ),
    "hidden_everywhere_on_explicit_axes": (
        "explicit",
        lambda x, parameters, *, mesh, layouts: modes.explicit_mlp(x, parameters, mesh=mesh, layouts=_unasked(layouts)),
    ),
    "hidden_everywhere_by_hand": (
        "manual",
        lambda x, parameters, *, mesh, layouts: modes.manual_mlp(x, parameters, mesh=mesh, layouts=_unasked(layouts)),
    ),
}
"""Layers with right values that are not in the mode that they are taken for, or lay the hidden values out otherwise."""


def _in(table: dict[str, Callable[..., Array]]) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    def enter(function: Callable[..., Array]) -> Callable[..., Array]:
        table[str(getattr(function, "__name__", ""))] = function
        return function

    return enter


def _on_blocks(function: Callable[..., Array], mesh: Any, layouts: Layouts, out: Entries, *, loss: bool) -> Any:
    given = (*layouts.operands, *([layouts.result] if loss else []))
    return jax.shard_map(function, mesh=mesh, in_specs=tuple(map(spec, given)), out_specs=spec(out))


@_in(WRONG_LAYERS)
def manual_in_mesh_order(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Takes the columns of W_in in the order of the mesh."""
    in_order = tuple(tuple(n for n in mesh.axis_names if n in axes) for axes in layouts.w_in)
    wrong = dataclasses.replace(layouts, w_in=in_order)
    return _on_blocks(lambda *blocks: modes.mlp_of_blocks(wrong, *blocks), mesh, layouts, layouts.result, loss=False)(
        x, *parameters
    )


@_in(WRONG_LAYERS)
def manual_without_a_bias_elsewhere(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Drops a bias that is not laid out as the columns that it meets."""
    w_in, b_in, w_out, b_out = parameters
    kept = b_in if layouts.b_in[0] == layouts.hidden[1] else jnp.zeros_like(b_in)
    return modes.manual_mlp(x, (w_in, kept, w_out, b_out), mesh=mesh, layouts=layouts)


@_in(WRONG_LAYERS)
def automatic_without_its_relu(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Multiplies what is below zero as well."""
    w_in, b_in, w_out, b_out = parameters
    return (x @ w_in + b_in) @ w_out + b_out


@_in(UNPLACED)
def automatic_without_constraints(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Ignores where the result is to be."""
    w_in, b_in, w_out, b_out = parameters
    return jax.nn.relu(x @ w_in + b_in) @ w_out + b_out


@_in(UNPLACED)
def explicit_with_a_constraint_on_the_first_axis(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Of several axes that are to shard the result's rows the first one does."""
    rows, columns = layouts.result
    return modes.explicit_mlp(
        x, parameters, mesh=mesh, layouts=dataclasses.replace(layouts, result=(rows[:1], columns))
    )


@_in(WRONG_LOSSES)
def loss_not_reduced_over_one_axis(x: Array, targets: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Leaves one of several axes out of the sum, and takes the mean over it."""
    axes = [name for entry in layouts.result for name in entry]

    def loss(*blocks: Array) -> Array:
        own = jnp.sum(jnp.square(modes.mlp_of_blocks(layouts, *blocks[:5]) - blocks[5]))
        total = lax.psum(own, axes[:-1]) if len(axes) > 1 else own
        return (lax.pmean(total, axes[-1:]) if axes else total) / x.shape[0]

    return _on_blocks(loss, mesh, layouts, (), loss=True)(x, *parameters, targets)


@_in(WRONG_LOSSES)
def loss_by_the_rows_of_a_block(x: Array, targets: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Divides by the number of its own rows."""
    parts = 1
    for name in layouts.result[0]:
        parts *= mesh.shape[name]
    return modes.manual_loss(x, targets, parameters, mesh=mesh, layouts=layouts) * parts


@_in(WRONG_LOSSES)
def loss_of_a_constant_hidden_layer(x: Array, targets: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """The first weights get no gradient."""
    w_in, b_in, w_out, b_out = parameters
    stopped = (lax.stop_gradient(w_in), b_in, w_out, b_out)
    return modes.explicit_loss(x, targets, stopped, mesh=mesh, layouts=layouts)


@_in(OF_INPUTS)
def loss_in_the_dtype_of_x(x: Array, targets: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Is right where all arrays have one dtype."""
    return modes.explicit_loss(x, targets, parameters, mesh=mesh, layouts=layouts).astype(x.dtype)


@_in(NARROW_LOSSES)
def sums_in_own_dtype(x: Array, targets: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Adds up the squares in the arrays' dtype, on a device and between devices."""
    axes = [name for entry in layouts.result for name in entry]

    def loss(*blocks: Array) -> Array:
        off = modes.mlp_of_blocks(layouts, *blocks[:5]).astype(x.dtype) - blocks[5]
        own = jnp.sum(jnp.square(off), dtype=x.dtype)
        return (lax.psum(own, axes) if axes else own) / x.shape[0]

    return _on_blocks(loss, mesh, layouts, (), loss=True)(x, *parameters, targets)


@_in(ODD_LAYERS)
def manual_with_everything_gathered(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Every device has all operands, and computes its part of the result."""
    whole = ((), ())
    plain = dataclasses.replace(layouts, x=whole, w_in=whole, b_in=((),), w_out=whole, b_out=((),), hidden=whole)
    return modes.manual_mlp(x, parameters, mesh=mesh, layouts=plain)


@_in(ODD_LAYERS)
def explicit_then_by_hand(x: Array, parameters: Any, *, mesh: Any, layouts: Layouts) -> Array:
    """Computes it twice, on explicit axes and by hand, and takes the first."""
    one = modes.explicit_mlp(x, parameters, mesh=mesh, layouts=layouts)
    other = modes.manual_mlp(x, parameters, mesh=mesh, layouts=layouts)
    return lax.select(jnp.full(one.shape, True), one, other)
