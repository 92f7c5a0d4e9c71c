"""Wide runs: a traced program in double precision, on one data set or several, as it is or with a change."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from shardproof.properties.engines import Interpreted, Sets
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.plans import as_value
from shardproof.properties.engines.simulate.prepare import NOTHING, beside, of_set
from shardproof.properties.engines.simulated import failing_as_a_limit, small
from shardproof.properties.precision.wide.arithmetic import Change, ChangedArithmetic, WideArithmetic
from shardproof.properties.precision.wide.held import Wide
from shardproof.properties.precision.wide.rounding import OWN, Rounding


def interpret_wide(
    closed_jaxpr: Any, *args: Any, rounding: Rounding = OWN, around: Env = NOTHING, change: Change | None = None
) -> list[Wide]:
    """The results of a closed jaxpr in double precision, and how far off the program's own may be.

    Arguments:
        closed_jaxpr: what `jax.make_jaxpr` returns.
        *args: one global array per argument of the jaxpr.
        rounding: what each operation may be off by.
        around: what is around the jaxpr, and in front of the dimensions of the arrays.
        change: what some of its equations do instead.

    Raises:
        InterpreterLimit: if nothing says how far off a primitive's result may be, or rounding ends a loop.
        Whatever `interpret` raises, but for `UnwrittenRead` and `OrderDependent`: of what JAX leaves open nothing is
            claimed.
    """
    arithmetic = WideArithmetic(rounding) if change is None else ChangedArithmetic(rounding, change)
    with np.errstate(all="ignore"):
        values = [arithmetic.argument(as_value(x)) for x in args]
        env = dataclasses.replace(around, arithmetic=arithmetic)
        return [arithmetic.result(x) for x in evaluate(env, closed_jaxpr, values)]


def interpret_doubles(closed_jaxpr: Any, sets: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """The results on several data sets of a closed jaxpr that has no float shorter than a double.

    In its own arithmetic, but for sums, which are of longer floats; nothing is asked of what JAX leaves open.

    Raises:
        UnknownPrimitive: if a primitive has no rule.
    """
    values = [np.stack(column) for column in zip(*sets, strict=True)]
    with np.errstate(all="ignore"):
        results = evaluate(beside(len(sets)), closed_jaxpr, values)
    return [[np.array(of_set(x, i)) for x in results] for i in range(len(sets))]


def run_wide(program: Simulated, *args: PyTree, rounding: Rounding = OWN, change: Change | None = None) -> list[Wide]:
    """The results of a traced program on one data set, flat, as `interpret_wide` says; what nothing reads is not run.

    Raises:
        TypeError: if an argument's shape is not what was traced.
        Whatever `interpret_wide` raises.
    """
    values = program.typed([as_value(leaf) for leaf in jax.tree.leaves(args)])
    return interpret_wide(program.live().closed_jaxpr, *values, rounding=rounding, change=change)


def run_wide_together(
    program: Simulated, sets: Sequence[Sequence[np.ndarray]], *, rounding: Rounding = OWN
) -> list[list[Wide]]:
    """The same on several data sets, which are run at once.

    Raises:
        TypeError: if an argument's shape is not what was traced.
        Whatever `interpret_wide` raises for one of the data sets.
    """
    jaxpr, around = program.live().closed_jaxpr, beside(len(sets))
    results = interpret_wide(jaxpr, *program.stacked(sets), rounding=rounding, around=around)
    return [[Wide(*(np.array(of_set(x, i)) for x in wide)) for wide in results] for i in range(len(sets))]


def run_prepared(prepared: Interpreted, arrays: Sequence[np.ndarray], rounding: Rounding = OWN) -> list[Wide]:
    """The results of a case's program in double precision, with how far off those in the traced dtypes may be.

    Arguments:
        prepared: the program.
        arrays: the global arrays.
        rounding: what each operation may be off by; by default that of its own dtype.

    Raises:
        InterpreterLimit: if the program has an operation whose error no rule says.
    """
    with failing_as_a_limit():
        return run_wide(prepared.traced, *arrays, rounding=rounding)


def run_prepared_together(prepared: Interpreted, sets: Sets, rounding: Rounding) -> list[list[Wide]] | None:
    """The same of several data sets, run at once; None if one cannot be run, or they are not small."""
    if small(sets):
        with contextlib.suppress(Exception):  # which `run_prepared` raises for the data set that has it
            return run_wide_together(prepared.traced, sets, rounding=rounding)
    return None
