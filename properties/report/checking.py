"""Checks every law of a function of any project: against a contract, or against the same function on whole arrays.

A search ends at a violation, and the other laws are searched for the next: by `check`, and by tests.
"""

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import jax
import pytest

from shardproof.oracles.dtypes import WIDE
from shardproof.properties.cases import suggestion
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import ENGINES, engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.forward import VALUE
from shardproof.properties.laws.law import HOLDS_ELSEWHERE, LARGE, LawViolation
from shardproof.properties.precision.compiled import COMPILER, CompiledElsewhere
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import DEATHS, SuiteError
from shardproof.properties.report.failures.causes import LEFT_OUT, ReportedCauses, by_cause, entry, group_text
from shardproof.properties.report.progress import Progress, devices_note, warn_once
from shardproof.properties.report.summary import Summary
from shardproof.properties.runner import isolation
from shardproof.properties.runner.child import Task
from shardproof.properties.runner.given import check_contract, check_signature, read_claims, user_implementation
from shardproof.properties.runner.isolation import Here, NeverBegan, NotSent, OnCase, check_isolated
from shardproof.properties.runner.judging import MAX_UNSUPPORTED, applicable_laws, require_held, tallies_of
from shardproof.properties.runner.platforms import DEVICES, make_devices
from shardproof.properties.runner.preconditions import NotAFailure
from shardproof.properties.runner.profiles import drawn_on
from shardproof.properties.runner.programs import Description, Program
from shardproof.properties.runner.search import Finding, find_violation
from shardproof.properties.runner.stated import GivenError, check_draws, split_names
from shardproof.properties.runner.tally import IDLE, HeldOnNothing, Tally

EXAMPLES = 50
"""On how many structures each law has to hold by default; eight of them compiled."""

SHORTER = 4
"""By what the number of structures is divided after a violation, for the other laws and on the next engine."""


@dataclass
class Verdicts:
    """The verdicts of all laws on an implementation, on one engine."""

    tallies: dict[str, Tally]  # what was checked, by law, with the outcome
    violations: list[LawViolation] = field(default_factory=list)  # the smallest case of each cause, as found
    empty: list[str] = field(default_factory=list)  # why a law that applies held on nothing
    errors: list[SuiteError] = field(default_factory=list)  # errors of the suite itself
    left_out: str = ""  # which laws were not checked, since the values are wrong
    ended: str = ""  # after how many structures of how many the time ran out, if it did


def chosen_laws(laws: str | Iterable[str] | None) -> list[Law]:
    """The laws of these names, all for None; raises GivenError for an unknown one, or none."""
    chosen = split_names("laws", laws, LAWS)
    if unknown := [name for name in chosen if name not in LAWS]:
        raise GivenError(f"laws={unknown[0]!r}: no such law; {suggestion.did_you_mean(unknown[0], LAWS, of='some of')}")
    if not chosen:
        raise GivenError(f"laws={chosen!r}: expected some of {', '.join(LAWS)}")
    return [law for name, law in LAWS.items() if name in chosen]


def engines_for(implementation: Implementation, laws: Sequence[Law]) -> list[str]:
    """The engines on which a law applies; raises GivenError if there is none."""
    found = [engine for engine in ENGINES if applicable_laws(implementation, engine, laws)]
    if not found:
        raise GivenError(f"laws={[law.name for law in laws]}: expected one that applies to {implementation}")
    return found


