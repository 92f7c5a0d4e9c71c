"""A program of a user's own in double precision where the interpreter cannot run it: traced and compiled in doubles.

What is compiled says nothing of its roundings, so less is known than where the interpreter runs it: the results of the
doubles equal the reference's to ten digits, and in its own dtypes a program is right to half of their digits.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Prepared, XlaEngine
from shardproof.properties.engines.engine import ready, trace
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.precision.arithmetic import double
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program, Seen, forward, precision_of


class CompiledElsewhere(BaseException):
    """A program is to be compiled, and not in this process; no Exception, which would be taken for the program's."""


class Compiler(XlaEngine):
    """The engine for programs that the interpreter cannot run."""

    elsewhere = False

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """Traces a program for a mesh; raises CompiledElsewhere within `only_interpreting`."""
        if self.elsewhere:
            raise CompiledElsewhere
        return super().prepare(program, mesh)

    @contextmanager
    def only_interpreting(self) -> Iterator[None]:
        """Lets no program be compiled because the interpreter cannot run it."""
        self.elsewhere = True
        try:
            yield
        finally:
            self.elsewhere = False


COMPILER = Compiler()

DIGITS = 1e-10
"""The error of doubles whose roundings nobody followed, relative to the largest number of an array, or to 1."""


def in_doubles(
    kind: str, implementation: Implementation, case: Case, arrays: Sequence[np.ndarray], limit: InterpreterLimit
) -> tuple[list[np.ndarray], float, float]:
    """Results of a program in doubles, how far off they may be, and those in their own dtypes, relative to the largest.

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
            program_of_values = trace(forward(wide, implementation, Seen()), wide.mesh)
            coarsest = max([DIGITS, *map(_half, narrow_floats(program_of_values))])
            program = ready(kind, implementation, wide, COMPILER)
        except Exception as error:  # as it was not written for doubles: in its own dtypes it was traced
            raise limit from error
        try:
            results = program.prepared([array.astype(double(array.dtype)) for array in arrays])
        except jax.errors.JaxRuntimeError as error:  # the compiler's, which the law meets on XLA as well
            raise limit from error
    own = max((_half(o.numpy_dtype) for o in case.operands if is_float(o.numpy_dtype)), default=0.0)
    return [np.asarray(x) for x in results], coarsest, own


def narrow_floats(program: Any) -> set[np.dtype]:
    """The floats with fewer digits than a double that equations of a program make."""
    dtypes = {getattr(out.aval, "dtype", None) for equation in equations(program) for out in equation.outvars}
    floats = [dtype for dtype in dtypes if isinstance(dtype, np.dtype) and is_float(dtype)]
    return {dtype for dtype in floats if unit_roundoff(dtype) > unit_roundoff(np.dtype(np.float64))}


def _half(dtype: np.dtype) -> float:
    """The relative error of half of the digits of a dtype."""
    return float(unit_roundoff(dtype)) ** 0.5
