"""Right ways to write all_reduce."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.algorithms import COMBINE
from shardproof.impl.arguments import check_power_of_two
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import right
from shardproof.properties.mutants.right.pieces import added, divided, spread


def whole(x: Array, op: str) -> Array:
    """The operand of a mean: integers in float32, so that their sum does not wrap around."""
    return x.astype(jnp.float32) if op == "mean" and jnp.issubdtype(x.dtype, jnp.integer) else x


@right("all_reduce")
def reduce_by_gathering(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Gathers all blocks and reduces them locally; its result is typed varying."""
    blocks = collectives.all_gather(whole(x, op), axis_name)
    if op in ("max", "min"):
        return jnp.max(blocks, axis=0) if op == "max" else jnp.min(blocks, axis=0)
    return added(blocks) if op == "sum" else divided(added(blocks), len(blocks))


@right("all_reduce")
def reduce_in_a_while_loop(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """The ring as a while_loop, through which reverse mode does not go."""
    p, start = lax.axis_size(axis_name), spread(whole(x, op), axis_name)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        moving = collectives.ring_shift(state[2], axis_name)
        return state[0] + 1, COMBINE[op](state[1], moving), moving

    result = lax.while_loop(lambda state: state[0] < p - 1, step, (jnp.int32(0), start, start))[1]
    return divided(result, p) if op == "mean" else result


@right("all_reduce")
def reduce_by_doubling(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Doubles recursively, and says that it does not serve other numbers than powers of two."""
    check_power_of_two("reduce_by_doubling", names(axis_name))
    p, result = lax.axis_size(axis_name), spread(whole(x, op), axis_name)
    for bit in range(p.bit_length() - 1):
        partner = collectives.permute(result, axis_name, perm=[(i, i ^ (1 << bit)) for i in range(p)])
        result = COMBINE[op](result, partner)
    return divided(result, p) if op == "mean" else result


@right("all_reduce")
def min_of_opposites(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Takes the minimum as the opposite of the maximum of opposites: ~x for integers and bool, -x for floats."""
    if op != "min":
        return collectives.all_reduce(x, axis_name, op=op)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return -collectives.all_reduce(-x, axis_name, op="max")
    return ~collectives.all_reduce(~x, axis_name, op="max")


@right("all_reduce")
def reduce_with_its_own_gradient(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """A custom_vjp: the cotangent of an invariant sum is every participant's own."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    axes = collectives.varying(x)

    @jax.custom_vjp
    def function(x: Array) -> Array:
        return lax.psum(x, axis_name)

    function.defvjp(lambda x: (lax.psum(x, axis_name), None), lambda _, ct: (collectives.cast_varying(ct, axes),))
    return function(x)


@right("all_reduce")
def reduce_elements_under_vmap(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces scalars, mapped over the elements of the flat block."""
    flat = jax.vmap(lambda element: collectives.all_reduce(element, axis_name, op=op))(jnp.ravel(x))
    return flat.reshape(x.shape)


@right("all_reduce")
def reduce_with_lax(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Calls `jax.lax` by name."""
    return getattr(lax, f"p{op}")(x, axis_name)


class Reduction:
    """A reduction by a method."""

    def __init__(self) -> None:
        self.function = jax.jit(collectives.all_reduce, static_argnames=("axis_name", "op"))

    def reduce_by_a_method(self, x: Array, axis_name: AxisName, op: str = "sum") -> Array:
        """A bound method, with a jit inside."""
        return self.function(x, axis_name=axis_name, op=op)


right("all_reduce")(Reduction().reduce_by_a_method)
