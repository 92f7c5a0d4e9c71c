"""What JAX does under an option alone: 64-bit dtypes, for the cases that have one, and products in all their bits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.dtypes import WIDE


def is_wide(case: Case) -> bool:
    """Whether an operand of the case has a 64-bit dtype."""
    return any(operand.dtype in WIDE for operand in case.operands)


def of_products() -> str | None:
    """The precision of products that JAX was told; None: its default, which has fewer bits on accelerators."""
    told: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined] # its config has them all
    return told


@contextmanager
def precision_of(case: Case) -> Iterator[None]:
    """JAX as the case needs it: with 64-bit dtypes, or as it is; and with products in all bits, unless told otherwise.

    No law of values would hold for a product of float32 that is made of fewer bits. In a user's process, whose options
    are theirs, that is so for as long as a case is judged.
    """
    with ExitStack() as stack:
        if is_wide(case):
            stack.enter_context(jax.enable_x64(True))
        if of_products() is None and jax.default_backend() != "cpu":
            stack.enter_context(jax.default_matmul_precision("highest"))
        yield
