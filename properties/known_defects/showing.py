"""How defects show: what several of them have in common."""

import jax

from shardproof.properties.cases.case import Case

BUFFER_MISSING = b"Check failed: buffer != nullptr"
"""What XLA prints when it reads a constant of which it made no elements, and ends the process."""


def under_vmap(case: Case) -> bool:
    """Whether something is mapped: the call, or its derivative."""
    return any("vmap" in name or name == "jacobian" for name in case.chain)


def of_complex(case: Case) -> bool:
    """Whether an operand is of complex numbers."""
    return any(operand.dtype.startswith("complex") for operand in case.operands)


def by_compiler(error: Exception, words: str) -> bool:
    """Whether it is the compiler that refuses a program, in these words."""
    return isinstance(error, jax.errors.JaxRuntimeError) and words in str(error)
