"""How rows travel: in the dtype that they came in, although all sums are carried in a wider one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from shardproof.impl.collectives import Block

Transfer = Callable[..., Block]
"""Of rows, and of integers that say where to: a linear function of the rows, that adds nothing up."""


def narrowly(
    transfer: Transfer, rows: Block, dtype: Any, *numbers: PyTree[Block], own_derivative: bool = False
) -> Block:
    """`transfer(rows, *numbers)`, sent in `dtype`, which holds the rows without a loss; derivatives are sent as wide.

    So a 16-bit token travels in 16 bits, and its gradient, a sum of what comes from several experts, is rounded once.

    Arguments:
        transfer: moves rows.
        rows: what is moved, wide.
        dtype: that in which it is sent.
        numbers: what says where to.
        own_derivative: whether the transfer has a rule of its own for derivatives, by which alone JAX transposes it.
    """
    if rows.dtype == jnp.dtype(dtype):
        return transfer(rows, *numbers)

    @jax.custom_jvp
    def sent(rows: Block, *numbers: PyTree[Block]) -> Block:
        return transfer(rows.astype(dtype), *numbers).astype(rows.dtype)

    @sent.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Block, Block]:
        (rows, *numbers), (along, *_) = primals, tangents
        if not own_derivative:
            return sent(*primals), transfer(along, *numbers)
        # what is moved besides its tangent is never sent: outside of loops JAX leaves out what nobody needs
        return sent(*primals), jax.jvp(lambda x: transfer(x, *numbers), (rows,), (along,))[1]

    return sent(rows, *numbers)
