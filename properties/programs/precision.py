"""What JAX does under an option alone: 64-bit dtypes, for the cases that have one, and products in all their bits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.dtypes import WIDE


def is_wide(case: Case) -> bool:
    """Whether an operand of the case has a 64-bit dtype."""
    return any(operand.dtype in WIDE for operand in case.operands)


def in_fewer_bits() -> bool:
    """Whether products of float32 have fewer bits than their operands here, by JAX's default for accelerators."""
    told = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined] # its config has what it was told
    return told is None and jax.default_backend() != "cpu"


@contextmanager
def precision_of(case: Case) -> Iterator[None]:
    """JAX as the case needs it: with 64-bit dtypes, or as it is; and with products in all bits, unless told otherwise.

    No law of values would hold for a product of float32 that is made of fewer bits. In a user's process, whose options
    are theirs, that is so for as long as a case is judged.
    """
    with ExitStack() as stack:
        if is_wide(case):
            stack.enter_context(jax.enable_x64(True))
        if in_fewer_bits():
            stack.enter_context(jax.default_matmul_precision("highest"))
        yield
