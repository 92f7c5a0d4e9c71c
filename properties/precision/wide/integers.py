"""What no float goes into or comes out of: integers, booleans, random bits. They are what they are, or unknown."""

import dataclasses
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.elementwise import PLAIN, aligned
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import Rule
from shardproof.properties.precision.wide.held import (
    UNKNOWN,
    Numbers,
    certain,
    error_of,
    over_blocks,
    together,
    value_of,
)

ABSORBING = {"and": False, "or": True}
"""Which operand decides, whatever the other one is."""


def exactly(env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
    """The results of the rule itself, as the program has them; unknown where an operand is."""
    plain = dataclasses.replace(env, arithmetic=None)
    results = rule(plain, equation, *(value_of(x) for x in operands))
    results = [results] if isinstance(results, np.ndarray) else list(results)
    error = _unknown(env, equation, operands)
    if error is None:
        return [certain(x, x.dtype) for x in results]
    return [x if x.dtype.names is not None else together(x, over_blocks(error, x), x.dtype) for x in results]


def _unknown(env: Env, equation: Any, operands: list[Numbers]) -> Any:
    """Where the results are unknown; None: nowhere."""
    errors = [error_of(x) != 0 for x in operands]
    if not any(e.any() for e in errors):
        return None
    name = equation.primitive.name
    if name not in PLAIN:
        anywhere = [env.anywhere(e) for e in errors]
        return np.where(np.logical_or.reduce(np.broadcast_arrays(*anywhere)), UNKNOWN, 0.0)
    errors = aligned(env, equation, tuple(errors))
    unknown = np.logical_or.reduce(np.broadcast_arrays(*errors))
    if name in ABSORBING and operands[0]["value"].dtype == bool:
        for x, doubtful in zip(aligned(env, equation, tuple(operands)), errors, strict=True):
            unknown = unknown & ~(~doubtful & (x["value"] == ABSORBING[name]))
    return np.where(unknown, UNKNOWN, 0.0)
