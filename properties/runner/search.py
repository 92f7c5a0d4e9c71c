"""The search for a case that breaks a law, and from there for the smallest mesh on which one does.

A search goes through the cases that Hypothesis draws for an implementation, until one breaks a law, then simpler; how
many that are, and whether a run can be repeated, its profiles say.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.errors import FlakyFailure, Unsatisfiable
from threadpoolctl import threadpool_limits

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws import Law
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.laws.law import LARGE
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import DEATHS, SuiteError
from shardproof.properties.runner.judging import ENOUGH, answered, asked, draw_another, judge, tallies_of, verify
from shardproof.properties.runner.reach import reach
from shardproof.properties.runner.tally import Enough, Tally, Verdict
from shardproof.properties.runner.violation import LawViolation, first_of, once

STRUCTURES = {"dev": 10, "ci": 10, "matrix": 6, "few": 2, "thorough": 100, "debug": 4}
"""The profiles of this project, and how many structures each law of an implementation is to hold on when interpreted.

At most twice as many are drawn for that.
"""

DATABASE = Path(".hypothesis")
"""Where Hypothesis keeps what failed."""


def compiled_of(structures: int) -> int:
    """How many structures each law is to hold on when compiled, which costs much more than interpreting."""
    return max(min(structures, 3), structures // 6)


def structures_in_force() -> int:
    """How many structures each law is to hold on when interpreted, by the profile in force."""
    return STRUCTURES.get(settings.get_current_profile_name(), STRUCTURES["dev"])


def seed_of(run: str | int, *names: object) -> int:
    """The seed of one test, by its names, in a run with `--hypothesis-seed`: each draws other cases, always the same.

    Without a seed there is a new one for every test, or, where a profile is derandomized, the same in every run.
    """
    return int.from_bytes(hashlib.sha256(repr((str(run), *map(str, names))).encode()).digest()[:8])


def register(devices: int) -> None:
    """Registers the profiles, with one example database for each number of devices.

    A failure that was saved on 8 devices passes on 2, where its mesh cannot be drawn; a shared
    database would then delete it.
    """
    database = DirectoryBasedExampleDatabase(DATABASE / f"devices-{devices}")
    # a case compiles programs, so how long it takes says nothing about the code under test; whether it can be repeated
    # is said here, because Hypothesis repeats everything where it sees continuous integration
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    # `explain` traces every line that runs, to name parts of a case that do not matter: minutes for one failure, and
    # what a report says of a case has its own checks
    phases = [phase for phase in Phase if phase is not Phase.explain]
    slow = settings(deadline=None, suppress_health_check=quiet, derandomize=False, phases=phases)
    # while developing: enough to find most things, in a coffee's time
    settings.register_profile("dev", slow, max_examples=200, database=database)
    # in continuous integration: the same cases for everyone, nothing remembered
    settings.register_profile("ci", slow, max_examples=200, derandomize=True, database=None, print_blob=True)
    # the same for every number of devices in turn, where one number has already run in full
    settings.register_profile("matrix", slow, max_examples=40, derandomize=True, database=None, print_blob=True)
    # the fewest of everything, for what every case meets, such as annotations that are checked
    settings.register_profile("few", slow, max_examples=10, derandomize=True, database=None, print_blob=True)
    # at night: new cases every time, and those that failed before come first
    settings.register_profile("thorough", slow, max_examples=5000, database=database, print_blob=True)
    # while looking for the cause of a failure: few cases, no shrinking, everything said
    once = [Phase.explicit, Phase.reuse, Phase.generate]
    settings.register_profile(
        "debug", slow, max_examples=10, database=database, phases=once, verbosity=Verbosity.verbose
    )


class StopSearch(BaseException):
    """Ends a search at once, past Hypothesis, which would shrink what nobody reads, or what ends the process."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        super().__init__(violation.headline)


@dataclass(frozen=True)
class Finding:
    """How an implementation fared on an engine.

    Arguments:
        violation: the smallest case that breaks a law, or None.
        tallies: what was checked, by law.
        ended: after how many structures of how many the time was spent, if it was.
    """

    violation: LawViolation | None
    tallies: Mapping[str, Tally]
    ended: str = ""

    @property
    def tally(self) -> Tally:
        """The tally of the law that is broken, or of the first."""
        name = next(iter(self.tallies)) if self.violation is None else self.violation.law.name
        return self.tallies[name]


def has_options_of(case: Case, other: Case) -> bool:
    """Whether a case has the options of another one: the same operation's name, and tiled or not as that is."""
    options = {name: value for name, value in other.keywords.items() if isinstance(value, str | bool | None)}
    return all(case.keywords.get(name) == value for name, value in options.items())


def on_data(case: Case, kind: str) -> Case:
    """The case on its data sets of one kind alone; as it is if it has none, or no kind is given."""
    return dataclasses.replace(case, data=tuple(data for data in case.data if data.kind == kind) or case.data)


