"""The single change that would make a program right: changes are tried in the interpreter, in double precision.

A change is reported if it makes all results right on several data sets. Where derivatives alone are wrong, the program
is that of values and derivatives, so that the line may be one of a backward pass.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from jax import lax

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.engine import all_blocks, placed_blocks, ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.errors import innermost
from shardproof.properties.known_defects.repairs import apply_patches
from shardproof.properties.laws.gradient import at_kinks, cotangents, exact_gradients, exact_tangents, tangents_of
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.arithmetic import calls
from shardproof.properties.precision.judge import View
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
from shardproof.properties.report.diagnosis.runs import MOST, enlarge, has_stated_sizes
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
    """A program on a data set, with what is right of each result, and what makes that of the result."""

    program: Simulated
    case: Case
    arrays: Blocks
    right: list[tuple[np.ndarray, View]]
    within: float = TOLERANCE  # how far off they may be, relative to the largest of them
    doubt: float | None = None  # how far off right derivatives may be, of which NaN says that nothing is known

    def holds(self, places: Places = (), change: Change = NO_CHANGE) -> bool:
        """True if all results are right if the program is changed."""
        try:
            results = run_in_doubles(self.program, *self.arrays, change=change.at(self.program, self.case, places))
        except Exception:  # shapes that do not fit one another, devices that wait for ever
            return False
        for result, (right, view) in zip(results, self.right, strict=False):
            found = view(result)
            if self.doubt is not None and found.shape == right.shape:
                found = np.where(np.isnan(right), right, found)
            if not is_close(found, right, self.within, self.doubt or 0.0):
                return False
        return True


def is_close(blocks: np.ndarray, right: np.ndarray, part: float, more: float = 0.0) -> bool:
    """True if blocks are equal, but for a part of the largest right number; NaN and infinities must be the same.

    Arguments:
        more: how far off they may be besides.
    """
    if blocks.shape != right.shape or not is_float(right.dtype):
        return bool(np.array_equal(blocks, right))
    blocks, right = blocks.astype(wide(blocks.dtype)), right.astype(wide(right.dtype))
    with np.errstate(invalid="ignore"):
        close = np.abs(blocks - right) <= part * np.abs(np.where(np.isfinite(right), right, 0)).max(initial=0) + more
    return bool((nan_equal(blocks, right) | close).all())


def repair_of(violation: LawViolation) -> Repair | None:
    """The change that makes the results, or derivatives, right, if one does."""
    case, data, kind = violation.case, violation.data, kind_of(violation)
    if data is None or not is_compared(violation):
        return None
    for one in filter(None, (case, enlarge(case, violation.implementation))):  # some steps are skipped on one element
        with contextlib.suppress(Exception):  # a function may refuse other data, and the interpreter the function
            if found := _found(kind, violation.implementation, one, data, None if one is case else case):
                return found
    return None


def stopped_at(violation: LawViolation) -> str:
    """The call of `stop_gradient` without which the derivatives are right; empty if there is none."""
    case, data, implementation, kind = violation.case, violation.data, violation.implementation, kind_of(violation)
    if data is None or kind == "value" or not is_compared(violation):
        return ""
    sets = [data, *(Data(name, data.seed + more) for name, more in DATA)]
    cases = [*filter(None, (case, enlarge(case, implementation)))]
    traced = Traced(case, program_of(implementation, case, kind).equations)
    for places in traced.groups(lambda e: e.primitive.name == "stop_gradient"):
        stop = traced.equations[places[0]]
        with contextlib.suppress(Exception), _passing_gradients(innermost(stop)):  # what is behind it may have none
            trials = [trial for one in cases for trial in _trials(kind, implementation, one, sets)]
            if trials and helps(trials, (), NO_CHANGE):
                return f"no stop_gradient at {traced.line(stop)}"
    return ""


def _passing_gradients(line: str) -> AbstractContextManager[None]:
    """JAX with a `lax.stop_gradient` that stops none if it is called on a line."""
    original = lax.stop_gradient

    def stop(x: Any) -> Any:
        caller = sys._getframe(1)
        return x if line.startswith(f"{caller.f_code.co_filename}:{caller.f_lineno}:") else original(x)

    return apply_patches(mock.patch.object(lax, "stop_gradient", stop))


def kind_of(violation: LawViolation) -> str:
    """The kind of the program that gives what is wrong (see `ready`)."""
    return {"tangent": "forward gradient", "gradient": "reverse gradient"}.get(violation.broken.of, "value")


def is_compared(violation: LawViolation) -> bool:
    """True if blocks are wrong beside the oracle's on a mesh that is small enough for more runs."""
    compared = violation.difference is not None and violation.difference.of in ("result", "tangent", "gradient")
    return compared and not violation.law.between_engines and violation.case.mesh.size <= MOST


def has_wrong_values(violation: LawViolation) -> bool:
    """True if these are blocks of a result."""
    return is_compared(violation) and kind_of(violation) == "value"


