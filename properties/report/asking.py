"""Every law of one implementation on an engine, one violation after the other: for `check` and for tests."""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import pytest

from shardproof.properties.cases import suggestion
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.value import VALUE
from shardproof.properties.precision.compiled import COMPILER, CompiledElsewhere
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import DEATHS, Kind, SuiteError
from shardproof.properties.report.failures.causes import LEFT_OUT, Told, by_cause, entry, told
from shardproof.properties.report.progress import Progress, devices_note
from shardproof.properties.report.summary import Summary
from shardproof.properties.runner import isolation
from shardproof.properties.runner.child import Task
from shardproof.properties.runner.isolation import Here, NeverBegan, NotSent, Tell, check_isolated
from shardproof.properties.runner.judging import ENOUGH, asked, require_held, tallies_of
from shardproof.properties.runner.platforms import DEVICES, make_devices
from shardproof.properties.runner.search import Finding, compiled_of, find_violation
from shardproof.properties.runner.stated import GivenError, check_draws, named
from shardproof.properties.runner.tally import HeldOnNothing, Tally
from shardproof.properties.runner.violation import LawViolation

EXAMPLES = 50
"""How many structures each law is to hold on unless another number is given; eight of them compiled."""

PART = 2 / 3
"""The part of `max_seconds` that the interpreter gets, before XLA."""

LARGE = 1024
"""The most devices of a mesh that is only simulated."""

PATIENCE = 40
"""How many unsupported cases end a search where a law has held on none already."""

FEW = 4
"""Of fewer cases it is no failure that a law held on none of them, where values did."""

SHORTER = 4
"""What part of the structures is drawn once more where a law is broken: for the others, and on the next engine."""


UNLIKE: tuple[Kind, ...] = ("raises", "tree")
"""What may be wrong of a function in another process alone, where JAX was not told of the classes that it uses."""


@dataclass
class Answers:
    """What the laws say of an implementation on one engine."""

    tallies: dict[str, Tally]  # what was checked, by law; whether it held, was broken, or does not apply
    # the smallest case of each cause, in the order in which they were found
    violations: list[LawViolation] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)  # why a law that applies held on nothing
    errors: list[SuiteError] = field(default_factory=list)  # what is wrong with the suite itself
    left_out: list[str] = field(default_factory=list)  # the laws that were not asked, since wrong values answer them
    ended: str = ""  # after how many structures of how many the time was spent, if it was


Find = Callable[..., Finding]
"""Searches for a violation of some laws, as `find_violation` does, given `max_examples`, `was_told` and `patience`."""


def chosen_laws(laws: str | Iterable[str] | None) -> list[Law]:
    """The laws of these names; None: all.

    Raises:
        GivenError: if there is no such law, or none is named.
    """
    chosen = named("laws", laws, LAWS)
    if unknown := [name for name in chosen if name not in LAWS]:
        raise GivenError(f"laws={unknown[0]!r}: no such law; {suggestion.did_you_mean(unknown[0], LAWS, of='some of')}")
    if not chosen:
        raise GivenError(f"laws={chosen!r}: expected some of {', '.join(LAWS)}")
    return [law for name, law in LAWS.items() if name in chosen]


def engines_for(implementation: Implementation, laws: Sequence[Law]) -> list[str]:
    """The engines on which a law has something to ask.

    Raises:
        GivenError: if there is none.
    """
    found = [engine for engine in ENGINES if asked(implementation, engine, laws)]
    if not found:
        names = [law.name for law in laws]
        raise GivenError(f"laws={names}: expected one that has something to ask of {implementation}")
    return found