def search(
    laws: Sequence[Law],
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    max_examples: int,
    random_seed: int | None,
    shrink: bool,
    before: Callable[[Law, Case], str],
    was_told: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = ENOUGH,
    *,
    past_rounding: bool = False,
    kind: str = "",
    mistake: tuple[object, ...] = (),
    like: Case | None = None,
    database: ExampleDatabase | None = None,
    until: float | None = None,
) -> Finding:
    """One search, as `find_violation` makes several; one that differs by rounding alone can be passed over.

    Arguments:
        max_examples: how many structures each law is to hold on; at most twice as many are drawn for that.
        past_rounding: whether what differs by rounding alone is taken to hold.
        kind: the kind of the only data sets to run; after the first violation those of its kind alone are.
        mistake: that of the only violations that are taken for one; after the first those of its own alone are.
        like: a case whose options all others are to have.
        database: where Hypothesis keeps what broke a law, and looks for it first.
        until: when to draw no more, by `time.perf_counter`, unless something was found.
    """
    laws = asked(implementation, engine.name, laws)
    tallies = tallies_of(implementation, engine.name, laws)
    tried = 0
    caught = False
    ended = ""

    def exclude(case: Case) -> None:
        enough = [tally.exclude() for tally in tallies.values()]
        if any(enough):
            raise Enough

    cases = drawn_for(implementation, scope, eager=engine.name == "xla", excluded=exclude)
    if engine.name == "xla" and scope.available > 1:  # of the few that are compiled in all something can go wrong
        cases = cases.filter(lambda drawn: not drawn[0].trivial)
    if like is not None:
        cases = cases.filter(lambda drawn: has_options_of(drawn[0], like))
    compiled = compiled_of(max_examples)

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
        nonlocal tried, caught, kind, laws, ended, mistake
        if all(answered(tally, max_examples) for tally in tallies.values()):
            raise Enough
        if until is not None and not caught and time.perf_counter() > until:
            ended = f"after {tried} of at most {2 * max_examples} structures"
            raise Enough
        tried += 1
        verdicts: dict[str, Verdict] = {}
        for case in drawn:
            try:
                verdicts |= verify(
                    implementation, on_data(case, kind), engine,
                    laws=laws, tallies=tallies, instead=compiled, enough=max_examples, before=before,
                )  # fmt: skip
            except LawViolation as violation:
                if past_rounding and violation.rounding:
                    return
                if was_told(violation) or violation.kind == "ended":
                    raise StopSearch(violation) from violation.__cause__
                if mistake and violation.mistake != mistake:
                    return
                caught, mistake = True, violation.mistake
                kind = kind or (violation.data.kind if violation.data else "")  # the others would only take their time
                laws = [violation.law]
                raise
        spare = compiled if engine.name == "simulate" else 0
        draw_another(verdicts, tallies, patience=patience, instead=spare)

    test = limits(given(drawn=cases)(holds))
    try:
        seed(seed_of("fixed", implementation, engine.name) if random_seed is None else random_seed)(test)()
    except (LawViolation, FlakyFailure) as error:
        violation = first_of(error) if isinstance(error, FlakyFailure) else error
        return Finding(violation, tallies)
    except StopSearch as again:
        return Finding(again.violation, tallies)
    except (Unsatisfiable, Enough):  # the tallies say what became of what was drawn
        pass
    return Finding(None, tallies, ended)


SMALLER = {"simulate": 30, "xla": 10}
"""How many cases on the next smaller mesh are run, per engine, before it is taken to be right there."""

TELLING_SEEDS = (1, 2, 3)
"""The data sets that a smallest case is run on besides the simplest."""


@threadpool_limits.wrap(limits=1, user_api="blas")  # arrays are small: two threads would wait for one another
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
        scope: what cases may use; no mesh is larger than one on which the function ends in seconds (see `reach`).
        max_examples: how many structures each law is to hold on; at most twice as many are drawn for that.
        random_seed: another seed draws other cases; None derandomizes.
        shrink: whether to look for the smallest case.
        before: called with every case before it is checked; may name the known defect that ended a process on it.
        was_told: whether a violation is of a cause that was told before, so that nobody reads its smallest case.
        patience: how many unsupported cases end the search (see `judging.draw_another`).
        database: where Hypothesis keeps what broke a law, and looks for it first.
        until: when to draw no more, by `time.perf_counter`, unless something was found.
    """
    wanted = scope.large if engine.name == "simulate" else 0
    scope = dataclasses.replace(scope, large=reach(implementation, wanted, partial(before, laws[0])) if wanted else 0)
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
    return dataclasses.replace(found, violation=least)


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
    """Whether the function breaks the law in the same way where it is traced anew, on the data on which it broke it.

    The interpreter gives the same bits then. What may end or stop the process, and what takes a large mesh, is not run
    again for that.
    """
    law, case, data = violation.law, violation.case, violation.data
    if case.mesh.size > LARGE or violation.kind in (*DEATHS, "deadlock"):
        return True
    anew = dataclasses.replace(violation.implementation, function=partial(violation.implementation.function))
    case = case if data is None else dataclasses.replace(case, data=(data,))
    try:
        judge(law, anew, case, engine, Tally(case.contract.name, "", law.name, engine.name))
    except LawViolation as again:
        return engine.name != "simulate" or violation.resembles(again)
    except SuiteError:  # what the suite itself makes of it then is no news of the function
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
                mistake=violation.mistake,
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
    """The meshes next to one: with an axis that is shorter, or gone; of a large one, a single axis of half as many.

    Of a large one the smallest as well: fewer choices draw it than a small one, and Hypothesis takes that for simpler.
    """
    devices = math.prod(sizes)
    if devices > LARGE:  # of which the search shrinks the numbers by itself
        fewer = {(n,) for n in (devices // 2, 2 * LARGE, LARGE + 1) if LARGE < n < devices}
        return {(2,), (3,), (4,), (2, 2)} | fewer
    shorter = {(*sizes[:i], m, *sizes[i + 1 :]) for i, n in enumerate(sizes) for m in range(1, n)}
    gone = {(*sizes[:i], *sizes[i + 1 :]) for i in range(len(sizes)) if len(sizes) > 1}
    return shorter | gone
