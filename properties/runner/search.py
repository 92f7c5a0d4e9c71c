"""The search for a case that breaks a law, and from there for the smallest mesh on which one does."""

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import FlakyFailure, NoSuchExample, Unsatisfiable
from threadpoolctl import threadpool_limits

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.cases.strategies.meshes import MAX_AXES
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.engines import Engine, SimulateEngine
from shardproof.properties.engines.engine import trace
from shardproof.properties.laws import Law
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.laws.law import LARGE, NOT_REPRODUCIBLE, LawViolation, Verdict
from shardproof.properties.programs.examples import EXAMPLES, example
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import DEATHS, SuiteError
from shardproof.properties.runner.judging import (
    MAX_UNSUPPORTED,
    Before,
    applicable_laws,
    is_decided,
    judge,
    reject_if_unsupported,
    tallies_of,
    verify,
)
from shardproof.properties.runner.profiles import compiled_of, seed_of
from shardproof.properties.runner.tally import StopDrawing, Tally


class StopSearch(BaseException):
    """Ends a search at once, past Hypothesis, which would shrink what nobody reads, or what ends the process."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        super().__init__(violation.headline)


Held = tuple[Case, tuple[Law, ...]]
"""A case, and the laws that held on it."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a search."""

    violation: LawViolation | None  # the smallest case that breaks a law
    tallies: Mapping[str, Tally]  # what was checked, by law
    ended: str = ""  # after how many structures of how many the time ran out, if it did
    held: tuple[Held, ...] = ()  # the first cases on which a law held, in a search that found a violation

    @property
    def tally(self) -> Tally:
        """The tally of the law that is broken, or of the first."""
        name = next(iter(self.tallies)) if self.violation is None else self.violation.law.name
        return self.tallies[name]


def search(
    laws: Sequence[Law],
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    *,
    max_examples: int,
    random_seed: int | None,
    before: Before,
    shrink: bool = True,
    is_reported: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = MAX_UNSUPPORTED,
    past_rounding: bool = False,
    kind: str = "",
    mistake: tuple[object, ...] = (),
    like: Case | None = None,
    database: ExampleDatabase | None = None,
    until: float | None = None,
) -> Finding:
    """Runs one of the searches of `find_violation`, whose arguments these are.

    Arguments:
        past_rounding: whether differences by rounding alone count as holding.
        kind: the only kind of data to run; after the first violation, that of its data.
        mistake: the only `LawViolation.mistake` that counts as a violation; after the first one, its own.
        like: a case whose options all cases must have: the same operation's name, and tiled or not.
    """
    laws = applicable_laws(implementation, engine.name, laws)
    tallies = tallies_of(implementation, engine.name, laws)
    tried, ended, compiled = 0, "", compiled_of(max_examples)
    held: list[Held] = []
    smallest: LawViolation | None = None
    first_compiled = 0  # how many programs were compiled when the first violation was found

    def exclude(case: Case) -> None:
        enough = [tally.exclude() for tally in tallies.values() if smallest is None]  # shrinking draws only some kinds
        if any(enough):
            raise StopDrawing

    cases = drawn_for(implementation, scope, eager=engine.name == "xla", excluded=exclude)
    if engine.name == "xla" and scope.available > 1:  # so few are compiled that each must be able to fail
        cases = cases.filter(lambda drawn: not drawn[0].trivial)
    if like is not None:
        options = {name: value for name, value in like.keywords.items() if isinstance(value, str | bool | None)}
        cases = cases.filter(lambda drawn: all(drawn[0].keywords.get(name) == options[name] for name in options))

    limits = settings(
        max_examples=2 * max_examples,
        deadline=None,
        database=database,
        phases=[Phase.reuse, Phase.generate, Phase.shrink][: 3 if shrink else 2],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )

    def holds(drawn: tuple[Case, ...]) -> None:
        nonlocal tried, kind, laws, ended, mistake, smallest, first_compiled
        if smallest is not None and engine.compilations - first_compiled >= SHRINKING:
            raise StopSearch(smallest)
        if all(is_decided(tally, max_examples) for tally in tallies.values()):
            raise StopDrawing
        if until is not None and smallest is None and time.perf_counter() > until:
            ended = f"after {tried} of at most {2 * max_examples} structures"
            raise StopDrawing
        tried += 1
        verdicts: dict[str, Verdict] = {}
        for one in drawn:
            case = dataclasses.replace(one, data=tuple(data for data in one.data if data.kind == kind) or one.data)
            try:
                found = verify(
                    implementation, case, engine,
                    laws=laws, tallies=tallies, instead=compiled, enough=max_examples, before=before,
                )  # fmt: skip
            except LawViolation as violation:
                if past_rounding and violation.rounding:
                    return
                if is_reported(violation) or violation.kind == "ended":
                    raise StopSearch(violation) from violation.__cause__
                if mistake and violation.mistake != mistake:
                    return
                first_compiled = engine.compilations if smallest is None else first_compiled
                # Hypothesis tries smaller ones alone
                smallest, mistake, laws = violation, violation.mistake, [violation.law]
                kind = kind or (violation.data.kind if violation.data else "")  # the others would only take their time
                raise
            verdicts |= found
            if engine.name == "simulate" and len(held) < FIRST_HELD and case.mesh.size <= LARGE:
                held.append((case, tuple(law for law in laws if law.name in found and found[law.name].kind == "held")))
        spare = compiled if engine.name == "simulate" else 0
        reject_if_unsupported(verdicts, tallies, patience=patience, instead=spare)

    test = limits(given(drawn=cases)(holds))
    try:
        seed(seed_of("fixed", implementation, engine.name) if random_seed is None else random_seed)(test)()
    except StopSearch as stopped:
        return Finding(stopped.violation, tallies, held=tuple(held))
    except LawViolation as violation:
        return Finding(violation, tallies, held=tuple(held))
    except FlakyFailure as failure:  # Hypothesis did not find it again
        for error in failure.exceptions:
            if isinstance(error, LawViolation):
                error.diagnosis = [NOT_REPRODUCIBLE]
                return Finding(error, tallies)
        raise
    except (Unsatisfiable, StopDrawing):  # the tallies say why
        pass
    return Finding(None, tallies, ended)


