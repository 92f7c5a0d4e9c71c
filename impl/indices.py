"""Arithmetic of indices that are not negative; operators would take a hundred times as long to trace."""

from jax import lax
from jaxtyping import Array, Int


def remainder(index: Int[Array, "..."], k: int) -> Int[Array, "..."]:
    """`index % k`."""
    return lax.rem(index, lax.full_like(index, k))


def quotient(index: Int[Array, "..."], k: int) -> Int[Array, "..."]:
    """`index // k`."""
    return lax.div(index, lax.full_like(index, k))


def around(index: Int[Array, "..."], p: int) -> Int[Array, "..."]:
    """An index of one of p participants in a ring, at least -p, brought to [0, p)."""
    return remainder(index + p, p)
