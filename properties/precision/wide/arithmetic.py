"""Wide arithmetic: what the interpreter does in place of the program's own, one equation at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.control import acting
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import Rule
from shardproof.properties.precision.wide.held import (
    Numbers,
    Wide,
    certain,
    error_of,
    held,
    is_held,
    together,
    value_of,
)
from shardproof.properties.precision.wide.integers import exactly
from shardproof.properties.precision.wide.rounding import Rounding, literal_error, moved
from shardproof.properties.precision.wide.table import WIDE, is_exact, without_errors


@dataclass(frozen=True)
class WideArithmetic:
    """Floats are doubles that know how far off the program's own may be.

    Arguments:
        rounding: what each operation may be off by.
    """

    rounding: Rounding

    def held(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the elements that hold numbers of a traced one."""
        return held(dtype)

    def constant(self, value: Numbers) -> Numbers:
        """A constant of the program."""
        way = self.rounding.moved
        if (self.rounding.literals or way) and value.dtype.names is None and held(value.dtype)["value"] != value.dtype:
            exact = value.astype(held(value.dtype)["value"])
            if way:
                return together(moved(exact, value.dtype, way), 0.0, value.dtype)
            return together(exact, literal_error(exact, value.dtype), value.dtype)
        return certain(value, value.dtype)

    def replica(self, x: Numbers, dimension: int) -> Numbers:
        """The first of the replicas along a leading dimension, as uncertain as the least certain of them."""
        first = x.take([0], axis=dimension)
        if not is_held(x):
            return first
        least, most = (f(error_of(x), axis=dimension, keepdims=True) for f in (np.min, np.max))
        first["error"] = np.where(least < 0, least, most)
        return first

    def decided(self, env: Env, holds: Numbers, equation: Any) -> Numbers:
        """A loop's predicate.

        Raises:
            InterpreterLimit: if rounding may end the loop, or not, on a device that runs it.
        """
        if acting(env, np.asarray(holds["error"] != 0)).any():
            raise without_errors(equation, "a loop whose end depends on roundings")
        return np.asarray(holds["value"])

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation.

        Raises:
            InterpreterLimit: if nothing says how far off they may be.
        """
        name = equation.primitive.name
        if name in WIDE:
            results: Any = WIDE[name](env, equation, *operands)
        elif is_exact(equation):
            results = exactly(env, rule, equation, operands)
        else:
            raise without_errors(equation)
        results = (results,) if isinstance(results, np.ndarray) else results
        return [
            x if is_held(x) or x.dtype.names is not None else certain(x, np.dtype(v.aval.dtype))
            for x, v in zip(results, equation.outvars, strict=True)
        ]

    def argument(self, value: Numbers) -> Numbers:
        """An argument of the program: it is what it is."""
        return certain(value, value.dtype)

    def result(self, x: Numbers) -> Wide:
        """A result, apart; bits of a number that is off are unknown."""
        error = error_of(x)
        return Wide(np.array(value_of(x)), np.where(error < 0, np.inf, error))
