"""How rows travel: in the dtype that they came in, although all sums are carried in a wider one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from shardproof.impl.collectives import Block

Transfer = Callable[..., Block]
"""Of rows, and of integers that say where to: a linear function of the rows, that adds nothing up."""


def narrowly(transfer: Transfer, rows: Block, dtype: Any, *numbers: PyTree[Block]) -> Block:
    """`transfer(rows, *numbers)`, sent in `dtype`, which holds the rows without a loss; derivatives are sent as wide.

    So a 16-bit token travels in 16 bits, and its gradient, a sum of what comes from several experts, is rounded once.
    """
    if rows.dtype == jnp.dtype(dtype):
        return transfer(rows, *numbers)

    @jax.custom_jvp
    def sent(rows: Block, *numbers: PyTree[Block]) -> Block:
        return transfer(rows.astype(dtype), *numbers).astype(rows.dtype)

    @sent.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Block, Block]:
        # as a derivative, since a transfer may have one of its own; what it gives besides is never sent
        _, tangent = jax.jvp(lambda x: transfer(x, *primals[1:]), (primals[0],), (tangents[0],))
        return sent(*primals), tangent

    return sent(rows, *numbers)