SELDOM = 200_000
"""How many new objects Python makes before it looks for cycles of them: tracing makes millions, and few cycles."""


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Lets Python look for cycles of objects less often."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], SELDOM) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


SHRINKING = 30
"""How many programs may be compiled to shrink a violation, and again on smaller meshes: one may take many seconds."""

RERUNS = {"simulate": 4, "xla": 1}
"""How often a violation is run again, per engine: a function may keep state."""

FIRST_HELD = 2
"""How many cases that held are checked again after a violation, each as often: a function with state may break them."""

SMALLER = {"simulate": 30, "xla": 10}
"""How many cases on the next smaller mesh are run, per engine, before it counts as right there."""


@collecting_seldom()
@threadpool_limits.wrap(limits=1, user_api="blas")  # type: ignore[untyped-decorator]  # small arrays: threads would wait
def find_violation(
    laws: Sequence[Law],
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    *,
    max_examples: int,
    random_seed: int | None = None,
    shrink: bool = True,
    before: Before = lambda law, case: "",
    is_reported: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = MAX_UNSUPPORTED,
    database: ExampleDatabase | None = None,
    until: float | None = None,
) -> Finding:
    """Draws cases until one breaks a law, and shrinks it, the mesh first of all.

    A violation that differs by rounding alone is the result only if no worse one is found.

    Arguments:
        scope: what cases may use; no mesh is larger than one on which the function ends in seconds (see `reach`).
        max_examples: on how many structures each law has to hold; at most twice as many are drawn.
        random_seed: another seed draws other cases; None derandomizes.
        shrink: whether to look for the smallest case.
        is_reported: whether the cause of a violation was reported before, so that nobody reads its smallest case.
        patience: how many unsupported cases end the search (see `judging.reject_if_unsupported`).
        database: where Hypothesis saves failures, and looks for them first.
        until: when to draw no more, by `time.perf_counter`, unless something was found.
    """
    wanted = scope.large if engine.name == "simulate" else 0
    scope = dataclasses.replace(scope, large=reach(implementation, wanted, partial(before, laws[0])) if wanted else 0)
    draw = partial(search, implementation=implementation, engine=engine, random_seed=random_seed, before=before)
    found = draw(
        laws, scope=scope, max_examples=max_examples, shrink=shrink, is_reported=is_reported, patience=patience,
        database=database, until=until,
    )  # fmt: skip
    violation, held, found = found.violation, found.held, dataclasses.replace(found, held=())
    if violation is not None and (is_reported(violation) or violation.kind == "ended"):
        return found
    if violation is not None and violation.rounding:  # which may hide what is worse
        rest = draw([violation.law], scope=scope, max_examples=max_examples, shrink=shrink, past_rounding=True)
        for name, tally in rest.tallies.items():
            found.tallies[name].add(tally)
        violation = rest.violation or violation
    if scope.large < wanted:
        steps = f"its steps grow with the mesh: none of more than {scope.large:,} devices was interpreted"
        next(iter(found.tallies.values())).finding(f"a mesh of {wanted:,}", steps)
    if violation is not None and violation.diagnosis is None and shrink:
        if _is_reproducible(violation, engine) and _hold_again(held, implementation, engine, before):
            violation = _with_clearer_data(_on_smallest_mesh(violation, scope, engine, draw), engine)
        else:
            violation.diagnosis = [NOT_REPRODUCIBLE]
    return dataclasses.replace(found, violation=violation)


