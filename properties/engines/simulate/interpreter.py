"""Evaluates jaxprs, equation by equation, with the table of rules."""

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import dtypes
from jax.extend import core

from shardproof.properties.engines.simulate.choices import ADD_UP, CHOOSE
from shardproof.properties.engines.simulate.env import RULES, Env
from shardproof.properties.engines.simulate.errors import SimulationError, UnknownPrimitive, location
from shardproof.properties.engines.simulate.liveness import open_jaxpr


def called_jaxpr(equation: Any) -> Any:
    """The jaxpr that a call names."""
    (name,) = {"jaxpr", "call_jaxpr", "call", "callee"} & equation.params.keys()
    return equation.params[name]


def key_dtype(words: int) -> np.dtype:
    """The dtype of a random key as one element, so that rules about shapes need no case for keys."""
    return np.dtype([("key", np.uint32, (words,))])


def held_as(aval: Any) -> np.dtype:
    """The NumPy dtype of a value of a traced type."""
    return aval.dtype if isinstance(aval.dtype, np.dtype) else key_dtype(*aval.dtype._impl.key_shape)


def as_value(x: Any) -> np.ndarray:
    """An array, a scalar or a random key of JAX's, as NumPy."""
    if isinstance(x, jax.Array) and dtypes.issubdtype(x.dtype, dtypes.prng_key):
        words = np.asarray(jax.random.key_data(x))
        return np.ascontiguousarray(words).view(key_dtype(words.shape[-1]))[..., 0]
    return np.asarray(x)


_LAST_READS: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()


def last_reads(body: Any) -> list[list[Any]]:
    """For each equation of an open jaxpr, the variables that it reads or makes, and that nothing needs afterwards."""
    if body not in _LAST_READS:
        read = {v for v in body.outvars if not isinstance(v, core.Literal)}
        ends = []
        for equation in reversed(body.eqns):
            atoms = (*equation.invars, *equation.outvars)
            ends.append(
                [v for v in dict.fromkeys(a for a in atoms if not isinstance(a, core.Literal)) if v not in read]
            )
            read.update(ends[-1])
        _LAST_READS[body] = ends[::-1]
    return _LAST_READS[body]


def constant(env: Env, value: np.ndarray) -> np.ndarray:
    """A constant of a program, behind the leading dimensions."""
    own = value[None] if env.arithmetic is None else env.arithmetic.constant(value)
    lead = (len(own), *(1,) * (env.lead - 1)) if env.lead else ()
    return own.reshape(lead + value.shape)


def run(env: Env, equation: Any, operands: list[np.ndarray]) -> Sequence[np.ndarray]:
    """The results of one equation; raises SimulationError for another shape or dtype than was traced."""
    name, arithmetic = equation.primitive.name, env.arithmetic
    if name not in RULES:
        raise UnknownPrimitive(name, location(equation))
    if env.choices is not None and name in CHOOSE:
        env.choices.note(env, equation, operands)
    elif env.choices is not None and name in ADD_UP:
        env.choices.note_sum(env, equation, *operands)
    if arithmetic is None:
        found = RULES[name](env, equation, *operands)
    else:
        found = arithmetic.run(env, RULES[name], equation, operands)
    results = (found,) if isinstance(found, np.ndarray) else found
    for variable, value in zip(equation.outvars, results, strict=True):
        shape, dtype = tuple(variable.aval.shape), held_as(variable.aval)
        dtype = dtype if arithmetic is None else arithmetic.held(dtype)
        if value.shape[env.lead :] != shape or value.dtype != dtype or value.ndim != env.lead + len(shape):
            raise SimulationError(
                f"the rule of {name!r} returned {value.dtype}{list(value.shape[env.lead :])} where "
                f"{dtype}{list(shape)} was traced, at {location(equation)}"
            )
    return results


def evaluate(env: Env, jaxpr: Any, args: Sequence[np.ndarray], rounds: Sequence[int] | None = None) -> list[np.ndarray]:
    """The results of a jaxpr on operands `[*lead, *block]`.

    Arguments:
        rounds: for the recorder, if there is one: the rounds after which each operand is known. Without it, everything
            in the jaxpr waits for all operands of the current equation.
    """
    body, consts = open_jaxpr(jaxpr)
    values = dict(zip(body.invars, args, strict=True))
    values |= {v: constant(env, as_value(c)) for v, c in zip(body.constvars, consts, strict=bool(consts))}
    recorder = env.recorder
    start = recorder.round if recorder is not None and rounds is None else 0
    known = dict(zip(body.invars, rounds or (), strict=False))

    def read(atom: Any) -> np.ndarray:
        if isinstance(atom, core.Literal):
            return constant(env, np.asarray(atom.val, held_as(atom.aval)))
        return values[atom]

    def round_of(atom: Any) -> int:
        return start if isinstance(atom, core.Literal) else known.get(atom, start)

    for equation, ends in zip(body.eqns, last_reads(body), strict=True):
        if recorder is not None:
            recorder.begin([round_of(atom) for atom in equation.invars], start)
        values.update(zip(equation.outvars, run(env, equation, [read(atom) for atom in equation.invars]), strict=True))
        if recorder is not None:
            known.update(zip(equation.outvars, recorder.end(len(equation.outvars)), strict=True))
        for variable in ends:
            del values[variable]
    if recorder is not None:
        recorder.results = [round_of(atom) for atom in body.outvars]
        recorder.round = max(recorder.results, default=recorder.round)
    return [read(atom) for atom in body.outvars]
