"""64-bit dtypes, which JAX only has under an option: switched on for the cases that have one, and for no others."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.dtypes import WIDE


def is_wide(case: Case) -> bool:
    """Whether an operand of the case has a 64-bit dtype."""
    return any(operand.dtype in WIDE for operand in case.operands)


@contextmanager
def precision_of(case: Case) -> Iterator[None]:
    """JAX as the case needs it: with 64-bit dtypes, or as it is."""
    if not is_wide(case):
        yield
        return
    with jax.enable_x64(True):
        yield
