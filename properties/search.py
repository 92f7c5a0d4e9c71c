"""The search for a case that breaks a law, and from there for the smallest mesh on which one does."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from properties.cases import Case
from properties.contracts import Scope
from properties.engines import Engine
from properties.implementations import Implementation
from properties.laws.violation import LawViolation
from properties.tally import Tally
from properties.verification import LAWS, Law, verify

SMALLER = {"simulate": 60, "xla": 15}
"""How many cases on the next smaller mesh are tried, per engine, before it is taken to be right there."""


@dataclass(frozen=True)
class Finding:
    """How an implementation fared under a law.

    Arguments:
        law: the law's name.
        violation: the smallest case that breaks it, or None.
        tally: what was checked.
        caught_after: how many structures were tried until the first that broke it.
        caught_seconds: how long that took.
        seconds: how long it took in all, shrinking included.
    """

    law: str
    violation: LawViolation | None
    tally: Tally
    caught_after: int = 0
    caught_seconds: float = 0.0
    seconds: float = 0.0


def find_violation(
    law: Law,
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    *,
    max_examples: int,
    random_seed: int | None = None,
    shrink: bool = True,
    before: Callable[[Case], str | None] = lambda case: None,
) -> Finding:
    """Draws cases until one breaks the law, and shrinks it, the mesh first of all.

    Arguments:
        law: the law.
        implementation: the implementation.
        engine: what runs it.
        scope: what cases may use.
        max_examples: how many cases to draw.
        random_seed: another seed draws other cases; None derandomizes.
        shrink: whether to look for the smallest case.
        before: called with every case before it is checked; may name the known defect for which it is left out.
    """
    start = time.perf_counter()
    found = _search(law, implementation, engine, scope, max_examples, random_seed, shrink, before)
    if found.violation is None or not shrink:
        return found
    smallest = on_a_smaller_mesh(found.violation, scope, engine, random_seed=random_seed, before=before)
    return dataclasses.replace(found, violation=smallest, seconds=time.perf_counter() - start)


def on_a_smaller_mesh(
    violation: LawViolation,
    scope: Scope,
    engine: Engine,
    *,
    random_seed: int | None = None,
    before: Callable[[Case], str | None] = lambda case: None,
) -> LawViolation:
    """The violation on the smallest mesh that can be found: fewest devices, then fewest axes.

    Shrinking takes away one choice after another, and stops where two would have to go at once: where
    all axes of a mesh are in use, say. Drawing anew on the meshes next to it has no such walls.
    """
    law = dataclasses.replace(LAWS[violation.registered], arounds=(violation.case.around,))
    tried = {violation.case.mesh.sizes}
    while not law.large:  # whose numbers of devices shrink by themselves
        for sizes in sorted(smaller(violation.case.mesh.sizes) - tried, key=extent):
            tried.add(sizes)
            on_these = dataclasses.replace(scope, sizes=sizes)
            found = _search(
                law, violation.implementation, engine, on_these, SMALLER[engine.name], random_seed, True, before
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
    """The meshes next to one: with an axis that is shorter, or gone."""
    shorter = {(*sizes[:i], m, *sizes[i + 1 :]) for i, n in enumerate(sizes) for m in range(1, n)}
    gone = {(*sizes[:i], *sizes[i + 1 :]) for i in range(len(sizes)) if len(sizes) > 1}
    return shorter | gone


def _search(
    law: Law,
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    max_examples: int,
    random_seed: int | None,
    shrink: bool,
    before: Callable[[Case], str | None],
) -> Finding:
    tally = Tally(implementation.contract, implementation.name, law.name, engine.name)
    start = time.perf_counter()
    tried = 0
    caught: tuple[int, float] | None = None

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=random_seed is None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=law.cases(implementation, scope))
    def holds(case: Case) -> None:
        nonlocal tried, caught
        tried += 1
        defect = before(case)
        if defect is not None:
            tally.defect(defect)
            return
        try:
            verify(law, implementation, case, engine, tally)
        except LawViolation:
            caught = caught or (tried, time.perf_counter() - start)
            raise

    try:
        (holds if random_seed is None else seed(random_seed)(holds))()
    except LawViolation as violation:
        assert caught is not None
        return Finding(law.name, violation, tally, *caught, time.perf_counter() - start)
    except Unsatisfiable:  # on meshes of these sizes there is nothing that the implementation serves
        pass
    return Finding(law.name, None, tally, seconds=time.perf_counter() - start)
