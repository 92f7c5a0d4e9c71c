"""The single change that would make a program right: changes are tried in the interpreter, in double precision.

A change is reported if it makes all results right on several data sets.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.engine import all_blocks, ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.arithmetic import calls
from shardproof.properties.precision.runs import INTERPRETER
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import reference_blocks
from shardproof.properties.report.diagnosis.changes import (
    NO_CHANGE,
    Change,
    Places,
    Repair,
    Traced,
    changes_of,
    gives_floats,
    run_in_doubles,
)
from shardproof.properties.report.diagnosis.runs import MOST, enlarge
from shardproof.properties.runner.neighbours import fitting_cases, resize_mesh
from shardproof.properties.runner.preconditions import check_case

MOST_CHANGES = 400
"""The most changes that are tried."""

TOLERANCE = 1e-6
"""How far a number may be off, relative to the largest: roundings to 16 bits on the way are not made."""

DATA = (("exact", 1), ("real", 2), ("real", 3))
"""The kinds of data on which a change must help, with what is added to the seed of the failure."""

Blocks = list[np.ndarray]


@dataclass(frozen=True)
class Trial:
    """A program on a data set, with the blocks that are right."""

    program: Simulated
    case: Case
    arrays: Blocks
    right: Blocks
    within: float = TOLERANCE  # how far off they may be, relative to the largest of them

    def holds(self, places: Places = (), change: Change = NO_CHANGE) -> bool:
        """True if all results are right if the program is changed."""
        try:
            results = run_in_doubles(self.program, *self.arrays, change=change.at(self.program, self.case, places))
        except Exception:  # shapes that do not fit one another, devices that wait for ever
            return False
        pairs = zip(results, self.right, strict=False)
        return all(is_close(all_blocks(self.case, x), right, self.within) for x, right in pairs)


def is_close(blocks: np.ndarray, right: np.ndarray, part: float) -> bool:
    """True if blocks are equal, but for a part of the largest right number; NaN and infinities must be the same."""
    if blocks.shape != right.shape or not is_float(right.dtype):
        return bool(np.array_equal(blocks, right))
    blocks, right = blocks.astype(wide(blocks.dtype)), right.astype(wide(right.dtype))
    with np.errstate(invalid="ignore"):
        close = np.abs(blocks - right) <= part * np.abs(np.where(np.isfinite(right), right, 0)).max(initial=0)
    return bool((nan_equal(blocks, right) | close).all())


def repair_of(violation: LawViolation) -> Repair | None:
    """The change that makes the results right, if one does."""
    case, data = violation.case, violation.data
    if data is None or not has_wrong_values(violation):
        return None
    for one in filter(None, (case, enlarge(case, violation.implementation))):  # some steps are skipped on one element
        with contextlib.suppress(Exception):  # a function may refuse other data, and the interpreter the function
            if found := _found(violation.implementation, one, data, None if one is case else case):
                return found
    return None


def has_wrong_values(violation: LawViolation) -> bool:
    """True if the values of a result are wrong on a mesh that is small enough for more runs."""
    of_result = violation.difference is not None and violation.difference.of == "result"
    return of_result and not violation.law.between_engines and violation.case.mesh.size <= MOST


@functools.lru_cache(maxsize=1)  # both a diagnosis and the steps of the page call it
def _found(implementation: Implementation, case: Case, data: Data, failed: Case | None = None) -> Repair | None:
    """The change that makes a case right, larger ones like it, and the one that `failed`, if it is another one."""
    program = program_of(implementation, case)
    tried = [*itertools.islice(changes_of(case, program), MOST_CHANGES)]
    own = [data, *(Data(kind, data.seed + more) for kind, more in DATA)]
    trials = [*_trials(implementation, case, own)] if tried else []
    wrong = [trial for trial in trials if not trial.holds()]
    if not wrong or len(trials) < 2:
        return None
    if implementation.within and dataclasses.replace(wrong[0], within=8 * wrong[0].within).holds():
        return None  # it is off by design, and by little more: a finer approximation is no repair
    others = [*_others(case, implementation, own[1:])]
    if failed is not None:
        others += _trials_of([failed], implementation, [data])
    for text, places, change in tried:
        if not wrong[0].holds(places, change) or not helps(trials, places, change):
            continue
        if all(any(helps(more, *one) for one in same.get(_key(text), ())) for more, same in others):
            return text, places, change
    return None


def helps(trials: Sequence[Trial], places: Places, change: Change) -> bool:
    """True if a change makes the results of all trials right."""
    return all(trial.holds(places, change) for trial in trials)


Same = dict[str, list[tuple[Places, Change]]]
"""The changes of a program, by their words without sizes."""


def _others(case: Case, implementation: Implementation, sets: Sequence[Data]) -> Iterator[tuple[list[Trial], Same]]:
    """Larger blocks, longer axes and larger options, on which a change has to help too.

    Few elements or devices agree by coincidence, and so do all that a capacity of one leaves.
    """
    mesh, larger = case.mesh, enlarge(case, implementation) or case
    longer = resize_mesh(mesh, tuple(n + 1 for n in mesh.sizes))
    values = {name: case.contract.call.options[name].values for name, n in case.params if type(n) is int}
    most = case.with_params(**{name: max(some) for name, some in values.items() if some})
    others = (larger, *fitting_cases(larger, dataclasses.replace(larger, mesh=longer)))
    yield from _trials_of((*others, most) if most != case else others, implementation, sets)


def _trials_of(
    cases: Iterable[Case], implementation: Implementation, sets: Sequence[Data]
) -> Iterator[tuple[list[Trial], Same]]:
    """The trials and changes of each case; one that the function or the interpreter does not support is left out."""
    for other in cases:
        with contextlib.suppress(Exception):
            check_case("value", other)
            if implementation.serves is not None and not implementation.serves(other):
                continue
            program, same = program_of(implementation, other), Same()
            for text, places, change in itertools.islice(changes_of(other, program), MOST_CHANGES):
                same.setdefault(_key(text), []).append((places, change))
            if trials := [*_trials(implementation, other, sets)]:
                yield trials, same


def _key(text: str) -> str:
    """The words of a change without the sizes in them."""
    return re.sub(r"^\d+ times|, with p=\d+|of its operand \(.*?\)", "", text)


def program_of(implementation: Implementation, case: Case) -> Simulated:
    """A case's program, as the interpreter runs it."""
    prepared = ready("value", implementation, case, INTERPRETER).prepared
    assert isinstance(prepared, Simulated)
    return prepared