def check_laws(
    implementation: Implementation,
    engine: str,
    laws: Sequence[Law],
    reported: ReportedCauses,
    find: Callable[..., Finding],
    *,
    max_examples: int,
    on_case: OnCase = lambda law, case, breaks: None,
) -> Verdicts:
    """Checks all laws at once, and after each violation the others again.

    They are searched by `find`, as by `find_violation`, given `max_examples`, `is_reported` and `patience`.
    """

    def is_reported(violation: LawViolation) -> bool:
        if reported.covers(violation):
            return True
        on_case(violation.law, violation.case, True)
        return False

    start, left = time.process_time(), applicable_laws(implementation, engine, laws)
    verdicts = Verdicts(tallies_of(implementation, engine, left))
    while left:
        for law in [law for law in left if reported.decide(law)]:
            del verdicts.tallies[law.name]
            verdicts.left_out += f", {law.name}" if verdicts.left_out else f"{LEFT_OUT}: {law.name}"
            left.remove(law)
        if not left:
            break
        try:
            patience = 40 if reported.held_on_nothing else MAX_UNSUPPORTED
            found = find(left, max_examples=drawn_on(engine, max_examples), is_reported=is_reported, patience=patience)
        except SuiteError as error:
            verdicts.errors.append(error)
            broken = error.law or left[0].name
        else:
            for name, tally in found.tallies.items():
                verdicts.tallies[name].add(tally)
            verdicts.ended = verdicts.ended or found.ended
            if found.violation is None:
                break
            verdicts.violations.append(found.violation)
            reported.add(found.violation)
            broken = found.violation.law.name
        verdicts.tallies[broken].outcome = "failed"
        dead = bool(verdicts.violations) and verdicts.violations[-1].kind in DEATHS  # it would only die again
        left = [] if dead else [law for law in left if law.name != broken]
        max_examples = max(1, max_examples // SHORTER)
    first = next(iter(verdicts.tallies.values()), None)
    if verdicts.left_out and first is not None:
        first.finding("", f"{engine}: {verdicts.left_out}")
    for law in applicable_laws(implementation, engine, laws):
        if law.name in verdicts.tallies and verdicts.tallies[law.name].outcome != "failed":
            _require_held(law, implementation, verdicts, reported)
    if first is not None:  # of the processor: machines are busy with other things
        first.seconds = time.process_time() - start
    return verdicts


def _require_held(law: Law, implementation: Implementation, verdicts: Verdicts, reported: ReportedCauses) -> None:
    """Notes whether a law that nothing broke held, or does not apply."""
    tally = verdicts.tallies[law.name]
    try:
        if reason := require_held(law, implementation, tally):
            tally.skip(reason)
    except HeldOnNothing as error:
        if not tally.drawn_structures and (verdicts.violations or verdicts.ended):  # its search ended before
            why = f"{verdicts.violations[0].law.name} is broken" if verdicts.violations else "the time was spent"
            tally.skip(f"{law.name} ({tally.engine}): not checked: {why}", "unchecked")
            return
        values = verdicts.tallies.get(VALUE.name)
        few = tally.drawn_structures < 4  # that none of them is supported may be chance
        if few and law is not VALUE and values and (values.structures or values.defects):
            tally.skip(str(error).partition(": ")[2])
            return
        reported.held_on_nothing, tally.outcome = True, "failed"
        verdicts.empty.append(str(error))


def _merge(texts: Iterable[str]) -> list[str]:
    """Texts `NAME: LAW (ENGINE): WHY`, those that have the same name and reason in one line."""
    laws: dict[tuple[str, str], list[str]] = {}
    for text in texts:
        name, law, why = text.split(": ", 2)
        laws.setdefault((name, why), []).append(law)
    return [f"{name}: {', '.join(some)}: {why}" for (name, why), some in laws.items()]


def conclude(verdicts: Verdicts, implementation: Implementation) -> None:
    """Ends a test of an implementation: raises what was found, skips it if no law applies, passes it if all held."""
    __tracebackhide__ = True
    violations = verdicts.violations
    if len(violations) > 1:
        raise ExceptionGroup(f"{implementation} breaks {len(violations)} laws", violations)
    if violations:
        raise violations[0] from violations[0].__cause__
    if verdicts.errors:
        raise verdicts.errors[0]
    if verdicts.empty:
        raise HeldOnNothing("\n".join(_merge(verdicts.empty)))
    if not any(tally.outcome == "passed" for tally in verdicts.tallies.values()):
        reasons = [reason for tally in verdicts.tallies.values() for reason in tally.findings]
        pytest.skip("; ".join(reasons) or verdicts.left_out or f"no law applies to {implementation}")


def check_here(
    implementation: Implementation,
    engine: str,
    laws: Sequence[Law],
    reported: ReportedCauses,
    scope: Scope,
    *,
    max_examples: int,
    **how: Any,
) -> Verdicts:
    """Checks laws in this process, with other arguments as `find_violation` takes them."""
    with Progress(f"check {implementation}", 1, []) as progress:
        progress.engine(engine, max_examples)
        search = {"engine": engine_named(engine), "scope": scope, "before": progress.before, **how}
        find = partial(find_violation, implementation=implementation, **search)
        return check_laws(
            implementation, engine, laws, reported, find, max_examples=max_examples, on_case=progress.case
        )


@dataclass
class Searches:
    """The searches of a check: in this process where the interpreter runs, in a child where XLA compiles."""

    implementation: Implementation
    reported: ReportedCauses
    random_seed: int | None  # as `find_violation` takes it
    progress: Progress
    reason: str = ""  # why XLA compiles in this process as well, which it may end; empty: it does not

    def __post_init__(self) -> None:
        if jax.default_backend() != "cpu":
            self.reason = f"the devices of platform {jax.default_backend()} are this process's"
        elif multiprocessing.current_process().daemon:
            self.reason = "it is a daemonic process, which has no children"

    def find(self, engine: str, until: float | None, laws: Sequence[Law], **limits: Any) -> Finding:
        """Searches on an engine, until the time that `find_violation` takes."""
        here = partial(
            find_violation, laws, self.implementation, engine_named(engine), scope_of(engine),
            random_seed=self.random_seed, until=until, before=self.progress.before, **limits,
        )  # fmt: skip
        if self.reason:
            return here()
        if engine != "xla":
            with suppress(CompiledElsewhere), COMPILER.only_interpreting():  # unless the interpreter lacks something
                found = here()
                if found.violation is not None and found.violation.diagnosis is None:
                    found.violation.diagnosis = self._state_elsewhere(found.violation)
                return found
        limits["is_reported"] = self.reported.covers  # which, unlike the other, can be sent
        task = self._task(laws, engine, diagnose=find_diagnosis, until=until, **limits)
        try:
            found = check_isolated(task, self.progress.case)
        except (NotSent, NeverBegan) as error:
            self.reason = str(error)
            return here()
        odd = found.violation
        # JAX may lack the classes of the function in the other process
        if odd is None or odd.kind not in ("raises", "tree") or self.reported.covers(odd):
            return found
        again = here()
        if again.violation is None:
            self.reason = f"in another, {self.implementation} {odd.finding}"
        return again

    def _task(self, laws: Sequence[Law], engine: str, *, max_examples: int, **more: Any) -> Task:
        """The task of a child that checks laws on an engine."""
        options = {**jax.config.values, "jax_platforms": "cpu", "jax_num_cpu_devices": len(jax.devices())}
        names, given, scope = tuple(law.name for law in laws), Here(self.implementation), scope_of(engine)
        return Task(given, names, engine, scope, max_examples, self.random_seed, "cpu", options=options, **more)

    def _state_elsewhere(self, violation: LawViolation) -> list[str] | None:
        """The diagnosis of a violation that another process does not show, where other calls came before."""
        if self.reported.covers(violation) or violation.leaks or violation.case.mesh.size > LARGE:
            return None
        task = self._task([violation.law], violation.engine, max_examples=1, case=violation.case.to_json())
        with suppress(NotSent, NeverBegan, NotAFailure):
            return [HOLDS_ELSEWHERE] if check_isolated(task).violation is None else None
        return None


def find_diagnosis(violation: LawViolation) -> Sequence[str]:
    """The diagnosis of a violation; its modules are loaded only then, in the process in which it went wrong."""
    from shardproof.properties.report.failures import text

    return text.find_diagnosis(violation)


def scope_of(engine: str) -> Scope:
    """The meshes of the devices at hand, and larger ones of the interpreter."""
    devices = len(jax.devices())
    most = devices if engine == "xla" else max(devices, DEVICES)
    return Scope(max_devices=most, available=most, large=1024)


def check_implementation(
    implementation: Implementation,
    laws: str | Iterable[str] | None,
    *,
    max_examples: int,
    max_seconds: float | None,
    random_seed: int | None,
) -> Summary:
    """Does what `check` does, with any implementation."""
    __tracebackhide__ = True  # the report says what is wrong; the code that looked for it is no part of that
    check_draws(max_examples, random_seed, max_seconds)
    wanted = chosen_laws(laws)
    engines = engines_for(implementation, wanted)
    make_devices()
    reports, tallies = list[dict[str, str]](), list[Tally]()
    empty, notes, errors = list[str](), list[str](), list[SuiteError]()
    reported, began = ReportedCauses(), time.perf_counter()

    with Progress(f"check {implementation}", len(engines), devices_note()) as progress:
        searches = Searches(implementation, reported, random_seed, progress)
        if "xla" in engines and not searches.reason:
            isolation.start()  # it imports JAX while the interpreter runs
        for engine in engines:  # the interpreter first: what it finds stuck is not run
            drawn = max(1, max_examples // SHORTER) if reports else max_examples
            progress.engine(engine, drawn)
            if reported.stuck and engine != "simulate":
                notes.append(f"not run on {engine}, since {reported.stuck}")
                continue
            before = ReportedCauses({*reported.causes})
            share = 2 / 3 if engine != engines[-1] else 1.0  # XLA has the rest
            find = partial(searches.find, engine, None if max_seconds is None else began + share * max_seconds)
            verdicts = check_laws(
                implementation, engine, wanted, reported, find, max_examples=drawn, on_case=progress.case
            )
            for violation in verdicts.violations:
                from shardproof.properties.report.failures import text  # which takes a second

                reports.append(entry(violation, "") if before.covers(violation) else text.report(violation))
                before.add(violation)
                verdicts.tallies[violation.law.name].failure = reports[-1]
            errors += verdicts.errors
            empty += [f"{implementation}: {error.law} ({engine}): {error}" for error in verdicts.errors]
            empty += verdicts.empty
            tallies += verdicts.tallies.values()
            if verdicts.errors and implementation.program is not None:  # no engine changes what the user's own raises
                reported.stuck = reported.stuck or "its reference or predicate fails"
            if verdicts.ended:
                notes.append(f"{engine}: max_seconds={max_seconds:g} ended it {verdicts.ended}")
            if verdicts.left_out and not verdicts.tallies:
                notes.append(verdicts.left_out)
    empty = _merge(empty)
    if searches.reason and "xla" in engines:
        notes.append(f"compiled in this process, which ends if XLA aborts: {searches.reason}")
    if not reports and not empty and not any(t.verifies and not LAWS[t.law].partial for t in tallies):
        empty += [reason for t in tallies if t.outcome in IDLE for reason in t.findings]
    idle = [law.name for law in wanted if not any(law.applies_to(implementation, engine) for engine in ENGINES)]
    if laws and idle:
        notes.append(f"not checked, since they do not apply: {', '.join(idle)}")
    program = implementation.program
    wide = {array.dtype for array in program.signature.results} & {*WIDE} if program is not None else set()
    if wide and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        notes.append(
            f"results stated as {', '.join(sorted(wide))}: half as many bits where no argument has 64, as x64 is off"
        )
    for tally in tallies:
        tally.unclaimed, tally.stated = implementation.unclaimed, implementation.stated
    tallies.sort(key=lambda tally: [*LAWS].index(tally.law))
    summary = Summary(implementation, tuple(tallies), (*notes, *devices_note()))
    if reports or empty:
        broken = all(tally.outcome == "failed" for tally in tallies)
        about = summary.beside_the_table() if broken else str(summary)
        if errors and not reports and not any(tally.structures for tally in tallies):
            about = "\n".join(summary.machine)
        texts = [*map(group_text, by_cause(reports)), *empty, about]
        kind = AssertionError if reports or errors else HeldOnNothing
        raise kind("\n\n".join(filter(None, texts))) from (errors[0] if errors else None)
    return summary


def check(
    contract: str,
    function: Callable[..., Any],
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    max_seconds: float | None = None,
    random_seed: int | None = None,
    communication: str = "",
    overlap: str = "",
    claims: str | Iterable[str] | None = None,
    data: str | Iterable[str] | None = None,
) -> Summary:
    """Checks a device-local function against a contract, simulated and on the devices at hand; for use in any test.

    What is compiled runs in a child process, which serves further calls as well: if it aborts, hangs or takes too much
    memory, that is reported. The child imports the function from its module; one of a notebook or script, or inside
    another, is sent by value. What cannot be sent, or runs on GPUs or TPUs, is compiled in this process, and the
    summary says so.

    Arguments:
        contract: the contract's name, `"all_gather"` say.
        function: what satisfies it, called as `function(x, axis_name, **parameters)` in `shard_map`.
        laws: the laws to check; None: all of them.
        max_examples: how many structures each law is to hold on when interpreted, at least 1; compiled a sixth as many.
            Every law that applies is checked on each.
        max_seconds: how long it may draw; None: as long as it takes. The summary reports how far it came.
        random_seed: another seed draws other cases; None draws the same every time.
        communication: what it sends, as `--expect-communication` takes it: `"permute=p-1,bytes=(p-1)*n/p"`, and
            after `;grad:` what its gradient sends.
        overlap: how it hides that, as `--expect-overlap` takes it: `"exposed<=1/p"`.
        claims: what it supports beyond the contract's signature (see `FEATURES`): `("bool_sum", "groups")`, or
            `("all",)`; None: nothing. What it does not claim is not drawn.
        data: the kinds of data that it is run on, of exact, distinct, real, special (infinities, negative zeros), nan,
            scaled (up to the largest number), partial and zeros; None: all that the contract has. A running mean that
            gives NaN where infinity is right declines special; the summary names what is declined.

    Returns:
        What was checked, law by law: `print` it for a table of what held, and what was left out and why.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or, as a `HeldOnNothing`, if one held on nothing.
            An oracle or a law that fails itself is reported as an error of this suite, and the other laws are checked.
        ValueError: if there is no such contract, law, feature or kind of data, no law or example at all, the function
            cannot be called as they demand, or the expectation cannot be read.

    Example:
        >>> from jax import lax
        >>> check("all_gather", lax.all_gather, laws=["value"], max_examples=5)
    """
    __tracebackhide__ = True
    check_contract(contract)
    found = read_claims(contract, communication or None, overlap or None, claims, data)
    check_signature(contract, function, found["features"])
    implementation = dataclasses.replace(user_implementation(contract, function), **found)
    with warn_once():
        return check_implementation(
            implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
        )


def check_program(
    function: Callable[..., Any] | Program,
    reference: Callable[..., Any] | None = None,
    *,
    laws: str | Iterable[str] | None = None,
    max_examples: int = EXAMPLES,
    max_seconds: float | None = None,
    random_seed: int | None = None,
    **description: Unpack[Description],
) -> Summary:
    """Checks a sharded function against the same on whole arrays: values, gradients, types, on any mesh and sharding.

    Arguments:
        function: what is checked; or a `Program`, which describes it.
        reference: the same on whole arrays; or, where results are right only up to a relation, `holds=` in its place.
        laws: as `check` takes them.
        max_examples: as `check` takes it.
        max_seconds: as `check` takes it.
        random_seed: as `check` takes it.
        description: what a `Program` takes: `arguments`, `results`, and what the function needs.

    Returns:
        What was checked, law by law.

    Raises:
        AssertionError: with the whole report, if a law does not hold, or held on nothing.
        ValueError: for a description that cannot be read, or functions that cannot be called so.

    Example:
        >>> import jax
        >>> def loss(x, w, *, data):
        ...     return jax.lax.pmean(((x @ w) ** 2).mean(), data)
        >>> def unsharded(x, w):
        ...     return ((x @ w) ** 2).mean()
        >>> summary = check_program(
        ...     loss, unsharded, arguments=("batch@data k", "k n"), results="", laws=["value"], max_examples=5
        ... )
    """
    __tracebackhide__ = True
    if isinstance(function, Program):
        if reference is not None or description:
            raise ValueError(f"{function.name}: expected nothing beside a Program, which describes it")
        program = function
    else:
        known = {each.name: each for each in dataclasses.fields(Program) if each.name not in ("function", "reference")}
        if unknown := [name for name in description if name not in known]:
            own = ("laws", "max_examples", "max_seconds", "random_seed")
            hint = suggestion.did_you_mean(unknown[0], [*known, *own], of="some of")
            if unknown[0] in ("engine", "engines"):
                hint = f"it runs on {' and '.join(ENGINES)}, and `pytest --engine` runs a program_test on one"
            raise ValueError(f"{unknown[0]}: check_program has no such argument; {hint}")
        if reference is None and "holds" not in description:
            raise ValueError("reference: expected the same function on whole arrays, or holds=, a predicate of results")
        missing = [name for name in known if known[name].default is dataclasses.MISSING and name not in description]
        if missing:
            raise ValueError(f"{missing[0]}: is missing: a description of each array, as 'batch@data n'")
        program = Program(function, reference, **description)
    make_devices()  # before anything is traced
    with warn_once():
        return check_implementation(
            program.implementation, laws, max_examples=max_examples, max_seconds=max_seconds, random_seed=random_seed
        )
