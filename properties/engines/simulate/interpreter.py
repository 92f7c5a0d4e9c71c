"""Evaluates jaxprs, equation by equation, by the table of rules: as they were traced, or by a plan that does less.

A run that is not recorded, and in which all devices do the same, need not do what was traced step by step. In its
plan calls are replaced by what they call, casts of types alone and steps that were done before by their results, and
what depends on no operand is computed once. In double precision, where nothing but results is asked for, steps that
nothing reads are left out as well.
"""

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import dtypes
from jax.extend import core

from shardproof.properties.engines.simulate.env import ALLOCATES, RULES, Env, Rule
from shardproof.properties.engines.simulate.errors import SimulationError, UnknownPrimitive, location
from shardproof.properties.engines.simulate.liveness import CALLS, opened

SAME = frozenset({"pvary", "stop_gradient", "copy", "name"})
"""What returns its operand."""

FROM_CONSTANTS = frozenset(
    {"iota", "broadcast_in_dim", "reshape", "squeeze", "transpose", "concatenate", "slice", "convert_element_type"}
    | {"select_n", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "add", "sub", "mul", "neg", "max", "min"}
    | {"rem", "sign"}
)
"""What is computed once if its operands are constants: the same on all devices, whatever the mesh."""


def called(equation: Any) -> Any:
    """The jaxpr that a call names."""
    (name,) = {"jaxpr", "call_jaxpr", "call", "callee"} & equation.params.keys()
    return equation.params[name]


class Step(NamedTuple):
    """One equation, made ready: values are in a list, variables are positions in it, and it forgets the last read."""

    run: Rule
    equation: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype, ...]
    forgets: tuple[int, ...]


class Plan(NamedTuple):
    """A jaxpr, made ready.

    Arguments:
        slots: how many values there are.
        constants: those that are known, by position.
        arguments: the positions of the operands.
        steps: what to do.
        results: the positions of the results.
        first: steps that depend on constants alone.
        known: constants and what these steps make, by arithmetic and leading dimensions; filled on first use.
    """

    slots: int
    constants: tuple[tuple[int, np.ndarray], ...]
    arguments: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    first: tuple[Step, ...]
    known: dict[Hashable, list[Any]]


_PLANS: dict[str, weakref.WeakKeyDictionary[Any, Plan]] = {
    how: weakref.WeakKeyDictionary() for how in ("traced", "short", "live", "apart")
}


def plan_of(jaxpr: Any, how: str = "traced") -> Plan:
    """The plan of a jaxpr, made on first use.

    Arguments:
        jaxpr: the jaxpr.
        how: step by step as it was `"traced"`; `"short"`, without steps that are done twice; or, with those alone
            that something reads, `"live"`; or `"apart"`, which is that with the steps that are done twice.

    Raises:
        UnknownPrimitive: if an equation's primitive has no rule.
    """
    plan = _PLANS[how].get(jaxpr)
    if plan is None:
        plan = _Planner(short=how != "traced", merges=how != "apart").plan(jaxpr, live=how in ("live", "apart"))
        _PLANS[how][jaxpr] = plan
    return plan


def key_dtype(words: int) -> np.dtype:
    """The dtype that holds a random key as one element, so that shape rules need not know of keys."""
    return np.dtype([("key", np.uint32, (words,))])


def held_as(aval: Any) -> np.dtype:
    """The NumPy dtype in which a value of a traced type is held."""
    return aval.dtype if isinstance(aval.dtype, np.dtype) else key_dtype(*aval.dtype._impl.key_shape)


def as_value(x: Any) -> np.ndarray:
    """An array, a scalar or a random key of JAX's, as NumPy."""
    if isinstance(x, jax.Array) and dtypes.issubdtype(x.dtype, dtypes.prng_key):
        words = np.asarray(jax.random.key_data(x))
        return np.ascontiguousarray(words).view(key_dtype(words.shape[-1]))[..., 0]
    return np.asarray(x)


