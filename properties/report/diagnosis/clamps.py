"""Starts of slices that are moved, since the slice would not fit: it has other elements than was intended."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.simulate.env import Env, Rule, mask_active
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.arithmetic import Doubles
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.report.diagnosis.changes import place, run_in_doubles
from shardproof.properties.report.diagnosis.repairs import has_wrong_values, program_of

SLICES = {"dynamic_slice": 1, "dynamic_update_slice": 2}
"""The operations whose start is clamped, and how many operands they have before the numbers of the start."""


@dataclass(frozen=True)
class Clamped(Doubles):
    """Doubles that record, in words, which starts are clamped."""

    starts: list[str] = field(default_factory=list, compare=False)

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation."""
        results = super().run(env, rule, equation, operands)
        if (before := SLICES.get(equation.primitive.name)) is None:
            return results
        whole, part = equation.invars[0].aval.shape, (equation.outvars if before == 1 else equation.invars[1:])[0].aval
        for start, n, size in zip(operands[before:], whole, part.shape, strict=True):
            beyond = mask_active(env, (start < 0) | (start > n - size))
            if beyond.any():
                at = np.broadcast_to(start, beyond.shape)[beyond][0]
                taken = min(max(at, 0), n - size)
                self.starts.append(
                    f"clamped: the start of {place(equation)} is {at}, beyond the block, and {taken} is taken"
                )
        return results


def clamped_start(violation: LawViolation) -> list[str]:
    """A line on the first start that is clamped where results are wrong; empty if none is."""
    if violation.data is None or not has_wrong_values(violation):
        return []
    clamped = Clamped()
    with contextlib.suppress(Exception):  # the interpreter may lack what an engine has
        program = program_of(violation.implementation, violation.case)
        run_in_doubles(program, *operands(violation.case, violation.data), arithmetic=clamped)
    return clamped.starts[:1]
