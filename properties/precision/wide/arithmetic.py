"""Wide arithmetic: what the interpreter does in place of the program's own, one equation at a time."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.control import acting
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import RULES, Rule
from shardproof.properties.precision.wide.held import (
    Numbers,
    Wide,
    certain,
    double,
    error_of,
    held,
    is_held,
    together,
    value_of,
)
from shardproof.properties.precision.wide.rounding import Rounding, literal_error, moved
from shardproof.properties.precision.wide.table import WIDE, exactly, is_exact, without_errors


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


@dataclass(frozen=True)
class Change:
    """What some equations do instead.

    Arguments:
        equations: their identities.
        params: parameters, by name, in place of their own.
        then: what their results go through: `psum`, `pmean`, `pmax`, `pmin`, or `once`, which divides them by how many
            participants there are, or `rounded`, to the dtype that was traced; empty for nothing.
        axes: the mesh axes over which they do.
    """

    equations: frozenset[int]
    params: tuple[tuple[str, Any], ...] = ()
    then: str = ""
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChangedArithmetic(WideArithmetic):
    """Wide arithmetic of a program that is changed.

    Arguments:
        rounding: what each operation may be off by.
        change: what is changed.
    """

    change: Change

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, or of what is in its place.

        Raises:
            InterpreterLimit: if nothing says how far off they may be.
        """
        if id(equation) not in self.change.equations:
            return super().run(env, rule, equation, operands)
        changed = equation.replace(params={**equation.params, **dict(self.change.params)})
        results = super().run(env, rule, changed, operands)
        if not self.change.then:
            return results
        pairs = zip(results, equation.outvars, strict=True)
        return [self._reduced(env, equation, x, variable) for x, variable in pairs]

    def _reduced(self, env: Env, equation: Any, x: Numbers, variable: Any) -> Numbers:
        then, axes = self.change.then, self.change.axes
        if then == "rounded":
            with np.errstate(over="ignore"):  # what the dtype does not reach is infinite in it
                rounded = np.asarray(value_of(x)).astype(variable.aval.dtype)
            return together(rounded.astype(double(variable.aval.dtype)), error_of(x), variable.aval.dtype)
        if then != "once":
            reduction = SimpleNamespace(
                primitive=SimpleNamespace(name="psum" if then == "pmean" else then),
                params={"axes": axes, "axis_index_groups": None},
                invars=[variable],
                outvars=[variable],
                source_info=equation.source_info,
            )
            (x,) = super().run(env, RULES[reduction.primitive.name], reduction, [x])
        if then not in ("once", "pmean"):
            return x
        count = math.prod(env.mesh.shape[axis] for axis in axes)
        return together(value_of(x) / count, error_of(x) / count, variable.aval.dtype)
