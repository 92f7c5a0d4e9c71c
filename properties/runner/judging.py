"""The verdict on one case, and on a law once all of its cases were judged."""

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb

import jax
from hypothesis import currently_in_test_context, event, reject

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import ready, traced, whole_tracebacks
from shardproof.properties.engines.simulate import (
    OF_THE_PROGRAM,
    CollectiveMismatch,
    InterpreterLimit,
    OrderDependent,
    UnwrittenRead,
    raised_in,
)
from shardproof.properties.engines.simulate.liveness import steps_of
from shardproof.properties.known_defects import (
    DEFECTS,
    Defect,
    at_fault,
    excuse,
    excuse_without_compiling,
    find_aborting,
)
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.law import Checked
from shardproof.properties.precision.compiled import COMPILER
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, WrongResult, forward, precision_of
from shardproof.properties.programs.violation import Broken, Kind, NotDifferentiable, NotRun, SuiteError
from shardproof.properties.runner.tally import DECLINED, Enough, HeldOnNothing, Tally, Verdict, traits
from shardproof.properties.runner.violation import LawViolation, origin_of, own_frames

OWN = (
    "shardproof.oracles.",
    "shardproof.properties.laws.",
    "shardproof.properties.contracts.",
    "shardproof.properties.cases.",
    "shardproof.properties.engines.",
    "shardproof.properties.communication.",
    "shardproof.properties.performance.",
    "shardproof.properties.precision.",
    "shardproof.properties.programs.expectation",
    "shardproof.properties.programs.transformations",
)
"""Where no exception is the implementation's, but for what says that a program, or what it returns, is wrong."""

ABORTS = "aborts the process"
"""What is found of a case that ended a process in the words of a known defect that is not at fault: it is not run
again, nor are smaller ones."""

ENOUGH = 400
"""So many unsupported cases end a search: of a function that supports one percent, one that held is among them."""


NOTHING = 20
"""So many cases of which a law can tell nothing, whatever they are, and it is asked no more; the largest says what is
sent."""

STEPS = 5_000
"""The most equations, as `steps_of` counts them, of all data sets of a case; there is always one."""

DECLINED_ALONE = "NotImplementedError without the transformations around the call"
"""Why a case is unsupported under which something else goes wrong."""

SHOWN_BY_DATA: tuple[Kind, ...] = ("deadlock", "order", "unwritten")
"""What a program does on some data sets, and not on others, where none is compared."""


def asked(implementation: Implementation, engine: str, laws: Sequence[Law] = (*LAWS.values(),)) -> list[Law]:
    """Those of some laws that have something to ask of an implementation on an engine."""
    return [law for law in laws if law.asks(implementation, engine)]


def tallies_of(implementation: Implementation, engine: str, laws: Sequence[Law]) -> dict[str, Tally]:
    """Nothing is counted yet of any of the laws."""
    return {law.name: Tally(implementation.contract.name, implementation.name, law.name, engine) for law in laws}


def verify(
    implementation: Implementation,
    case: Case,
    engine: Engine,
    *,
    laws: Sequence[Law] = (*LAWS.values(),),
    tallies: Mapping[str, Tally] | None = None,
    instead: int = 1,
    enough: float = math.inf,
    before: Callable[[Law, Case], str] = lambda law, case: "",
) -> dict[str, Verdict]:
    """Asks every law that applies to a case, and has something to ask of the implementation, in turn.

    They look at one trace, one run on all data, and one derivative.

    Arguments:
        tallies: where the verdict of each is counted.
        instead: how many structures may be compiled because the interpreter lacks a rule.
        enough: on how many structures a law has to hold to be asked no more.
        before: called with what each law is asked of; may name the known defect that ended a process on it.

    Returns:
        The verdict of each law that applies.

    Raises:
        LawViolation: if a law does not hold.
        SuiteError: if the suite itself fails on it.
    """
    counted = tallies_of(implementation, engine.name, laws) if tallies is None else tallies
    verdicts = {}
    for law in asked(implementation, engine.name, laws):
        looked_at, tally = law.of(case), counted[law.name]
        if looked_at is None or answered(tally, enough):
            continue
        known, made = before(law, looked_at), engine.compilations
        if not looked_at.forbidden:
            looked_at = on_fewer_sets(implementation, looked_at, engine)
        tally.compilations += engine.compilations - made
        verdicts[law.name] = judge(law, implementation, looked_at, engine, tally, instead=instead, ended_by=known)
    return verdicts


