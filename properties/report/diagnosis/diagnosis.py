"""What is wrong with the blocks, in words: the first hypothesis that survives, or one change of the program."""

from collections.abc import Iterable, Sequence

import numpy as np

from shardproof.oracles.dtypes import is_float, wide
from shardproof.properties.programs.violation import Difference
from shardproof.properties.report.diagnosis.hypotheses import LISTED, Hypothesis, causes, hypotheses
from shardproof.properties.report.diagnosis.repairs import repaired, rounds_at
from shardproof.properties.report.diagnosis.runs import Run, runs_of
from shardproof.properties.runner.violation import LawViolation

SMALL = 1 / 16
"""How large an error may be, as a part of the largest number about, to be one of rounding."""


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
    rounding = not violation.in_doubles and _is_rounding(runs)
    if rounding and (line := rounds_at(violation)):
        return [f"rounded too much: in double precision the values are right; {line}"]
    why = [*causes(runs[0])]
    found = _first(why if rounding or violation.in_doubles else hypotheses(runs), runs)
    lines = found.text.split("\n") if found else []
    if found and found.text.startswith("rounded too much") and (line := rounds_at(violation)):
        lines[0] += f"; {line}"
    if rounding and not lines:
        return ["rounded too much: off by no more than a small part of the numbers about"]
    if found is None or found.open:
        cause = None if found is None else _first(why, runs)
        lines += [cause.text] if cause else repaired(violation)
    return lines or [_other(violation, runs[0])]


def _first(table: Iterable[Hypothesis], runs: Sequence[Run]) -> Hypothesis | None:
    """The first that survives, but the planted bug that is run itself."""
    return next((one for one in table if one.survives(runs)), None)


def _is_rounding(runs: Sequence[Run]) -> bool:
    """Whether all errors are a small part of the numbers about, and none is one of small whole numbers."""
    difference = runs[0].difference
    if not is_float(difference.expected.dtype) or difference.by_formula:
        return False
    for run in runs:
        right, held = (x.astype(wide(x.dtype)) for x in (run.expected, run.actual))
        with np.errstate(all="ignore"):
            off = np.abs(held - right)[run.wrong]
            scale = np.maximum(np.abs(right), max(run.tolerance, np.median(np.abs(right)) if right.size else 0))
            if not (np.isfinite(off) & (off <= SMALL * scale[run.wrong])).all():
                return False
            whole = (right[run.wrong] == np.round(right[run.wrong])) & (np.abs(right[run.wrong]) <= 64)
        if run is not runs[0] and run.wrong.any() and whole.all():
            return False
    return True


def _other(violation: LawViolation, run: Run) -> str:
    """What is certain where nothing explains it."""
    difference = run.difference
    off = np.abs(difference.actual - difference.expected)[difference.wrong] if violation.in_doubles else np.array([])
    if difference.by_formula or violation.in_doubles:
        what = "another formula: in double precision"
        return f"{what} off by up to {off.max():.2g}" if off.size else f"{what} the values are others"
    if difference.off_in_doubles is not None and (line := rounds_at(violation)):
        return f"rounded too much: in double precision the values are right; {line}"
    names = [*map(run.name, run.places[:LISTED]), *(["others"] if len(run.places) > LISTED else [])]
    return f"other values: on {', '.join(names)}"


def _not_comparable(difference: Difference, lead: int) -> str:
    expected, actual = difference.expected, difference.actual
    if actual.shape == expected.shape:
        with np.errstate(all="ignore"):
            right = np.array_equal(actual.astype(expected.dtype), expected)
        values = "the values are right" if right else "the values are wrong as well"
        return f"wrong dtype: {actual.dtype} where {expected.dtype} is right; {values}"
    return f"wrong shape: {actual.shape[lead:]} where {expected.shape[lead:]} is right"
