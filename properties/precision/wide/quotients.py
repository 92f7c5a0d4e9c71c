"""Quotients: the rule, which charges more than that of a function where a compiler multiplies by a reciprocal."""

from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import RULES
from shardproof.properties.precision.wide.elementwise import FUNCTIONS, result
from shardproof.properties.precision.wide.held import Numbers
from shardproof.properties.precision.wide.integers import exactly
from shardproof.properties.precision.wide.table import is_exact, wide_rule

POWER_OF_TWO = 0.5
"""The fraction of such a number, as `frexp` has it."""


@wide_rule("div")
def quotient(env: Env, equation: Any, a: Numbers, b: Numbers) -> Any:
    """A quotient: compilers multiply by the reciprocal of what they know, which is exact of powers of two alone."""
    if is_exact(equation):
        return exactly(env, RULES["div"], equation, [a, b])
    a, b = aligned(env, equation, (a, b))
    roundings = np.where(np.frexp(np.abs(b["value"]))[0] == POWER_OF_TWO, 1.0, 2.0)
    return result(env, equation, FUNCTIONS["div"], a, b, roundings=roundings)
