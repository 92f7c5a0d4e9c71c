"""What is wrong with the blocks, in words: the first hypothesis that survives, or one change of the program."""

from collections.abc import Iterable, Sequence

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.diagnosis.hypotheses import LISTED, Hypothesis, causes, hypotheses
from shardproof.properties.report.diagnosis.repairs import repaired, rounds_at
from shardproof.properties.report.diagnosis.runs import Run, runs_of
from shardproof.properties.runner.violation import LawViolation

SMALL = 1 / 16
"""How large an error may be, as a part of the numbers about, to be one of rounding."""


def diagnose(violation: LawViolation) -> list[str]:
    """Lines that say what is wrong, the details indented; none where blocks were not compared."""
    difference, case = violation.difference, violation.case
    if difference is None:
        return []
    if difference.of == "replica":
        return ["replicas disagree: devices that are typed to hold the same block hold different ones"]
    if not difference.comparable:
        return [_not_comparable(difference, len(case.mesh.sizes))]
    if difference.of == "array":  # one array that was put together, not one block per device
        wrong = int(difference.wrong[(0,) * len(case.mesh.sizes)].sum())
        return [f"other values: the array that out_specs puts together is wrong at {wrong} places"]
    runs = runs_of(violation)
    rounding = not violation.in_doubles and not difference.by_formula and all(map(_is_rounding, runs))
    if rounding and (line := rounds_at(violation)):
        return [f"rounded too much: in double precision the values are right; {line}"]
    why = [*causes(runs[0])]
    found = _first(why if rounding else hypotheses(runs), runs)
    lines = found.text.split("\n") if found else []
    if found and found.text.startswith("rounded too much") and (line := rounds_at(violation)):
        lines[0] += f"; {line}"
    if rounding and not lines:
        return ["rounded too much: off by no more than a small part of the numbers about"]
    if found is None or found.open:
        cause = None if found is None else _first(why, runs)
        lines += [cause.text] if cause else repaired(violation)
    named = [*map(runs[0].name, runs[0].places[:LISTED]), *(["others"] if len(runs[0].places) > LISTED else [])]
    formula = "another formula: in double precision too, " * (difference.by_formula or violation.in_doubles)
    return lines or [f"{formula}other values: on {', '.join(named)}"]


def _first(table: Iterable[Hypothesis], runs: Sequence[Run]) -> Hypothesis | None:
    return next((one for one in table if one.survives(runs)), None)


def _is_rounding(run: Run) -> bool:
    """Whether all errors are a small part of the numbers about; a small whole number is never rounded."""
    right, actual = (x[run.wrong].astype(wide(x.dtype)) for x in (run.expected, run.actual))
    if not is_float(run.expected.dtype) or ((right == np.round(right)) & (np.abs(right) <= 64)).any():
        return False
    with np.errstate(all="ignore"):
        usual = np.median(np.abs(run.expected)) if run.expected.size else 0
        scale = np.maximum(np.abs(right), max(run.tolerance, usual))
        off = np.abs(actual - right)
        return bool((np.isfinite(off) & (off <= SMALL * scale)).all())


def _not_comparable(difference: Difference, lead: int) -> str:
    expected, actual = difference.expected, difference.actual
    if actual.shape == expected.shape:
        found, exact = (x.astype(np.result_type(wide(expected.dtype), wide(actual.dtype))) for x in (actual, expected))
        unit = max((unit_roundoff(x.dtype) for x in (actual, expected) if is_float(x.dtype)), default=0.0)
        with np.errstate(all="ignore"):  # as nearly as the shorter of both dtypes has them
            largest = np.abs(exact[np.isfinite(exact)]).max(initial=0)
            right = np.allclose(found, exact, rtol=0, atol=4 * unit * largest, equal_nan=True)
        values = "the values are right" if right else "the values are wrong as well"
        return f"wrong dtype: {actual.dtype} where {expected.dtype} is right; {values}"
    return f"wrong shape: {actual.shape[lead:]} where {expected.shape[lead:]} is right"
