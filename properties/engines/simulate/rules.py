"""The table of rules: one small function per primitive.

A rule is called with the environment, the equation and the operands, each `[*lead, *block]`, and
returns the result or results in the same form.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.env import Env

Results = np.ndarray | Sequence[np.ndarray]
Rule = Callable[..., Results]
Dimensions = Sequence[int | np.integer]  # dimension numbers may come out of NumPy

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of the primitives called `names`.

    Example:
        @rule("double")
        def double(env, equation, x):
            return x + x
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def block_rank(env: Env, value: np.ndarray) -> int:
    """The number of dimensions of every device's block."""
    return value.ndim - env.lead


def shifted(env: Env, dimensions: Dimensions) -> tuple[int, ...]:
    """Dimensions of the block, as dimensions of the value that holds all blocks."""
    return tuple(env.lead + int(dimension) for dimension in dimensions)


def result_dtype(equation: Any, index: int = 0) -> np.dtype:
    """The dtype in which the program holds a result."""
    return np.dtype(equation.outvars[index].aval.dtype)