def ask(
    implementation: Implementation,
    engine: str,
    laws: Sequence[Law],
    known: Told,
    find: Find,
    *,
    max_examples: int,
    tell: Tell = lambda law, case, breaks: None,
) -> Answers:
    """Asks all laws at once, and once more those that are left after each that is broken."""

    def was_told(violation: LawViolation) -> bool:
        if known.before(violation):
            return True
        tell(violation.law, violation.case, True)
        return False

    start, left = time.process_time(), asked(implementation, engine, laws)
    answers = Answers(tallies_of(implementation, engine, left))
    while left:
        answers.left_out += [law.name for law in left if known.answers(law)]
        left = [law for law in left if not known.answers(law)]
        if not left:
            break
        try:
            drawn = max_examples if engine == "simulate" else compiled_of(max_examples)
            patience = PATIENCE if known.in_vain else ENOUGH
            found = find(left, max_examples=drawn, was_told=was_told, patience=patience)
        except SuiteError as error:
            answers.errors.append(error)
            broken = error.law or left[0].name
        else:
            for name, tally in found.tallies.items():
                answers.tallies[name].add(tally)
            answers.ended = answers.ended or found.ended
            if found.violation is None:
                break
            answers.violations.append(found.violation)
            known.add(found.violation)
            broken = found.violation.law.name
        answers.tallies[broken].outcome = "failed"
        dead = bool(answers.violations) and answers.violations[-1].kind in DEATHS  # it would only die again
        left = [] if dead else [law for law in left if law.name != broken]
        max_examples = max(1, max_examples // SHORTER)
    for name in answers.left_out:
        del answers.tallies[name]
    if answers.left_out and answers.tallies:
        next(iter(answers.tallies.values())).finding(engine, f"{LEFT_OUT}: {', '.join(answers.left_out)}")
    for law in asked(implementation, engine, laws):
        if law.name in answers.tallies and answers.tallies[law.name].outcome != "failed":
            _require_held(law, implementation, answers, known)
    for tally in list(answers.tallies.values())[:1]:  # of the processor: machines are busy with other things
        tally.seconds = time.process_time() - start
    return answers


def _require_held(law: Law, implementation: Implementation, answers: Answers, known: Told) -> None:
    """Whether a law that nothing broke held, or does not apply."""
    tally = answers.tallies[law.name]
    try:
        if nothing := require_held(law, implementation, tally):
            tally.skip(nothing)
    except HeldOnNothing as error:
        if not tally.drawn_structures and (answers.violations or answers.ended):  # it was not asked any more
            why = f"{answers.violations[0].law.name} is broken" if answers.violations else "the time was spent"
            tally.skip(f"{law.name} ({tally.engine}): not asked: {why}")
            return
        values = answers.tallies.get(VALUE.name)
        if tally.drawn_structures < FEW and law is not VALUE and values and (values.structures or values.defects):
            tally.skip(str(error).partition(": ")[2])
            return
        known.in_vain, tally.outcome = True, "failed"
        answers.empty.append(str(error))


def together(texts: Iterable[str]) -> list[str]:
    """Texts `NAME: LAW (ENGINE): WHY`, those that have the same name and reason in one line."""
    laws: dict[tuple[str, str], list[str]] = {}
    for text in texts:
        name, law, why = text.split(": ", 2)
        laws.setdefault((name, why), []).append(law)
    return [f"{name}: {', '.join(some)}: {why}" for (name, why), some in laws.items()]


def conclude(answers: Answers, implementation: Implementation) -> None:
    """Ends a test of an implementation: nothing, if every law that applies held.

    Raises:
        LawViolation: if one does not hold; of several, a group of them.
        SuiteError: if the suite itself fails.
        HeldOnNothing: if one held on no case.
        Skipped: if none applies.
    """
    __tracebackhide__ = True
    violations = answers.violations
    if len(violations) > 1:
        raise ExceptionGroup(f"{implementation} breaks {len(violations)} laws", violations)
    if violations:
        raise violations[0] from violations[0].__cause__
    if answers.errors:
        raise answers.errors[0]
    if answers.empty:
        raise HeldOnNothing("\n".join(together(answers.empty)))
    if not any(tally.outcome == "passed" for tally in answers.tallies.values()):
        reasons = [reason for tally in answers.tallies.values() for reason in tally.findings]
        reasons += [f"{LEFT_OUT}: {', '.join(answers.left_out)}"] if answers.left_out else []
        pytest.skip("; ".join(reasons or [f"no law has anything to ask of {implementation}"]))


def local_search(implementation: Implementation, engine: str, scope: Scope, **how: Any) -> Find:
    """A search in this process (see `find_violation`)."""
    return partial(find_violation, implementation=implementation, engine=engine_named(engine), scope=scope, **how)


@dataclass
class Searches:
    """The searches of a check: in this process where the interpreter runs, in a child where XLA compiles."""

    implementation: Implementation
    known: Told  # what was told of it
    random_seed: int | None  # as `find_violation` takes it
    tell: Tell  # as `check_isolated` takes it
    reason: str = ""  # why XLA compiles in this process as well, which it may end; empty: it does not

    def __post_init__(self) -> None:
        if jax.default_backend() != "cpu":
            self.reason = f"the devices of platform {jax.default_backend()} are this process's"
        elif multiprocessing.current_process().daemon:
            self.reason = "it is a daemonic process, which has no children"

    def on(self, engine: str, until: float | None) -> Find:
        """The search on an engine, which ends as that of `find_violation` does."""
        scope, compiles = scope_of(engine), engine == "xla"

        def before(law: Law, case: Case) -> str:
            self.tell(law, case, False)
            return ""

        how = {"random_seed": self.random_seed, "until": until, "before": before}
        here = local_search(self.implementation, engine, scope, **how)

        def find(laws: Sequence[Law], **limits: Any) -> Finding:
            nonlocal compiles
            if not (compiles or self.reason):
                try:
                    with COMPILER.only_interpreting():
                        return here(laws, **limits)
                except CompiledElsewhere:  # from the first case on, as the interpreter lacks something
                    compiles = True
            if self.reason:
                return here(laws, **limits)
            task = Task(
                Here(self.implementation),
                tuple(law.name for law in laws),
                engine,
                scope,
                limits["max_examples"],
                self.random_seed,
                "cpu",
                diagnose=diagnosed,
                options={**jax.config.values, "jax_platforms": "cpu", "jax_num_cpu_devices": len(jax.devices())},
                was_told=self.known.before,
                patience=limits["patience"],
                until=until,
            )
            try:
                found = check_isolated(task, self.tell)
            except (NotSent, NeverBegan) as error:
                self.reason = str(error)
                return here(laws, **limits)
            odd = found.violation
            if odd is None or odd.kind not in UNLIKE or self.known.before(odd):
                return found
            again = here(laws, **limits)
            if again.violation is None:
                self.reason = f"in another, {self.implementation} {odd.finding}"
            return again

        return find


def diagnosed(violation: LawViolation) -> Sequence[str]:
    """What is wrong in words; what finds them is loaded then, in the process in which it went wrong."""
    from shardproof.properties.report.failures import text

    return text.diagnosed(violation)


def _told(violation: LawViolation, *, briefly: bool) -> dict[str, str]:
    """The report of a violation, with its files; `briefly`: what tells that its cause was told before."""
    from shardproof.properties.report.failures import text

    return entry(violation, "") if briefly else text.report(violation)


def scope_of(engine: str) -> Scope:
    """The meshes of the devices at hand, and those that the interpreter has besides."""
    devices = len(jax.devices())
    most = devices if engine == "xla" else max(devices, DEVICES)
    return Scope(max_devices=most, available=most, large=LARGE)


def checked(
    implementation: Implementation,
    laws: str | Iterable[str] | None,
    *,
    max_examples: int,
    max_seconds: float | None,
    random_seed: int | None,
) -> Summary:
    """What `check` does, of any implementation."""
    __tracebackhide__ = True  # the report says what is wrong; the code that looked for it is no part of that
    check_draws(max_examples, random_seed, max_seconds)
    wanted = chosen_laws(laws)
    engines = engines_for(implementation, wanted)
    make_devices()
    devices = len(jax.devices())
    reports, tallies = list[dict[str, str]](), list[Tally]()
    empty, notes, own = list[str](), list[str](), list[SuiteError]()
    known, began = Told(), time.perf_counter()

    with Progress(f"check {implementation}", len(engines), devices_note(devices)) as progress:
        searches = Searches(implementation, known, random_seed, progress.case)
        if "xla" in engines and not searches.reason:
            isolation.start()  # it imports JAX while the interpreter runs
        for engine in engines:  # the interpreter first: what it finds stuck is not run
            drawn = max(1, max_examples // SHORTER) if reports else max_examples
            progress.engine(engine, drawn if engine == "simulate" else compiled_of(drawn))
            if known.stuck and engine != "simulate":
                notes.append(f"not run on {engine}, since {known.stuck}")
                continue
            told_before = Told(set(known.causes))
            share = PART if engine != engines[-1] else 1.0
            until = None if max_seconds is None else began + share * max_seconds
            find = searches.on(engine, until)
            answers = ask(implementation, engine, wanted, known, find, max_examples=drawn, tell=progress.case)
            for violation in answers.violations:
                reports.append(_told(violation, briefly=told_before.before(violation)))
                told_before.add(violation)
                answers.tallies[violation.law.name].failure = reports[-1]
            own += answers.errors
            empty += [f"{implementation}: {error.law} ({engine}): {error}" for error in answers.errors]
            empty += answers.empty
            tallies += answers.tallies.values()
            notes += [f"{engine}: max_seconds={max_seconds:g} ended it {answers.ended}"] if answers.ended else []
            notes += [] if answers.tallies or not answers.left_out else [f"{LEFT_OUT}: {', '.join(answers.left_out)}"]
    empty = together(empty)
    if searches.reason and "xla" in engines:
        notes.append(f"compiled in this process, which ends if XLA aborts: {searches.reason}")
    if not reports and not empty and not any(t.verifies and not LAWS[t.law].partial for t in tallies):
        empty += [reason for t in tallies if t.outcome == "skipped" for reason in t.findings]
    idle = [law.name for law in wanted if not any(law.applies_to(implementation, engine) for engine in ENGINES)]
    if laws and idle:
        notes.append(f"not checked, since there is nothing to ask: {', '.join(idle)}")
    for tally in tallies:
        tally.unclaimed, tally.stated = implementation.unclaimed, implementation.stated
    tallies.sort(key=lambda tally: [*LAWS].index(tally.law))
    summary = Summary(implementation, tuple(tallies), (*notes, *devices_note(devices)))
    if reports or empty:
        broken = all(tally.outcome == "failed" for tally in tallies)
        texts = [*map(told, by_cause(reports)), *empty, summary.beside_the_table() if broken else str(summary)]
        kind = AssertionError if reports or own else HeldOnNothing
        raise kind("\n\n".join(filter(None, texts))) from (own[0] if own else None)
    return summary
