"""Planted bugs of products that compute the gradients of both operands beside one another."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl import collective_matmul, collectives
from shardproof.impl.collective_matmul import aligned
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.mutants.catalogue import mutant

Gradients = tuple[Array, Array]
Change = Callable[[Array, Array, Array, Gradients], Gradients]
"""Both operands, the cotangent and the right gradients to the wrong ones."""


def with_gradients(change: Change, lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """The right product of gathered rows of W, with other gradients."""

    def right(lhs: Array, rhs: Array) -> Array:
        return collective_matmul.paired_all_gather_matmul_rhs(lhs, rhs, axis_name)

    def kept(lhs: Array, rhs: Array) -> tuple[Array, Gradients]:
        return right(lhs, rhs), (lhs, rhs)

    def gradients(operands: Gradients, ct: Array) -> Gradients:
        return change(*operands, ct, jax.vjp(right, *operands)[1](ct))

    product = jax.custom_vjp(right)
    product.defvjp(kept, gradients)
    found: Array = product(*aligned(lhs, rhs, names(axis_name)))
    return found


@mutant("all_gather_matmul_rhs", law="gradient", smallest=(1,), form="overlapped")
def gradient_without_its_own_term(lhs: Array, rhs: Array, axis_name: AxisName) -> Array:
    """Adds up what the other participants send, and forgets the term that is not sent."""

    def change(lhs: Array, rhs: Array, ct: Array, found: Gradients) -> Gradients:
        added, rows = list(range(lhs.ndim - 1)), rhs.shape[0]
        own = lax.dynamic_slice_in_dim(lhs, collectives.axis_index(axis_name) * rows, rows, lhs.ndim - 1)
        term = jnp.tensordot(own, ct, (added, added))
        return found[0], found[1] - term.astype(rhs.dtype)

    return with_gradients(change, lhs, rhs, axis_name)
