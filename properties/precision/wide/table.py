"""The table of wide rules, by primitive: the rule for values, run on doubles, and beside it one for errors."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.elementwise import PLAIN, aligned
from shardproof.properties.engines.simulate.elementwise import WIDE as DIRECT
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.errors import InterpreterLimit, location
from shardproof.properties.engines.simulate.rules import RULES, Results, Rule, result_dtype
from shardproof.properties.precision.wide.held import (
    UNKNOWN,
    Numbers,
    certain,
    double,
    error_of,
    over_blocks,
    together,
    value_of,
)
from shardproof.properties.precision.wide.rounding import Limits, limits

WIDE: dict[str, Rule] = {}


def wide_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the wide rule of the primitives called `names`.

    It takes and returns what a rule does, in arrays that hold errors; what it returns without them is certain.
    """

    def register(function: Rule) -> Rule:
        WIDE.update(dict.fromkeys(names, function))
        return function

    return register


def float_rule(*names: str) -> Callable[[Rule], Rule]:
    """The same, of floats: where none goes in or comes out, the primitive does what it does in any run."""

    def register(function: Rule) -> Rule:
        def run(env: Env, equation: Any, *operands: Numbers) -> Any:
            if is_exact(equation):
                return exactly(env, RULES[equation.primitive.name], equation, list(operands))
            return function(env, equation, *operands)

        wide_rule(*names)(run)
        return function

    return register


class Variable(NamedTuple):
    """What a rule reads of a variable."""

    aval: Any


class Aval(NamedTuple):
    """What a rule reads of a type."""

    shape: tuple[int, ...]
    dtype: Any


class Doubled:
    """An equation whose results are doubles, for the rules of values.

    Arguments:
        equation: the equation as it was traced.
        **params: parameters that are others.
    """

    def __init__(self, equation: Any, **params: Any) -> None:
        self.primitive, self.source_info, self.invars = equation.primitive, equation.source_info, equation.invars
        self.params = {**equation.params, **params} if params else equation.params
        self.outvars = [Variable(Aval(v.aval.shape, double(np.dtype(v.aval.dtype)))) for v in equation.outvars]


def values(env: Env, equation: Any, *operands: Numbers, **params: Any) -> Any:
    """What the rule of the primitive says of doubles, which stand for longer floats where a rule takes those."""
    name = equation.primitive.name
    if name in DIRECT:
        return np.asarray(DIRECT[name](*operands))
    return RULES[name](env, Doubled(equation, **params), *operands)


def one(results: Results) -> Numbers:
    """The only result."""
    return results if isinstance(results, np.ndarray) else np.asarray(results[0])


def limits_of(env: Env, equation: Any, index: int = 0) -> Limits:
    """What a result of the equation is charged."""
    assert env.arithmetic is not None
    return limits(env.arithmetic.rounding, result_dtype(equation, index), equation.primitive.name)


def decided(env: Env) -> bool:
    """Whether no comparison, order or integer of the program depends on roundings."""
    assert env.arithmetic is not None
    return bool(env.arithmetic.rounding.decided)


def is_exact(equation: Any) -> bool:
    """Whether no float goes in or comes out: such an equation does what it does in any run."""
    return not _floats(tuple(getattr(v.aval, "dtype", None) for v in (*equation.invars, *equation.outvars)))[0]


def has_complex(equation: Any) -> bool:
    """Whether a complex number goes in or comes out."""
    return _floats(tuple(getattr(v.aval, "dtype", None) for v in (*equation.invars, *equation.outvars)))[1]


@functools.cache
def _floats(dtypes: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether a float is among some dtypes, and whether a complex one is; a random key has none of NumPy's."""
    floats = [dtype for dtype in dtypes if isinstance(dtype, np.dtype) and is_float(dtype)]
    return bool(floats), any(dtype.kind == "c" for dtype in floats)


def without_errors(equation: Any, what: str = "") -> InterpreterLimit:
    """The refusal to say how far off a primitive's result may be; `what` it is about, if that is not the primitive."""
    name = equation.primitive.name
    return InterpreterLimit(
        f"no rule for the error of {what or f'the primitive {name!r}'} (at {location(equation)}): the interpreter "
        "cannot run the program in wide arithmetic",
        f"{what or name} in wide arithmetic",
    )


def charged(bounds: Limits, value: Numbers, error: Any, roundings: Numbers = 1.0) -> Numbers:
    """The error of a computed number: what it comes from is off by `error`, and it is rounded so often.

    What is finite, and may overflow in the program's dtype, is unknown. What is not finite is certain where nothing
    that it comes from is unknown: infinities and NaN do not depend on roundings.
    """
    size = np.abs(value)
    share = roundings * bounds.unit
    total = error * (1 + share) + share * size
    reach = size + total
    if not (reach <= bounds.largest).all():
        finite = np.isfinite(value)
        known = ~np.isinf(error)
        total = np.where(finite, np.where(reach <= bounds.largest, total, np.inf), np.where(known, 0.0, np.inf))
    small = size - error < bounds.normal
    if small.any():
        total = total + np.where(small & (reach > 0) & np.isfinite(value), roundings * bounds.floor, 0.0)
    return np.asarray(total)


def settled(error: Numbers, errors: Sequence[Numbers]) -> Numbers:
    """An error whose formula has no value, as where infinities meet: unknown if an operand is, and otherwise none."""
    undefined = np.isnan(error)
    if not undefined.any():
        return error
    unknown = np.asarray(False)
    for operand in errors:
        unknown = unknown | np.isinf(operand)
    return np.where(undefined, np.where(unknown, np.inf, 0.0), error)


ABSORBING = {"and": False, "or": True}
"""Which operand decides, whatever the other one is."""


def exactly(env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
    """The results of the rule itself, as the program has them; unknown where an operand is."""
    plain = dataclasses.replace(env, arithmetic=None)
    results = rule(plain, equation, *(value_of(x) for x in operands))
    results = [results] if isinstance(results, np.ndarray) else list(results)
    error = _unknown(env, equation, operands)
    if error is None:
        return [certain(x, x.dtype) for x in results]
    return [x if x.dtype.names is not None else together(x, over_blocks(error, x), x.dtype) for x in results]


def _unknown(env: Env, equation: Any, operands: list[Numbers]) -> Any:
    """Where the results are unknown; None: nowhere."""
    errors = [error_of(x) != 0 for x in operands]
    if not any(e.any() for e in errors):
        return None
    name = equation.primitive.name
    if name not in PLAIN:
        anywhere = [env.anywhere(e) for e in errors]
        return np.where(np.logical_or.reduce(np.broadcast_arrays(*anywhere)), UNKNOWN, 0.0)
    errors = aligned(env, equation, tuple(errors))
    unknown = np.logical_or.reduce(np.broadcast_arrays(*errors))
    if name in ABSORBING and operands[0]["value"].dtype == bool:
        for x, doubtful in zip(aligned(env, equation, tuple(operands)), errors, strict=True):
            unknown = unknown & ~(~doubtful & (x["value"] == ABSORBING[name]))
    return np.where(unknown, UNKNOWN, 0.0)
