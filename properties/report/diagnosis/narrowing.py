"""Which operation rounds too much, where a program is right in double precision: tried in the interpreter, one by one.

With everything in double precision but the results of one line, which are rounded to the dtype that was traced, the
results of the program are as wrong as the bound says they must not be.
"""

from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.engines.running import all_blocks
from shardproof.properties.engines.simulate import Change, Simulated
from shardproof.properties.precision.numbers import operands
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.diagnosis.repairs import MOST, Places, alike, place, program_of
from shardproof.properties.runner.violation import LawViolation

MOST_LINES = 200
"""How many are tried, at most."""


def rounds_at(violation: LawViolation) -> str:
    """What rounds to which dtype, and where, if results are right in double precision; empty if that is unknown."""
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or not _is_rounding(difference) or data is None:
        return ""
    if violation.law.between_engines or case.mesh.size > MOST:
        return ""
    try:
        return _line(program_of(violation.implementation, case), case, data, difference)
    except Exception:  # the interpreter may lack what an engine has: then nothing more is known
        return ""


def _is_rounding(difference: Difference) -> bool:
    return difference.of == "result" and difference.off_in_doubles is not None and not difference.by_formula


def _line(program: Simulated, case: Case, data: Data, difference: Difference) -> str:
    equations, arrays = program.equations, operands(case, data)
    candidates = alike(equations, lambda equation: len(equation.outvars) == 1 and _is_float(equation))
    # what is narrowest first, and of that what comes first
    candidates.sort(key=lambda places: -unit_roundoff(_dtype(equations[places[0]])))
    for places in candidates[:MOST_LINES]:
        if _is_wrong(program, places, case, arrays, difference):
            first = equations[places[0]]
            return f"{place(first)} rounds to {_dtype(first).name}"
    return ""


def _is_wrong(program: Simulated, places: Places, case: Case, arrays: list[np.ndarray], difference: Difference) -> bool:
    """Whether rounding the results of some equations alone makes a result wrong where it was found to be."""
    change = Change(frozenset(id(program.equations[i]) for i in places), then="rounded")
    results = program.run_changed(*arrays, change=change)
    blocks = all_blocks(case, np.asarray(results[difference.leaf].value))
    bound = 0 if difference.bound is None else np.abs(difference.bound)
    return bool(((np.abs(blocks - difference.expected.astype(blocks.dtype)) > bound) & difference.wrong).any())


def _is_float(equation: Any) -> bool:
    return is_float(_dtype(equation))


def _dtype(equation: Any) -> np.dtype:
    return np.dtype(equation.outvars[0].aval.dtype)
