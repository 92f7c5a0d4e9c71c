"""Evaluates jaxprs, equation by equation, by the table of rules."""

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import dtypes
from jax.extend import core

from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.errors import SimulationError, UnknownPrimitive
from shardproof.properties.engines.simulate.liveness import last_reads, opened
from shardproof.properties.engines.simulate.location import location
from shardproof.properties.engines.simulate.rules import RULES, Rule


class Step(NamedTuple):
    """One equation, made ready: values are kept in a list, and variables are positions in it."""

    run: Rule
    equation: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype, ...]
    forgets: tuple[int, ...]


class Plan(NamedTuple):
    """A jaxpr, made ready."""

    slots: int
    constants: tuple[tuple[int, np.ndarray], ...]
    arguments: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]


_PLANS: weakref.WeakKeyDictionary[Any, Plan] = weakref.WeakKeyDictionary()


def key_dtype(words: int) -> np.dtype:
    """The dtype that holds a random key as one element, so that shape rules need not know of keys."""
    return np.dtype([("key", np.uint32, (words,))])


def held_as(aval: Any) -> np.dtype:
    """The NumPy dtype in which a value of a traced type is held."""
    if dtypes.issubdtype(aval.dtype, dtypes.prng_key):
        return key_dtype(*aval.dtype._impl.key_shape)
    return np.dtype(aval.dtype)


def as_value(x: Any) -> np.ndarray:
    """An array, a scalar or a random key of JAX's, as NumPy."""
    if isinstance(x, jax.Array) and dtypes.issubdtype(x.dtype, dtypes.prng_key):
        words = np.asarray(jax.random.key_data(x))
        return np.ascontiguousarray(words).view(key_dtype(words.shape[-1]))[..., 0]
    return np.asarray(x)


def plan_of(jaxpr: Any) -> Plan:
    """The plan of a jaxpr, made on first use.

    Raises:
        UnknownPrimitive: if an equation's primitive has no rule.
    """
    if jaxpr not in _PLANS:
        _PLANS[jaxpr] = _plan(jaxpr)
    return _PLANS[jaxpr]


def _plan(jaxpr: Any) -> Plan:
    body, consts = opened(jaxpr)
    slots: dict[Any, int] = {}
    constants: list[tuple[int, np.ndarray]] = []

    def slot(variable: Any) -> int:
        return slots.setdefault(variable, len(slots))

    def read(atom: Any) -> int:
        if isinstance(atom, core.Literal):
            position = slot(object())
            constants.append((position, np.asarray(atom.val, held_as(atom.aval))))
            return position
        return slot(atom)

    arguments = tuple(slot(v) for v in body.invars)
    constants += [(slot(v), as_value(c)) for v, c in zip(body.constvars, consts, strict=bool(consts))]
    steps = []
    for equation, ends in zip(body.eqns, last_reads(jaxpr), strict=True):
        name = equation.primitive.name
        if name not in RULES:
            raise UnknownPrimitive(name, location(equation))
        reads = tuple(read(atom) for atom in equation.invars)
        writes = tuple(slot(v) for v in equation.outvars)
        shapes = tuple(tuple(v.aval.shape) for v in equation.outvars)
        types = tuple(held_as(v.aval) for v in equation.outvars)
        steps.append(Step(RULES[name], equation, reads, writes, shapes, types, tuple(slot(v) for v in ends)))
    results = tuple(read(atom) for atom in body.outvars)
    return Plan(len(slots), tuple(constants), arguments, tuple(steps), results)


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
    plan = plan_of(jaxpr)
    values: list[Any] = [None] * plan.slots
    ones = (1,) * env.lead
    arithmetic = env.arithmetic
    for position, constant in plan.constants:
        own = constant if arithmetic is None else arithmetic.constant(constant)
        values[position] = own.reshape(ones + constant.shape)
    for position, argument in zip(plan.arguments, args, strict=True):
        values[position] = argument
    recorder = env.recorder
    known = [] if recorder is None else _known(plan, recorder.round, rounds)
    for step in plan.steps:
        if recorder is not None:
            recorder.begin([known[i] for i in step.reads], known[-1])
        operands = [values[i] for i in step.reads]
        if arithmetic is None:
            result = step.run(env, step.equation, *operands)
        else:
            result = arithmetic.run(env, step.run, step.equation, operands)
        results = (result,) if isinstance(result, np.ndarray) else result
        types = step.types if arithmetic is None else tuple(map(arithmetic.held, step.types))
        for position, shape, dtype, value in zip(step.writes, step.shapes, types, results, strict=True):
            if value.shape[env.lead :] != shape or value.dtype != dtype or value.ndim != env.lead + len(shape):
                refuse(env, step.equation, f"{dtype}{list(shape)}", value)
            values[position] = value
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