def _rerun(violation: LawViolation, implementation: Implementation, data: Data | None, engine: Engine) -> None:
    """Judges the case of a violation again, on one data set."""
    law, case = violation.law, violation.case
    case = case if data is None else dataclasses.replace(case, data=(data,))
    judge(law, implementation, case, engine, Tally(case.contract.name, "", law.name, engine.name))


def _is_reproducible(violation: LawViolation, engine: Engine) -> bool:
    """True if the function breaks the law in the same way whenever it is traced again: the interpreter repeats bits.

    What may end or stop the process, and what takes a large mesh, is not run again.
    """
    if violation.case.mesh.size > LARGE or violation.kind in (*DEATHS, "deadlock"):
        return True
    for _ in range(RERUNS[engine.name]):
        retraced = _retraced(violation.implementation)
        try:
            _rerun(violation, retraced, violation.data, engine)
        except LawViolation as again:
            if engine.name == "simulate" and not violation.resembles(again):
                return False
        except SuiteError:  # an error of the suite says nothing about the function
            return True
        else:
            return False
        with suppress(Exception):  # one call more: a state may come again after as many calls as a law makes
            trace(forward(violation.case, retraced, Seen()), violation.case.mesh)
    return True


def _hold_again(held: Sequence[Held], implementation: Implementation, engine: Engine, before: Before) -> bool:
    """True if laws hold again on the first cases on which they held, now that others ran."""
    for case, laws in list(held) * RERUNS[engine.name]:
        retraced = _retraced(implementation)
        tallies = tallies_of(retraced, engine.name, laws)
        try:
            verify(retraced, case, engine, laws=laws, tallies=tallies, instead=0, enough=1, before=before)
        except LawViolation:
            return False
        except SuiteError:
            return True
    return True


def _retraced(implementation: Implementation) -> Implementation:
    """The implementation with its function as another object, which JAX traces again."""
    return dataclasses.replace(implementation, function=partial(implementation.function))


def _with_clearer_data(violation: LawViolation, engine: Engine) -> LawViolation:
    """The same violation on whichever of the next data sets of its kind most blocks are wrong.

    The simplest numbers have zeros among them, and of few elements some are equal by coincidence: a wrong block may
    look right.
    """
    data = violation.data
    if data is None or data.kind not in ("distinct", "exact") or _wrong_blocks(violation) == 0:
        return violation
    assert violation.difference is not None
    best = violation
    for number in (1, 2, 3):
        try:
            _rerun(violation, violation.implementation, Data(data.kind, number), engine)
        except LawViolation as other:
            same = other.difference is not None and other.difference.what == violation.difference.what
            best = max(best, other, key=_wrong_blocks) if same else best
    return best


def _wrong_blocks(violation: LawViolation) -> int:
    """The number of blocks that are wrong, where they can be compared."""
    difference = violation.difference
    if difference is None or not difference.comparable:
        return 0
    lead = len(violation.case.mesh.sizes)
    return int(difference.wrong.any(axis=tuple(range(lead, difference.wrong.ndim))).sum())


def _on_smallest_mesh(
    violation: LawViolation, scope: Scope, engine: Engine, draw: Callable[..., Finding]
) -> LawViolation:
    """The violation on the smallest mesh that can be found: fewest devices, then fewest axes.

    Shrinking takes away one choice after another, and stops where two would have to go at once: where
    all axes of a mesh are in use, say. Drawing again on the meshes next to it has no such walls.
    """
    scope = dataclasses.replace(scope, large=0, chains=Chains(only=violation.case.chain))
    tried, compiled = {violation.case.mesh.sizes}, engine.compilations
    while untried := _smaller(violation.case.mesh.sizes) - tried:
        for sizes in sorted(untried, key=lambda sizes: (math.prod(sizes), len(sizes), sizes)):
            tried.add(sizes)
            if engine.compilations - compiled >= SHRINKING:
                return violation
            if engine.name == "xla" and math.prod(sizes) == 1 < scope.max_devices:  # `search` draws no trivial case
                continue
            count = max(math.prod(sizes), scope.max_devices)
            found = draw(
                [violation.law],
                scope=dataclasses.replace(scope, sizes=sizes, max_devices=count, available=count),
                max_examples=SMALLER[engine.name],
                past_rounding=not violation.rounding,
                kind=violation.data.kind if violation.data else "",
                mistake=violation.mistake,
                like=violation.case,
            )
            if found.violation is not None:
                violation = found.violation
                break
    return violation