def _trials(implementation: Implementation, case: Case, sets: Sequence[Data]) -> Iterator[Trial]:
    """A case's program on data sets on which some right values are finite."""
    program = program_of(implementation, case)
    for data in sets:
        arrays = operands(case, data)
        right = reference_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])
        if all(np.isfinite(x).any() for x in right if is_float(x.dtype) and x.size):
            yield Trial(program, case, arrays, right, max(TOLERANCE, implementation.within))


def rounds_at(violation: LawViolation) -> str:
    """The operation that rounds, and its line, where results are right in double precision; empty if it is unknown.

    Everything is run in double precision but the results of one line, which are rounded to the dtype that was traced:
    then the results of the program exceed the bound.
    """
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or data is None or not has_wrong_values(violation):
        return ""
    if difference.off_in_doubles is None or difference.by_formula or violation.in_doubles:
        return ""
    bound = 0 if difference.bound is None else np.abs(difference.bound)
    with contextlib.suppress(Exception):  # the interpreter may lack what an engine has
        program, arrays = program_of(violation.implementation, case), operands(case, data)
        traced = Traced(case, program.equations)
        groups = traced.groups(lambda e: gives_floats(e) and not calls(e))
        found = [(np.dtype(program.equations[at[0]].outvars[0].aval.dtype), at) for at in groups]
        # the narrowest first, and of these the one that comes first
        for dtype, places in sorted(found, key=lambda one: -unit_roundoff(one[0]))[:MOST_CHANGES]:
            change = Change(frozenset(id(program.equations[i]) for i in places), then="rounded")
            blocks = all_blocks(case, run_in_doubles(program, *arrays, change=change)[difference.leaf])
            off = np.abs(blocks - difference.expected.astype(blocks.dtype))
            if ((off > bound) & difference.wrong).any():
                return f"{traced.place(program.equations[places[0]])} rounds to {dtype.name}"
    return ""
