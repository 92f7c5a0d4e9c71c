"""Planted bugs of optimisers in 16 bits, and right ones that look odd."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from shardproof.impl.optimisers import Adapting, Transformation, adam, sgd

WRONG: dict[str, tuple[str, Callable[[], Transformation], tuple[str, ...]]] = {}
"""By name: the optimiser of `OPTIMISERS` that it is to be, itself, and the dtypes in which it is wrong."""

RIGHT: dict[str, tuple[str, Callable[[], Transformation]]] = {}
"""By name: the optimiser of `OPTIMISERS` that it is to be, and itself."""


def accumulating(x: Any) -> Any:
    """An array in the accumulator's dtype, whatever was done to it before."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def own_adam(*, second: float = 0.999, epsilon: float = 1e-8, moments: Callable[[Any], Any] = lambda x: x) -> Any:
    """Adam whose moments have the dtype that `moments` gives them: by default the parameters' own."""

    def init(params: Any) -> Adapting:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(moments(p)), params)
        return Adapting(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(gradients: Any, state: Adapting, params: Any = None) -> tuple[Any, Adapting]:
        steps, gradients = state.steps + 1, jax.tree.map(moments, gradients)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.first, gradients)
        squares = jax.tree.map(lambda v, g: second * v + 0.001 * jnp.square(g), state.second, gradients)

        def moved(m: Any, v: Any) -> Any:
            one, other = (1 - decay**steps for decay in (0.9, 0.999))
            return -0.01 * (m / one.astype(m.dtype)) / (jnp.sqrt(v / other.astype(v.dtype)) + epsilon)

        moves = jax.tree.map(moved, first, squares)
        return jax.tree.map(accumulating, moves), Adapting(steps, first, squares)

    return Transformation(init, update)


def rounded(optimiser: Transformation) -> Transformation:
    """Its updates are rounded to the gradients' dtype, and then a parameter's sum is rounded again."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimiser.update(gradients, state, params)
        return jax.tree.map(lambda u, g: accumulating(u.astype(g.dtype)), updates, gradients), state

    return Transformation(optimiser.init, update)


def velocity_in_own_dtype() -> Transformation:
    """Momentum whose velocity has the parameters' dtype."""

    def update(gradients: Any, velocity: Any, params: Any = None) -> tuple[Any, Any]:
        moved = jax.tree.map(lambda v, g: 0.9 * v - 0.02 * g, velocity, gradients)
        return jax.tree.map(accumulating, moved), moved

    return Transformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def momentum_of_leaves_in_turn() -> Transformation:
    """Momentum with the state of each leaf beside it, in pairs of a velocity and a number."""

    def init(params: Any) -> Any:
        return [(jnp.zeros(p.shape, jnp.promote_types(p.dtype, jnp.float32)), p.size) for p in jax.tree.leaves(params)]

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(gradients)
        moved = [v * 0.9 + g.astype(v.dtype) * -0.02 for g, (v, _) in zip(leaves, state, strict=True)]
        return jax.tree.unflatten(structure, moved), [(v, g.size) for v, g in zip(moved, leaves, strict=True)]

    return Transformation(init, update)


NARROW = ("bfloat16", "float16")
WRONG["adam_in_own_dtype"] = "adam", own_adam, NARROW
WRONG["adam_without_epsilon"] = "adam", partial(own_adam, epsilon=0.0, moments=accumulating), ("float64", *NARROW)
WRONG["adam_never_decays"] = "adam", partial(own_adam, second=1.0, moments=accumulating), ("float64", *NARROW)
WRONG["adam_rounds_twice"] = "adam", lambda: rounded(adam(0.01)), NARROW
WRONG["velocity_in_own_dtype"] = "momentum", velocity_in_own_dtype, NARROW
WRONG["sgd_rounds_twice"] = "sgd", lambda: rounded(sgd(0.02)), NARROW
RIGHT["adam_by_hand"] = "adam", partial(own_adam, moments=accumulating)
RIGHT["momentum_of_leaves_in_turn"] = "momentum", momentum_of_leaves_in_turn
