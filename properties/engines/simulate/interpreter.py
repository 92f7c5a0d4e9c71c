"""Evaluates jaxprs, equation by equation, by the table of rules."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.errors import SimulationError, location
from shardproof.properties.engines.simulate.plans import Plan, Step, plan_of


def planned(env: Env, jaxpr: Any) -> Plan:
    """The plan of a jaxpr: as it was traced, where that is recorded, or where devices may miss one another."""
    if env.recorder is not None or env.active is not None:
        return plan_of(jaxpr)
    return plan_of(jaxpr, "short" if env.arithmetic is None else "live")


def start(env: Env, plan: Plan) -> list[Any]:
    """The values of a plan, of which nothing is known but what depends on no operand."""
    arithmetic, key = env.arithmetic, (env.arithmetic, env.lead)
    repeats = arithmetic is None or arithmetic.repeats
    values = plan.known.get(key) if repeats else None
    if values is None:
        values = [None] * plan.slots
        for position, constant in plan.constants:
            own = constant[None] if arithmetic is None else arithmetic.constant(constant)
            lead = (len(own), *(1,) * (env.lead - 1)) if env.lead else ()
            values[position] = own.reshape(lead + constant.shape)
        for step in plan.first:
            run(env, step, values)
        if repeats:
            plan.known[key] = values
    return values.copy()


def run(env: Env, step: Step, values: list[Any]) -> None:
    """Takes one step.

    Raises:
        SimulationError: if its rule returns another shape or dtype than was traced.
    """
    arithmetic, lead = env.arithmetic, env.lead
    operands = [values[i] for i in step.reads]
    if arithmetic is None:
        result, types = step.run(env, step.equation, *operands), step.types
    else:
        result = arithmetic.run(env, step.run, step.equation, operands)
        types = tuple(map(arithmetic.held, step.types))
    results = (result,) if isinstance(result, np.ndarray) else result
    for position, shape, dtype, value in zip(step.writes, step.shapes, types, results, strict=True):
        if value.shape[lead:] != shape or value.dtype != dtype or value.ndim != lead + len(shape):
            refuse(env, step.equation, f"{dtype}{list(shape)}", value)
        values[position] = value


def evaluate(env: Env, jaxpr: Any, args: Sequence[np.ndarray], rounds: Sequence[int] | None = None) -> list[np.ndarray]:
    """The results of a jaxpr on operands `[*lead, *block]`.

    Arguments:
        env: what the equations around it say of devices, and what the run keeps.
        jaxpr: what to evaluate.
        args: its operands.
        rounds: for the recorder, if there is one: the rounds after which each of them is known. If that is not
            said, everything in the jaxpr waits for all operands of the equation under way.

    Raises:
        UnknownPrimitive: if an equation's primitive has no rule.
        SimulationError: if a rule returns another shape or dtype than was traced.
    """
    plan = planned(env, jaxpr)
    values = start(env, plan)
    for position, argument in zip(plan.arguments, args, strict=True):
        values[position] = argument
    recorder = env.recorder
    known = [] if recorder is None else _known(plan, recorder.round, rounds)
    for step in plan.steps:
        if recorder is not None:
            recorder.begin([known[i] for i in step.reads], known[-1])
        run(env, step, values)
        if recorder is not None:
            for position, after in zip(step.writes, recorder.end(len(step.writes)), strict=True):
                known[position] = after
        for position in step.forgets:
            values[position] = None
    if recorder is not None:
        recorder.results = [known[i] for i in plan.results]
        recorder.round = max(recorder.results, default=recorder.round)
    return [values[i] for i in plan.results]


def _known(plan: Plan, start: int, rounds: Sequence[int] | None) -> list[int]:
    """The rounds after which each value of a plan is known, as far as that is known; at last, those of a constant."""
    if rounds is None:
        return [start] * (plan.slots + 1)
    known = [0] * (plan.slots + 1)
    for position, after in zip(plan.arguments, rounds, strict=True):
        known[position] = after
    return known


def refuse(env: Env, equation: Any, expected: str, value: np.ndarray) -> NoReturn:
    """Raises the error that a rule's result is not what was traced."""
    raise SimulationError(
        f"the rule of {equation.primitive.name!r} returned {value.dtype}{list(value.shape[env.lead :])} where "
        f"{expected} was traced, at {location(equation)}"
    )
