"""What a run in double precision records where results are wrong: starts that are moved, wraps, and the first NaN."""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.simulate.env import Env, Rule, mask_active
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.arithmetic import Doubled, Doubles, calls
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.report.diagnosis.changes import Traced, run_in_doubles
from shardproof.properties.report.diagnosis.repairs import has_wrong_values, program_of

SLICES = {"dynamic_slice": 1, "dynamic_update_slice": 2}
"""The operations whose start is clamped, and how many operands they have before the numbers of the start."""

ADDS_UP = ("reduce_sum", "psum", "psum_invariant", "cumsum", "dot_general", "scatter-add")
WRAPS = ("add", "sub", "mul", "neg", "convert_element_type", *ADDS_UP)
"""The operations whose whole numbers may exceed their dtype."""

WIDE = np.dtype(np.int64)
NARROW = 2
"""The most bytes of whole numbers that are looked at: wider ones wrap where random bits are made."""


@dataclass(frozen=True, kw_only=True)
class Recorded(Doubles):
    """Doubles that record, in words, what may explain a wrong result, in the order in which it happens."""

    traced: Traced
    lines: list[str] = field(default_factory=list, compare=False)
    numbers: list[str] = field(default_factory=list, compare=False)
    """Where a NaN was made of numbers."""

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation."""
        results = super().run(env, rule, equation, operands)
        name = equation.primitive.name
        if name in SLICES:
            self._note_start(env, equation, operands)
        if name in WRAPS and _is_narrow(equation.outvars[0].aval):
            self._note_wrap(env, rule, equation, operands, results[0])
        if not calls(equation) and any(map(_has_nan, results)) and not any(map(_has_nan, operands)):
            self.numbers.append(f"the first is made by {self.traced.place(equation)}")
        return results

    def _note_start(self, env: Env, equation: Any, operands: list[Numbers]) -> None:
        before = SLICES[equation.primitive.name]
        whole, part = equation.invars[0].aval.shape, (equation.outvars if before == 1 else equation.invars[1:])[0].aval
        for start, n, size in zip(operands[before:], whole, part.shape, strict=True):
            beyond = mask_active(env, (start < 0) | (start > n - size))
            if beyond.any():
                at = np.broadcast_to(start, beyond.shape)[beyond][0]
                taken = min(max(at, 0), n - size)
                where = self.traced.place(equation)
                self.lines.append(f"clamped: the start of {where} is {at}, beyond the block, and {taken} is taken")

    def _note_wrap(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers], found: Numbers) -> None:
        dtype = equation.outvars[0].aval.dtype
        cast: dict[str, Any] = {"new_dtype": WIDE} if "new_dtype" in equation.params else {}
        same = Doubled(equation, **cast)
        same.outvars = [SimpleNamespace(aval=SimpleNamespace(shape=v.aval.shape, dtype=WIDE)) for v in equation.outvars]
        exact = rule(env, same, *(x.astype(WIDE) if x.dtype.kind in "iu" else x for x in operands))
        exact = exact if isinstance(exact, np.ndarray) else exact[0]
        wraps = mask_active(env, found != exact)
        if wraps.any():
            self.lines.append(
                f"wraps: {self.traced.place(equation)} is {exact[wraps][0]}, and {found[wraps][0]} in {dtype}"
            )


def _is_narrow(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype.itemsize <= NARROW


def _has_nan(x: Numbers) -> bool:
    return x.dtype.kind in "fc" and bool(np.isnan(x).any())


def recorded(violation: LawViolation) -> Recorded | None:
    """Records a run of the failure in double precision, as far as it comes; None where it cannot be run."""
    if violation.data is None or not has_wrong_values(violation):
        return None
    program = program_of(violation.implementation, violation.case)
    record = Recorded(traced=Traced(violation.case, program.equations))
    with contextlib.suppress(Exception):  # the interpreter may lack what an engine has
        run_in_doubles(program, *operands(violation.case, violation.data), arithmetic=record)
    return record
