"""The search for a case that breaks a law, and from there for the smallest mesh on which one does."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from hypothesis.database import ExampleDatabase

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws import Law
from shardproof.properties.laws.law import LARGE
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import DEATHS, SuiteError
from shardproof.properties.runner.draws import Finding, search
from shardproof.properties.runner.judging import ENOUGH, judge
from shardproof.properties.runner.reach import reached
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.violation import LawViolation, once

SMALLER = {"simulate": 30, "xla": 10}
"""How many cases on the next smaller mesh are run, per engine, before it is taken to be right there."""

TELLING_SEEDS = (1, 2, 3)
"""The data sets that a smallest case is run on besides the simplest."""


def find_violation(
    laws: Sequence[Law],
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    *,
    max_examples: int,
    random_seed: int | None = None,
    shrink: bool = True,
    before: Callable[[Law, Case], str] = lambda law, case: "",
    was_told: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = ENOUGH,
    database: ExampleDatabase | None = None,
    until: float | None = None,
) -> Finding:
    """Draws cases until one breaks a law, and shrinks it, the mesh first of all.

    One that differs by rounding alone is the result only if none is found that is worse.

    Arguments:
        laws: the laws.
        implementation: the implementation.
        engine: what runs it.
        scope: what cases may use; no mesh is larger than one on which the function ends in seconds (see `reach`).
        max_examples: how many cases to draw.
        random_seed: another seed draws other cases; None derandomizes.
        shrink: whether to look for the smallest case.
        before: called with every case before it is checked; may name the known defect that ended a process on it.
        was_told: whether a violation is of a cause that was told before, so that nobody reads its smallest case.
        patience: how many unsupported cases end the search (see `judging.draw_another`).
        database: where Hypothesis keeps what broke a law, and looks for it first.
        until: when to draw no more, by `time.perf_counter`, unless something was found.
    """
    start = time.perf_counter()
    wanted = scope.large if engine.name == "simulate" else 0
    scope = dataclasses.replace(scope, large=reached(implementation, wanted, partial(before, laws[0])) if wanted else 0)
    found = search(
        laws, implementation, engine, scope, max_examples, random_seed, shrink, before, was_told, patience,
        database=database,
        until=until,
    )  # fmt: skip
    if found.violation is not None and (was_told(found.violation) or found.violation.kind == "ended"):
        return found
    if found.violation is not None and found.violation.rounding:  # which may hide what is worse
        only = [found.violation.law]
        rest = search(
            only, implementation, engine, scope, max_examples, random_seed, shrink, before, past_rounding=True
        )
        for name, tally in rest.tallies.items():
            found.tallies[name].add(tally)
        found = dataclasses.replace(rest, tallies=found.tallies) if rest.violation is not None else found
    if scope.large < wanted:
        steps = f"its steps grow with the mesh: none of more than {scope.large:,} devices was interpreted"
        next(iter(found.tallies.values())).finding(f"a mesh of {wanted:,}", steps)
    if found.violation is None or found.violation.diagnosis is not None or not shrink:
        return found
    least = smallest(found.violation, scope, engine, random_seed=random_seed, before=before)
    return dataclasses.replace(found, violation=least, seconds=time.perf_counter() - start)


def smallest(
    violation: LawViolation,
    scope: Scope,
    engine: Engine,
    *,
    random_seed: int | None = None,
    before: Callable[[Law, Case], str] = lambda law, case: "",
) -> LawViolation:
    """The violation as it is reported: on the smallest mesh that can be found, with data that shows the mistake."""
    least = on_a_smaller_mesh(violation, scope, engine, random_seed=random_seed, before=before)
    least = on_telling_data(least, engine)
    return least if comes_again(least, engine) else once(least)


def comes_again(violation: LawViolation, engine: Engine) -> bool:
    """Whether the function breaks the law once more where it is traced anew, on the data on which it broke it.

    What may end or stop the process, and what takes a large mesh, is not run again for that.
    """
    law, case, data = violation.law, violation.case, violation.data
    if case.mesh.size > LARGE or violation.kind in (*DEATHS, "deadlock"):
        return True
    anew = dataclasses.replace(violation.implementation, function=partial(violation.implementation.function))
    case = case if data is None else dataclasses.replace(case, data=(data,))
    try:
        judge(law, anew, case, engine, Tally(case.contract.name, "", law.name, engine.name))
    except (LawViolation, SuiteError):  # what the suite itself makes of it then is no news of the function
        return True
    return False


def on_telling_data(violation: LawViolation, engine: Engine) -> LawViolation:
    """The same violation, of the same structure, on the first data set of its kind on which most blocks are wrong.

    The simplest numbers have zeros among them, and of few elements some are equal by coincidence: a block that
    holds what it should not looks right.
    """
    law, case, data = violation.law, violation.case, violation.data
    if data is None or data.kind not in ("distinct", "exact") or _wrong_blocks(violation) == 0:
        return violation
    assert violation.difference is not None
    best = violation
    for number in TELLING_SEEDS:
        again = dataclasses.replace(case, data=(Data(data.kind, number),))
        try:
            judge(law, violation.implementation, again, engine, Tally(case.contract.name, "", law.name, engine.name))
        except LawViolation as other:
            same = other.difference is not None and other.difference.what == violation.difference.what
            best = max(best, other, key=_wrong_blocks) if same else best
    return best


def _wrong_blocks(violation: LawViolation) -> int:
    """How many blocks are wrong, where they can be compared."""
    difference = violation.difference
    if difference is None or not difference.comparable:
        return 0
    lead = len(violation.case.mesh.sizes)
    return int(difference.wrong.any(axis=tuple(range(lead, difference.wrong.ndim))).sum())


def on_a_smaller_mesh(
    violation: LawViolation,
    scope: Scope,
    engine: Engine,
    *,
    random_seed: int | None = None,
    before: Callable[[Law, Case], str] = lambda law, case: "",
) -> LawViolation:
    """The violation on the smallest mesh that can be found: fewest devices, then fewest axes.

    Shrinking takes away one choice after another, and stops where two would have to go at once: where
    all axes of a mesh are in use, say. Drawing anew on the meshes next to it has no such walls.
    """
    scope = dataclasses.replace(scope, large=0, chains=Chains(only=violation.case.chain))
    tried = {violation.case.mesh.sizes}
    while True:
        for sizes in sorted(smaller(violation.case.mesh.sizes) - tried, key=extent):
            tried.add(sizes)
            count = max(math.prod(sizes), scope.max_devices)
            on_these = dataclasses.replace(scope, sizes=sizes, max_devices=count, available=count)
            found = search(
                [violation.law],
                violation.implementation,
                engine,
                on_these,
                SMALLER[engine.name],
                random_seed,
                True,
                before,
                past_rounding=not violation.rounding,
                kind=violation.data.kind if violation.data else "",
                like=violation.case,
            )
            if found.violation is not None:
                violation = found.violation
                break
        else:
            break
    return violation


def extent(sizes: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """What makes a mesh small: few devices, then few axes."""
    return math.prod(sizes), len(sizes), sizes


def smaller(sizes: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The meshes next to one: with an axis that is shorter, or gone; of a large one, a single axis of half as many."""
    devices = math.prod(sizes)
    if devices > LARGE:  # of which the search shrinks the numbers by itself
        return {(n,) for n in (devices // 2, 2 * LARGE, LARGE + 1) if LARGE < n < devices}
    shorter = {(*sizes[:i], m, *sizes[i + 1 :]) for i, n in enumerate(sizes) for m in range(1, n)}
    gone = {(*sizes[:i], *sizes[i + 1 :]) for i in range(len(sizes)) if len(sizes) > 1}
    return shorter | gone