class _Planner:
    """Makes a plan: a `short` one does nothing twice, has no calls, and knows what depends on no operand."""

    def __init__(self, *, short: bool, merges: bool) -> None:
        self.short, self.merges = short, merges
        self.slots = 0
        self.constants: dict[Hashable, tuple[int, np.ndarray]] = {}
        self.done: dict[Hashable, tuple[int, ...]] = {}
        self.steps: list[Step] = []

    def plan(self, jaxpr: Any, *, live: bool) -> Plan:
        body, consts = opened(jaxpr)
        arguments = tuple(self.fresh() for _ in body.invars)
        results = tuple(self.follow(body, consts, list(arguments)))
        known = {position for position, _ in self.constants.values()}
        first, later = [], []
        for step in self.steps:
            if self.short and step.equation.primitive.name in FROM_CONSTANTS and known.issuperset(step.reads):
                known.update(step.writes)
                first.append(step)
            else:
                later.append(step)
        steps, alive = [], {*results, *known}
        for step in reversed(later):
            if live and step.writes and alive.isdisjoint(step.writes):
                continue
            ends = tuple(position for position in dict.fromkeys((*step.reads, *step.writes)) if position not in alive)
            alive.update(ends)
            steps.append(step._replace(forgets=ends))
        constants = tuple(self.constants.values())
        return Plan(self.slots, constants, arguments, tuple(steps[::-1]), results, tuple(first), {})

    def fresh(self) -> int:
        self.slots += 1
        return self.slots - 1

    def constant(self, value: np.ndarray) -> int:
        key = value.dtype, value.shape, value.tobytes()
        if key not in self.constants:
            self.constants[key] = self.fresh(), value
        return self.constants[key][0]

    def follow(self, body: Any, consts: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        """Adds the steps of a body; where its results are."""
        at: dict[Any, int] = dict(zip(body.invars, arguments, strict=True))
        at |= {v: self.constant(as_value(c)) for v, c in zip(body.constvars, consts, strict=bool(consts))}

        def read(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                return self.constant(np.asarray(atom.val, held_as(atom.aval)))
            return at[atom]

        for equation in body.eqns:
            reads = tuple(read(atom) for atom in equation.invars)
            at.update(zip(equation.outvars, self.results_of(equation, reads), strict=True))
        return [read(atom) for atom in body.outvars]

    def results_of(self, equation: Any, reads: tuple[int, ...]) -> Sequence[int]:
        """Where the results of an equation are, with steps that make them if there are none yet."""
        name = equation.primitive.name
        if self.short and name in CALLS:
            return self.follow(*opened(called(equation)), reads)
        if self.short and name in SAME:
            return reads
        key = _repeated(equation, reads) if self.short and self.merges else None
        if key is None or key not in self.done:
            writes = tuple(self.fresh() for _ in equation.outvars)
            if name not in RULES:
                raise UnknownPrimitive(name, location(equation))
            shapes = tuple(tuple(v.aval.shape) for v in equation.outvars)
            types = tuple(held_as(v.aval) for v in equation.outvars)
            self.steps.append(Step(RULES[name], equation, reads, writes, shapes, types, ()))
            if key is None:
                return writes
            self.done[key] = writes
        return self.done[key]


def _repeated(equation: Any, reads: tuple[int, ...]) -> Hashable | None:
    """What two equations have in common that make the same; None for one that may make something else each time."""
    if equation.effects or equation.primitive.name in ALLOCATES:
        return None
    types = tuple((tuple(v.aval.shape), v.aval.dtype) for v in equation.outvars)
    key = equation.primitive, reads, types, tuple(sorted(equation.params.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


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
            raise SimulationError(
                f"the rule of {step.equation.primitive.name!r} returned {value.dtype}{list(value.shape[lead:])} where "
                f"{dtype}{list(shape)} was traced, at {location(step.equation)}"
            )
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
    if env.recorder is not None or env.active is not None:  # what is recorded, or where devices may miss one another
        plan = plan_of(jaxpr)
    else:
        plan = plan_of(jaxpr, "short" if env.arithmetic is None else env.arithmetic.planned)
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