def answered(tally: Tally, enough: float) -> bool:
    """Whether a law is asked no more: it held on that many structures, or can tell nothing of so many cases."""
    underived = 0 if tally.structures or tally.defects else tally.underived
    told_nothing = max(tally.uncompared, underived) >= NOTHING
    return not tally.broken and (tally.structures >= enough or told_nothing)


def on_fewer_sets(implementation: Implementation, case: Case, engine: Engine) -> Case:
    """The case on as many of its data sets as `STEPS` allow, others in every case: of what takes long, one."""
    try:
        with precision_of(case):
            jaxpr = ready("value", implementation, case, engine).prepared.jaxpr
    except Exception:  # whatever it is, the law will say
        return case
    steps = 0.0 if jaxpr is None else steps_of(jaxpr, case.mesh.size)
    count = max(1, int(STEPS // max(steps, 1)))
    if count >= len(case.data):
        return case
    start = case.data[0].seed % len(case.data)
    others = [*case.data[start:], *case.data[:start]]
    if case.contract.oracle.generic:  # derivatives at small integers tell nothing where there are kinks
        others.sort(key=lambda data: data.kind == "exact")
    return dataclasses.replace(case, data=tuple(others[:count]))


def draw_another(
    verdicts: Mapping[str, Verdict],
    tallies: Mapping[str, Tally],
    *,
    patience: int = ENOUGH,
    instead: int = 0,
) -> None:
    """Rejects, in a Hypothesis test, a case of which no law says anything since it is not supported, or cannot be run.

    Arguments:
        patience: how many unsupported cases end a search in which fewer than a tenth as many held.
        instead: how many structures may be compiled because the interpreter lacks a rule.

    Raises:
        Enough: if so many were not supported that it is not worth drawing more.
    """
    kinds = {verdict.kind for verdict in verdicts.values()}
    spent = sum(sum(tally.instead.values()) for tally in tallies.values())
    lacking = "not run" in kinds and spent < instead and any(not one.final for one in verdicts.values())
    if any(tally.broken for tally in tallies.values()) or kinds & {"held", "excused"}:
        return
    if verdicts and not ("unsupported" in kinds or lacking):
        return
    declined = max(sum(tally.unsupported.values()) for tally in tallies.values())
    if declined >= patience and declined > 10 * max(tally.structures for tally in tallies.values()):
        raise Enough
    reject()


def judge(
    law: Law,
    implementation: Implementation,
    case: Case,
    engine: Engine,
    tally: Tally,
    *,
    instead: int = 1,
    ended_by: str = "",
) -> Verdict:
    """Judges one case by a law and counts it.

    Arguments:
        instead: how many structures may be compiled because the interpreter lacks a rule.
        ended_by: the name of the known defect that ended a process on this case, which is not compiled again.

    Raises:
        LawViolation: if the law does not hold.
        SuiteError: if the suite itself fails on it.
    """
    if currently_in_test_context():  # a replay draws nothing
        for name, value in traits(case).items():
            event(name, value)
    before = engine.compilations + COMPILER.compilations
    can_compile = engine.name == "simulate" and law.asks(implementation, COMPILER.name)
    can_compile = can_compile and max(case.mesh.devices) < len(jax.devices())
    # once a case has failed it must fail again, however much was spent: Hypothesis shrinks it
    spent = not tally.broken and sum(tally.instead.values()) >= instead
    try:
        with whole_tracebacks(), precision_of(case):
            verdict = _judged(law, implementation, case, engine, ended_by)
            if verdict.kind == "not run" and can_compile and not (spent or verdict.final):
                lacks, programs = verdict.reason, COMPILER.compilations
                verdict = _judged(law, implementation, case, COMPILER, ended_by)
                compiled = COMPILER.compilations > programs and verdict.kind != "unsupported"
                if compiled or verdict.kind == "held":
                    verdict = dataclasses.replace(verdict, instead=lacks)
    except SuiteError as error:
        tally.broken, error.law = True, law.name
        raise
    except LawViolation:
        tally.broken = True
        raise
    finally:
        tally.compilations += engine.compilations + COMPILER.compilations - before
    tally.note(verdict, case)
    return verdict


def _judged(law: Law, implementation: Implementation, case: Case, engine: Engine, ended_by: str = "") -> Verdict:
    try:
        if ended_by:
            return _ended(law, implementation, case, engine, DEFECTS[ended_by])
        defect = find_aborting(law, implementation, case, engine)
        if defect is not None:
            return excuse_without_compiling(defect, law, implementation, case)
        return _held(law.check(implementation, case, engine))
    except InterpreterLimit as error:
        return Verdict("not run", f"the interpreter cannot run {error.lacks}")
    except NotRun as error:
        return Verdict("not run", str(error), final=error.final, sent=error.sent)
    except SuiteError:
        raise
    except NotImplementedError as error:
        first = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1].endswith("interpreters.mlir"):  # the platform has no lowering, whoever asks for it
            return Verdict("not run", first)
        declined = law.partial and declines(implementation, case)
        if isinstance(error, NotDifferentiable) and not declined:
            return Verdict("unsupported", f"{error}{_line_of(error)}", underived=True)
        return Verdict("unsupported", first, declined=declined)
    except Exception as error:
        verdict = excuse(law, implementation, case, engine, error)
        if verdict is not None:
            return verdict
        if case.chain and declines(implementation, dataclasses.replace(case, chain=())):
            return Verdict("unsupported", DECLINED_ALONE, declined=True)  # where JAX raises before the function does
        origin = () if isinstance(error, Broken | WrongResult) else origin_of(error)
        broken = _broken(law, case, error)
        if broken.kind in SHOWN_BY_DATA and broken.data is None:
            broken.data = _first_that_raises(type(error), law, implementation, case, engine)
        raise LawViolation(implementation, law, case, engine.name, broken, origin=origin) from error


def _line_of(error: BaseException | None) -> str:
    """The line of the implementation that an exception is about, which JAX names by a cause where it traced before."""
    where = ""
    while error is not None:
        frame = next(reversed(own_frames(error)), None)
        where = where if frame is None else f", at {frame.filename}:{frame.lineno} ({frame.name})"
        error = error.__cause__
    return where


def _held(checked: int) -> Verdict:
    if not isinstance(checked, Checked):
        return Verdict("held", checked=checked)
    told = tuple(checked.findings)
    return Verdict(
        "held",
        checked=int(checked),
        undecided=checked.undecided,
        findings=told,
        sent=checked.sent,
        refused=checked.refused,
    )


def _first_that_raises(
    error: type[Exception], law: Law, implementation: Implementation, case: Case, engine: Engine
) -> Data | None:
    """The first data set of a case that raises such an exception by itself."""
    for data in case.data:
        try:
            law.check(implementation, dataclasses.replace(case, data=(data,)), engine)
        except error:
            return data
        except Exception:  # what else is wrong with this one is not what is told
            continue
    return None


def _broken(law: Law, case: Case, error: Exception) -> Broken:
    """What an exception says of the implementation; raises SuiteError if it comes from this suite."""
    if isinstance(error, Broken):
        return error
    first = str(error).partition("\n")[0]
    if not first and (frames := traceback.extract_tb(error.__traceback__)):  # as of JAX's own assertions
        first = f"{frames[-1].line}"
    told = f"{type(error).__name__}: {first}"
    if own(error):
        raise SuiteError(f"{law.name} fails, which is an error of this suite: {told}, on {case}") from error
    if isinstance(error, WrongResult):
        return Broken("tree", first)
    kinds: dict[type[Exception], Kind] = {
        CollectiveMismatch: "deadlock",
        OrderDependent: "order",
        UnwrittenRead: "unwritten",
    }
    kind: Kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), "raises")
    derived = any(frame.f_code is check_gradient.__code__ for frame, _ in walk_tb(error.__traceback__))
    return Broken(kind, f"raises {told}", of="gradient" if derived else "result")


