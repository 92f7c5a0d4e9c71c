"""A traced program of which some equations do something else, in double precision."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.env import RULES, Env, Rule
from shardproof.properties.engines.simulate.interpreter import as_value
from shardproof.properties.engines.simulate.prepare import NOTHING
from shardproof.properties.precision.arithmetic import Doubled, Doubles, double
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.precision.runs import evaluated


@dataclass(frozen=True)
class Change:
    """A change of some equations.

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


NOTHING_ELSE = Change(frozenset())
"""All do what they say."""


@dataclass(frozen=True)
class Changed(Doubles):
    """Doubles, as it is or with a change.

    Arguments:
        change: what some equations do instead.
    """

    change: Change = NOTHING_ELSE

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, or of what is in its place."""
        if id(equation) not in self.change.equations:
            return super().run(env, rule, equation, operands)
        changed = equation.replace(params={**equation.params, **dict(self.change.params)})
        results = super().run(env, rule, changed, operands)
        if not self.change.then:
            return results
        return [self._then(env, equation, x, v) for x, v in zip(results, equation.outvars, strict=True)]

    def _then(self, env: Env, equation: Any, x: Numbers, variable: Any) -> Numbers:
        then, axes = self.change.then, self.change.axes
        if then == "rounded":
            with np.errstate(over="ignore"):  # what the dtype does not reach is infinite in it
                return np.asarray(x.astype(variable.aval.dtype).astype(double(variable.aval.dtype)))
        if then != "once":
            reduction = SimpleNamespace(
                primitive=SimpleNamespace(name="psum" if then == "pmean" else then),
                params={"axes": axes, "axis_index_groups": None},
                invars=[variable],
                outvars=[variable],
                source_info=equation.source_info,
            )
            (x,) = RULES[reduction.primitive.name](env, Doubled(reduction), x)
        return x if then not in ("once", "pmean") else x / math.prod(env.mesh.shape[axis] for axis in axes)


def run_in_doubles(program: Simulated, *arrays: np.ndarray, change: Change = NOTHING_ELSE) -> list[np.ndarray]:
    """The results of a traced program on one data set in double precision, as it is or with a change.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    values = program.typed([as_value(a) for a in arrays])
    return [np.array(x) for x in evaluated(NOTHING, program.live().closed_jaxpr, values, Changed(change=change))]
