"""A wide run of a program of which some equations do something else than was traced: what a mistake may have been."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.rules import RULES, Rule
from shardproof.properties.precision.wide.arithmetic import WideArithmetic
from shardproof.properties.precision.wide.held import Numbers, double, error_of, together, value_of


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
