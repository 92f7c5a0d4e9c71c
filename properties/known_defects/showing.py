"""How defects show: what several of them have in common."""

import jax

from shardproof.properties.cases.case import Case


def under_vmap(case: Case) -> bool:
    """Whether something is mapped: the call, or its derivative."""
    return any("vmap" in name or name == "jacobian" for name in case.chain)


def by_compiler(error: Exception, words: str) -> bool:
    """Whether it is the compiler that refuses a program, in these words."""
    return isinstance(error, jax.errors.JaxRuntimeError) and words in str(error)