@functools.lru_cache(maxsize=1)  # both a diagnosis and the steps of the page call it
def _found(
    kind: str, implementation: Implementation, case: Case, data: Data, failed: Case | None = None
) -> Repair | None:
    """The change that makes a case right, larger ones like it, and the one that `failed`, if it is another one."""
    program = program_of(implementation, case, kind)
    tried = [*itertools.islice(changes_of(case, program), MOST_CHANGES)]
    own = [data, *(Data(name, data.seed + more) for name, more in DATA)]
    trials = [*_trials(kind, implementation, case, own)] if tried else []
    wrong = [trial for trial in trials if not trial.holds()]
    if not wrong or len(trials) < 2:
        return None
    if implementation.within and dataclasses.replace(wrong[0], within=8 * wrong[0].within).holds():
        return None  # it is off by design, and by little more: a finer approximation is no repair
    others = [*_others(kind, case, implementation, own[1:])]
    if failed is not None:
        others += _trials_of(kind, [failed], implementation, [data])
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


def _others(
    kind: str, case: Case, implementation: Implementation, sets: Sequence[Data]
) -> Iterator[tuple[list[Trial], Same]]:
    """Larger blocks, longer axes and larger options, on which a change has to help too.

    Few elements or devices agree by coincidence, and so do all that a capacity of one leaves.
    """
    mesh, larger = case.mesh, enlarge(case, implementation) or case
    longer = resize_mesh(mesh, tuple(n + 1 for n in mesh.sizes))
    values = {name: case.contract.call.options[name].values for name, n in case.params if type(n) is int}
    most = case.with_params(**{name: max(some) for name, some in values.items() if some})
    longer_ones = fitting_cases(larger, dataclasses.replace(larger, mesh=longer))
    others = (larger, *(one for one in longer_ones if has_stated_sizes(one, larger, implementation)))
    yield from _trials_of(kind, (*others, most) if most != case else others, implementation, sets)


def _trials_of(
    kind: str, cases: Iterable[Case], implementation: Implementation, sets: Sequence[Data]
) -> Iterator[tuple[list[Trial], Same]]:
    """The trials and changes of each case; one that the function or the interpreter does not support is left out."""
    for other in cases:
        with contextlib.suppress(Exception):
            check_case("value", other)
            if implementation.serves is not None and not implementation.serves(other):
                continue
            program, same = program_of(implementation, other, kind), Same()
            for text, places, change in itertools.islice(changes_of(other, program), MOST_CHANGES):
                same.setdefault(_key(text), []).append((places, change))
            if trials := [*_trials(kind, implementation, other, sets)]:
                yield trials, same


def _key(text: str) -> str:
    """The words of a change without the sizes in them."""
    return re.sub(r"^\d+ times|, with p=\d+|of its operand \(.*?\)", "", text)


def program_of(implementation: Implementation, case: Case, kind: str = "value") -> Simulated:
    """A case's program, as the interpreter runs it."""
    prepared = ready(kind, implementation, case, INTERPRETER).prepared
    assert isinstance(prepared, Simulated)
    return prepared


def _trials(kind: str, implementation: Implementation, case: Case, sets: Sequence[Data]) -> Iterator[Trial]:
    """A case's program on data sets on which some right numbers are finite."""
    program, within = program_of(implementation, case, kind), max(TOLERANCE, implementation.within)
    of_right = _right_values if kind == "value" else partial(_right_derivatives, kind, implementation, program)
    for data in sets:
        if kind == "value" or not at_kinks(case, data):
            arrays, right = of_right(case, data)
            if all(np.isfinite(x).any() for x, _ in right if is_float(x.dtype) and x.size):
                yield Trial(
                    program, case, arrays, right, within, None if kind == "value" else case.contract.oracle.doubt[1]
                )


def _right_values(case: Case, data: Data) -> tuple[Blocks, list[tuple[np.ndarray, View]]]:
    """The operands, and the right results, as blocks."""
    arrays = operands(case, data)
    right = reference_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])
    return arrays, [(x, partial(all_blocks, case)) for x in right]


def _right_derivatives(
    kind: str, implementation: Implementation, program: Simulated, case: Case, data: Data
) -> tuple[Blocks, list[tuple[np.ndarray, View]]]:
    """The operands, tangents and cotangents; the program's own values, which are right, and right derivatives."""
    made, primal, tangents = (
        ready(kind, implementation, case, INTERPRETER),
        operands(case, data),
        tangents_of(case, data),
    )
    cts = cotangents(case, made, data)
    arrays = [*primal, *tangents, *cts]
    values = [(x, np.asarray) for x in run_in_doubles(program, *arrays)[: len(cts)]]
    if kind == "forward gradient":
        views = [partial(placed_blocks, case, placement=at) for at in made.placements]
        return arrays, [*values, *zip(exact_tangents(case, primal, tangents), views, strict=True)]
    return arrays, [*values, *((x, np.asarray) for x in exact_gradients(case, made.placements, primal, cts))]


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
