"""Plans: jaxprs made ready to be evaluated, as they were traced, or without what changes no result.

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

from shardproof.properties.engines.simulate.errors import UnknownPrimitive, location
from shardproof.properties.engines.simulate.liveness import opened
from shardproof.properties.engines.simulate.rules import RULES, Rule
from shardproof.properties.engines.simulate.undetermined import ALLOCATES

CALLS = frozenset({"jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"}) | {
    "composite", "linear_call", "closed_call",
}  # fmt: skip
"""What does nothing but call a jaxpr with its operands."""

CALLED = ("jaxpr", "call_jaxpr", "call", "callee")
"""The parameters in which they name it."""

SAME = frozenset({"pvary", "stop_gradient", "copy", "name"})
"""What returns its operand."""

FROM_CONSTANTS = frozenset(
    {"iota", "broadcast_in_dim", "reshape", "squeeze", "transpose", "concatenate", "slice", "convert_element_type"}
    | {"select_n", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "add", "sub", "mul", "neg", "max", "min"}
    | {"rem", "sign"}
)
"""What is computed once if its operands are constants: the same on all devices, whatever the mesh."""


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
    how: weakref.WeakKeyDictionary() for how in ("traced", "short", "live")
}


def plan_of(jaxpr: Any, how: str = "traced") -> Plan:
    """The plan of a jaxpr, made on first use.

    Arguments:
        jaxpr: the jaxpr.
        how: step by step as it was `"traced"`; `"short"`, without steps that are done twice; or, with those alone
            that something reads, `"live"`.

    Raises:
        UnknownPrimitive: if an equation's primitive has no rule.
    """
    plan = _PLANS[how].get(jaxpr)
    if plan is None:
        plan = _Planner(short=how != "traced").plan(jaxpr, live=how == "live")
        _PLANS[how][jaxpr] = plan
    return plan


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


def _step(equation: Any, reads: tuple[int, ...], writes: tuple[int, ...], forgets: tuple[int, ...]) -> Step:
    name = equation.primitive.name
    if name not in RULES:
        raise UnknownPrimitive(name, location(equation))
    shapes = tuple(tuple(v.aval.shape) for v in equation.outvars)
    types = tuple(held_as(v.aval) for v in equation.outvars)
    return Step(RULES[name], equation, reads, writes, shapes, types, forgets)


class _Planner:
    """Makes a plan: a `short` one does nothing twice, has no calls, and knows what depends on no operand."""

    def __init__(self, *, short: bool) -> None:
        self.short = short
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
        steps = _forgetting(_read(later, results) if live else later, results, known)
        constants = tuple(self.constants.values())
        return Plan(self.slots, constants, arguments, tuple(steps), results, tuple(first), {})

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
            (called,) = (equation.params[key] for key in CALLED if key in equation.params)
            return self.follow(*opened(called), reads)
        if self.short and name in SAME:
            return reads
        key = _repeated(equation, reads) if self.short else None
        if key is None or key not in self.done:
            writes = tuple(self.fresh() for _ in equation.outvars)
            self.steps.append(_step(equation, reads, writes, ()))
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


def _read(steps: Sequence[Step], results: Sequence[int]) -> list[Step]:
    """The steps of which something is read, or that make nothing."""
    alive = set(results)
    kept = []
    for step in reversed(steps):
        if not step.writes or not alive.isdisjoint(step.writes):
            alive.update(step.reads)
            kept.append(step)
    return kept[::-1]


def _forgetting(steps: Sequence[Step], results: Sequence[int], known: set[int]) -> list[Step]:
    """The steps, each of which forgets what is read for the last time, or never."""
    alive = {*results, *known}
    told = []
    for step in reversed(steps):
        ends = tuple(position for position in dict.fromkeys((*step.reads, *step.writes)) if position not in alive)
        alive.update(ends)
        told.append(step._replace(forgets=ends))
    return told[::-1]