def _ended(law: Law, implementation: Implementation, case: Case, engine: Engine, defect: Defect) -> Verdict:
    if at_fault(defect, law, implementation, case, engine, ended=True) is None:
        raise Broken("ended", ABORTS)
    return excuse_without_compiling(defect, law, implementation, case)


def declines(implementation: Implementation, case: Case) -> bool:
    """Whether the function raises NotImplementedError for a case, traced as it is, without any derivative."""
    plain = dataclasses.replace(case, chain=tuple(link.name for link in case.links if not link.derives))
    try:
        traced(forward(plain, implementation, Seen()), plain)
    except Exception as error:  # what else it raises says nothing of what it serves
        return isinstance(error, NotImplementedError)
    return False


def own(error: Exception) -> bool:
    """Whether an exception comes from this suite, and not from what it judges.

    What the compiled program raises may have no frame of JAX's in its traceback, only the engine's call.
    """
    of_the_program = (WrongResult, jax.errors.JaxRuntimeError, *OF_THE_PROGRAM)
    return not isinstance(error, of_the_program) and raised_in(error).startswith(OWN)


def require_held(law: Law, implementation: Implementation, tally: Tally) -> str:
    """A law that no case broke must have held on one, or not apply; returns why it does not, empty if it does.

    What a known defect excuses held without it. Where the law needs the interpreter, or what is sent cannot be told and
    the user expects nothing of it, that nothing could be run is reported, and no failure. A law of a part of the cases
    does not apply to a function that declines all of that part: an `all_reduce` of maxima has no gradients.

    Raises:
        HeldOnNothing: if it held on none; the message says what became of them.
    """
    where = f"{law.name} ({tally.engine})"
    told = f"{implementation}: {where}"
    declined = tally.exchanging.get("unsupported", 0)
    if tally.structures and declined and not {"held", "excused"} & set(tally.exchanging):
        if law.partial and declined == tally.exchanging.get(DECLINED, 0):
            return f"{where}: applies only to cases with one participant; {declined:,} with more were declined"
        raise HeldOnNothing(f"{told}: held only on cases with one participant; {declined:,} with more were unsupported")
    only_reported = law.optional(implementation)
    unrun = tally.exchanging.get("not run", 0)
    if tally.structures and unrun and not {"held", "excused"} & set(tally.exchanging) and not only_reported:
        what = f"{unrun:,} with more were not run: {max(tally.not_run, key=lambda reason: tally.not_run[reason])}"
        raise HeldOnNothing(f"{told}: held only on cases with one participant; {what}")
    if tally.structures or tally.defects:
        return ""
    if tally.not_run and not tally.unsupported and only_reported and not tally.uncompared:
        return ""
    if tally.uncompared:
        return f"{where}: {max(tally.not_run, key=lambda reason: tally.not_run[reason])}"
    if not tally.drawn_structures and not tally.excluded and (law.partial or only_reported):
        return f"{where}: no case was drawn to which it applies"
    none = f"all {tally.excluded:,} that were drawn are excluded" if tally.excluded else "none was drawn"
    counted = "; ".join(tally.left_out()) or none
    if law.partial and not tally.not_run and 0 < tally.declined == sum(tally.unsupported.values()):
        return f"{where}: does not apply: every case was declined: {counted}"
    if tally.underived == sum(tally.unsupported.values()) > 0:
        remedy = "say gradients=False, or " if implementation.program is not None else ""
        remedy += "take lax.stop_gradient of what goes into it where its derivative is none of the result's"
        raise HeldOnNothing(
            f"{told}: there is no gradient: {max(tally.unsupported, key=tally.unsupported.__getitem__)}: {remedy}"
        )
    what = "nothing ran it" if tally.not_run and not tally.unsupported else "held on no case"
    stated = f"; stated: {'; '.join(implementation.stated)}" if implementation.stated else ""
    raise HeldOnNothing(f"{told}: {what}: {counted}{stated}")
