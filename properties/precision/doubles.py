"""A program of a user's own in double precision where the interpreter cannot run it: traced and compiled in doubles.

What is compiled says nothing of its roundings, so less is known than of a wide run: the results of the doubles equal
the reference's to ten digits, and in its own dtypes a program is right to half of their digits.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import ENGINES
from shardproof.properties.engines.running import ready, traced
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.precision.wide import Wide
from shardproof.properties.precision.wide.casts import narrow_floats
from shardproof.properties.precision.wide.held import double
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.precision import precision_of
from shardproof.properties.programs.program import Seen, forward

COMPILER = ENGINES["xla"]()
"""What runs what the interpreter cannot."""

DIGITS = 1e-10
"""How far off doubles may be whose roundings nobody followed, relative to the largest number of an array, or to 1."""


def in_doubles(
    kind: str, implementation: Implementation, case: Case, arrays: Sequence[np.ndarray], limit: InterpreterLimit
) -> list[tuple[Wide, Wide]]:
    """The results of a program that is made ready as `kind`, in double precision, as `wide.both` gives them.

    Raises:
        InterpreterLimit: `limit`, where it is no program of a user's own, there are too few devices, or it cannot be
            traced or compiled in doubles.
    """
    if implementation.program is None or max(case.mesh.devices) >= len(jax.devices()):
        raise limit
    operands = tuple(dataclasses.replace(o, dtype=double(o.numpy_dtype).name) for o in case.operands)
    wide = dataclasses.replace(case, operands=operands)
    with precision_of(wide):
        try:
            program_of_values = traced(forward(wide, implementation, Seen()), wide, COMPILER)
            coarsest = max([DIGITS, *map(_half, narrow_floats(program_of_values))])
            program = ready(kind, implementation, wide, COMPILER)
        except Exception as error:  # as it was not written for doubles: in its own dtypes it was traced
            raise limit from error
        try:
            results = program.prepared([array.astype(double(array.dtype)) for array in arrays])
        except jax.errors.JaxRuntimeError as error:  # the compiler's, which the law meets on XLA as well
            raise limit from error
    own = max((_half(o.numpy_dtype) for o in case.operands if is_float(o.numpy_dtype)), default=0.0)
    return [(_within(np.asarray(x), max(own, coarsest)), _within(np.asarray(x), coarsest)) for x in results]


def _half(dtype: np.dtype) -> float:
    """What half of the digits of a dtype leave out."""
    return float(unit_roundoff(dtype)) ** 0.5


def _within(value: np.ndarray, share: float) -> Wide:
    if not is_float(value.dtype):
        return Wide(value, np.zeros(value.shape))
    size = np.abs(np.where(np.isfinite(value), value, 0)).max(initial=0)
    return Wide(value, np.full(value.shape, share * max(1.0, float(size))))