def _smaller(sizes: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The meshes to try after one: those with one axis shorter, or without it.

    After a large mesh they are a single axis of half as many devices, and the smallest meshes of all. Hypothesis would
    not come to these by itself: it prefers what is drawn in fewer choices, and a large mesh is.
    """
    devices = math.prod(sizes)
    if devices > LARGE:  # of which the search shrinks the numbers by itself
        fewer = {(n,) for n in (devices // 2, 2 * LARGE, LARGE + 1) if LARGE < n < devices}
        return {(2,), (3,), (4,), (2, 2)} | fewer
    shorter = {(*sizes[:i], m, *sizes[i + 1 :]) for i, n in enumerate(sizes) for m in range(1, n)}
    gone = {(*sizes[:i], *sizes[i + 1 :]) for i in range(len(sizes)) if len(sizes) > 1}
    return shorter | gone


PROBES = (((8,), (16,), (32,)), ((2, 4), (4, 4), (4, 8)))
"""Meshes, each twice as large as the one before: equations are counted on the first row that the function supports."""

SIMPLEST = settings(
    max_examples=200,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[*HealthCheck],
)
"""Settings that find the simplest case on such a mesh, without running anything."""


def reach(implementation: Implementation, most: int, before: Callable[[Case], object]) -> int:
    """On how many devices, up to `most`, the function is interpreted in seconds, by how its equations grow.

    It is `most` if the function cannot be interpreted on a small mesh, which a law will report. `before` is called with
    every case before it runs.
    """
    for meshes in PROBES:
        if math.prod(meshes[-1]) > most:
            return most
        cases = [probe(implementation, sizes) for sizes in meshes]
        try:
            counts = [equations(implementation, case, before) for case in cases if case is not None]
        except Exception:  # whatever the function raises is for a law to report, not for an estimate
            continue
        if len(counts) < len(meshes):
            continue
        earlier, later = counts[1] - counts[0], counts[2] - counts[1]
        if later < 1.5 * max(earlier, 1):  # by no more at each doubling: a logarithm
            return most
        growth = later / max(earlier, 1)  # at each doubling: 2 for a ring, 4 for steps between all pairs
        devices, count, more, limit = math.prod(meshes[2]), counts[2], float(later), min(most, 300)
        while devices < limit:
            longer = min(2, limit / devices)  # at last no whole doubling
            added = growth * more * (longer - 1)
            if count + added > 1_500:  # of a forward pass; derivatives have several times as many
                break
            devices, count, more = round(longer * devices), count + round(added), added
        return min(devices, limit)
    return most


@lru_cache(maxsize=64)  # after each violation a function is searched again
def probe(implementation: Implementation, sizes: tuple[int, ...]) -> Case | None:
    """A case in which axes of these sizes connect participants; None if the function supports none.

    Without an example it is the simplest one that can be drawn; of this project's own functions, which are known to
    end, there is none, as it would take longer than it saves.
    """
    name, count = implementation.contract.name, math.prod(sizes)
    if name in EXAMPLES:
        mesh = MeshCase(("dp", "tp")[: len(sizes)], sizes)
        return example(name, mesh, mesh.axis_names if len(sizes) > 1 else mesh.axis_names[0])
    if implementation.built_in:
        return None
    call, serves = implementation.contract.call, implementation.serves
    others = (1,) * min(max(len(call.roles) - 1, 0), MAX_AXES - len(sizes))
    scope = Scope(count, count, explicit=False, sizes=(*sizes, *others), layouts=implementation.layouts)

    def connects(case: Case) -> bool:
        tuples = axes_of(case.roles).values() if case.roles else [case.axes]
        return any(case.mesh.axis_size(axes) == count for axes in tuples) and (serves is None or serves(case))

    try:
        return find(implementation.contract.cases(scope), connects, settings=SIMPLEST)
    except (NoSuchExample, Unsatisfiable):
        return None


def equations(implementation: Implementation, case: Case, before: Callable[[Case], object]) -> int:
    """The number of equations that a case executes, in every iteration of loops; raises what the function raises."""
    before(case)
    program = forward(case, implementation, Seen())
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    return SimulateEngine().prepare(program, case.mesh).evidence(arrays).equations
