"""Optimisers of training steps.

An optimiser is a pair of functions, `init(params) -> state` and `update(gradients, state, params) -> (updates, state)`,
whose updates are added to the parameters: the interface of optax; any optax optimiser can be used instead. The two here
need no optax. Both compute element by element, so they can be used on shards as well.

What they keep, and what they compute, is in the accumulator's dtype: velocities, moments and updates are float32 for
16-bit parameters, and only the sum of a parameter and its update is rounded to the parameter's own dtype. In 16 bits
Adam's decay of 0.999 would be 1, and its epsilon 0 (bfloat16 has 8 significant bits, the least float16 is 6e-8).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, SupportsFloat, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from shardproof.impl.collectives import accumulator
from shardproof.impl.model import wide

Tree: TypeAlias = PyTree[Shaped[Array, "..."]]


@runtime_checkable
class Optimiser(Protocol):
    """An object with `init` and `update`, such as an `optax.GradientTransformation`."""

    @property
    def init(self) -> Callable[[Tree], Any]:
        """`(params)` to the state."""

    @property
    def update(self) -> Callable[..., Any]:
        """`(gradients, state, params)` to updates, which are added to the parameters, and the next state."""


class Transformation(NamedTuple):
    """An optimiser of this module."""

    init: Callable[[Tree], Any]
    update: Callable[..., tuple[Tree, Any]]


class Adapting(NamedTuple):
    """The state of Adam: the number of steps, and moments of the parameters' shapes, in the accumulator's dtype."""

    steps: Int[Array, ""]
    first: Tree
    second: Tree


def sgd(learning_rate: SupportsFloat, *, momentum: SupportsFloat = 0.0) -> Transformation:
    """Gradient descent (Polyak 1964): `v <- momentum v - learning_rate g`, and v is added to the parameters.

    Raises:
        ValueError: for a momentum outside [0, 1); with 0 the state is empty.
    """
    rate, left = float(learning_rate), _fraction("sgd", "momentum", momentum)
    if not left:
        return Transformation(
            lambda params: (), lambda g, state, params=None: (jax.tree.map(lambda x: -rate * wide(x), g), state)
        )

    def update(gradients: Tree, velocity: Tree, params: Tree | None = None) -> tuple[Tree, Tree]:
        moved = jax.tree.map(lambda v, g: left * v - rate * g.astype(v.dtype), velocity, gradients)
        return moved, moved

    return Transformation(_at_rest, update)


def adam(
    learning_rate: SupportsFloat,
    *,
    decays: tuple[SupportsFloat, SupportsFloat] = (0.9, 0.999),
    epsilon: SupportsFloat = 1e-8,
) -> Transformation:
    """Kingma and Ba 2015, algorithm 1: alpha, (beta_1, beta_2), and epsilon; ValueError for a decay outside [0, 1)."""
    b1, b2 = (_fraction("adam", "decays", decay) for decay in decays)
    rate, added = float(learning_rate), float(epsilon)

    def init(params: Tree) -> Adapting:
        return Adapting(jnp.zeros((), jnp.int32), _at_rest(params), _at_rest(params))

    def update(gradients: Tree, state: Adapting, params: Tree | None = None) -> tuple[Tree, Adapting]:
        steps = state.steps + 1
        gradients = jax.tree.map(lambda m, g: g.astype(m.dtype), state.first, gradients)
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.first, gradients)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.second, gradients)
        towards_zero = [1 - decay**steps for decay in (b1, b2)]

        def moved(m: Array, v: Array) -> Array:
            unbiased, squared = (x / bias.astype(x.dtype) for x, bias in zip((m, v), towards_zero, strict=True))
            return -rate * unbiased / (jnp.sqrt(squared) + added)

        return jax.tree.map(moved, first, second), Adapting(steps, first, second)

    return Transformation(init, update)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Parameters with updates added: each sum is rounded once, to the parameter's dtype."""
    return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates)


def _at_rest(params: Tree) -> Tree:
    """Zeros of the parameters' shapes, in the accumulator's dtype."""
    return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=accumulator(p)), params)


def _fraction(function: str, argument: str, value: SupportsFloat) -> float:
    if not 0 <= float(value) < 1:
        raise ValueError(f"{function}: {argument}={value!r}: expected a number in [0, 1)")
    return float(value)
