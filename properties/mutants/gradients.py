"""Planted bugs of gradients: right values, and a wrong derivative."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.impl.collective_matmul import naive
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import mutant


def with_gradient(value: Callable[[Array], Array], gradient: Callable[[Array], Array], x: Array) -> Array:
    """`value(x)`, whose reverse mode is `gradient` and whose forward mode does not exist."""
    axes = collectives.varying(x)

    @jax.custom_vjp
    def function(x: Array) -> Array:
        return value(x)

    def backward(_: None, ct: Array) -> tuple[Array]:
        return (collectives.cast_varying(gradient(ct), axes),)

    function.defvjp(lambda x: (value(x), None), backward)
    return function(x)


@mutant("all_reduce", law="gradient", smallest=(1,))
def reduce_with_twice_the_gradient(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Its gradient is twice the right one."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    return with_gradient(lambda x: collectives.all_reduce(x, axis_name), lambda ct: 2 * ct, x)


@mutant("all_reduce", law="gradient", smallest=(1,))
def reduce_with_a_conjugated_gradient(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Its gradient is conjugated, which real numbers do not show."""
    if x.dtype != jnp.complex64:
        return collectives.all_reduce(x, axis_name, op=op)
    p = lax.axis_size(axis_name)
    return with_gradient(
        lambda x: collectives.all_reduce(x, axis_name, op=op), lambda ct: ct.conj() / (p if op == "mean" else 1), x
    )


@mutant("all_reduce", law="gradient", smallest=(1,))
def reduce_wrong_in_forward_mode(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Its tangent is twice the right one, and its gradient is right."""
    if op != "sum":
        return collectives.all_reduce(x, axis_name, op=op)
    axes = collectives.varying(x)

    @jax.custom_jvp
    def function(x: Array) -> Array:
        return collectives.all_reduce(x, axis_name)

    @function.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        tangent = jax.custom_derivatives.linear_call(
            lambda _, dx: 2 * collectives.all_reduce(dx, axis_name),
            lambda _, ct: collectives.cast_varying(ct, axes),
            (),
            tangents[0],
        )
        return function(*primals), tangent

    return function(x)


@mutant("all_to_all", law="gradient", smallest=(1,))
def exchange_with_an_untransposed_gradient(x: Array, axis_name: AxisName, **options: Any) -> Array:
    """Its gradient is split and concatenated along the same axes as the blocks."""
    exchange = partial(collectives.all_to_all, axis_name=axis_name, **options)
    return with_gradient(exchange, exchange, x)


@mutant("permute", law="gradient", smallest=(1,))
def permute_with_a_gradient_of_one_batch(x: Array, axis_name: AxisName, *, perm: list[tuple[int, int]]) -> Array:
    """Under vmap its gradient is that of the first element of the batch, for every one of them."""

    @jax.custom_batching.custom_vmap
    def back(ct: Array) -> Array:
        return collectives.permute(ct, axis_name, perm=[(target, source) for source, target in perm])

    @back.def_vmap
    def _(size: int, batched: list[bool], ct: Array) -> tuple[Array, bool]:
        return jnp.broadcast_to(back(ct[0]), ct.shape), True

    return with_gradient(lambda x: collectives.permute(x, axis_name, perm=perm), back, x)


@mutant("matmul_all_reduce", law="gradient", smallest=(1,))
def product_of_mixed_residuals(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Keeps an operand for the gradient where it is differentiated itself, and not where the other one is."""
    function = partial(naive.matmul_all_reduce, axis_name=axis_name)

    def forward(*operands: Any) -> tuple[Array, tuple[Array, ...]]:
        kept = (x.value if x.perturbed else jnp.zeros_like(x.value) for x in operands)
        return function(*(x.value for x in operands)), tuple(kept)

    own = jax.custom_vjp(function)
    own.defvjp(forward, lambda kept, ct: jax.vjp(function, *kept)[1](ct), symbolic_zeros=True)
    return own(lhs, rhs)
