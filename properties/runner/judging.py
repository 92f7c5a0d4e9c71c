"""The verdict on one case, and on a law once all of its cases were judged."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from traceback import walk_tb

import jax
from hypothesis import currently_in_test_context, event, reject

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.communication.bounds import full_bytes
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import traced
from shardproof.properties.engines.simulate import (
    OF_THE_PROGRAM,
    CollectiveMismatch,
    InterpreterLimit,
    OrderDependent,
    UnwrittenRead,
    raised_in,
)
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.known_defects import DEFECTS, Defect, aborting, at_fault, excused, spared
from shardproof.properties.laws.communication import communication_of, compared_with, in_vain
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.law import Law
from shardproof.properties.precision.compiled import COMPILER
from shardproof.properties.precision.runs import Runs
from shardproof.properties.precision.sums import rounded_sums
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.precision import precision_of
from shardproof.properties.programs.program import Seen, WrongResult, forward
from shardproof.properties.programs.violation import Broken, Kind, NothingToCompare, NotRun, SuiteError
from shardproof.properties.runner.tally import DECLINED, Enough, HeldOnNothing, Tally, Verdict, traits
from shardproof.properties.runner.violation import LawViolation, origin_of

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
"""So many cases of which nothing can be told, whatever they are, end a search; the largest says what is sent."""

SHOWN_BY_DATA: tuple[Kind, ...] = ("deadlock", "order", "unwritten")
"""What a program does on some data sets, and not on others, where none is compared."""


def verify(
    law: Law,
    implementation: Implementation,
    case: Case,
    engine: Engine,
    tally: Tally,
    *,
    instead: int = 1,
    patience: int = ENOUGH,
    ended_by: str = "",
) -> Verdict:
    """Judges one case by a law and counts it.

    Inside of a Hypothesis test a case that the implementation does not support is rejected, and so is one that nothing
    at hand can run: another is drawn in its place.

    Arguments:
        law: the law.
        implementation: the implementation.
        case: the case.
        engine: what runs it.
        tally: where it is counted.
        instead: how many structures may be compiled because the interpreter lacks a rule.
        patience: how many unsupported cases end a search in which fewer than a tenth as many held.
        ended_by: the name of the known defect that ended a process on this case, which is not compiled again.

    Raises:
        LawViolation: if the law does not hold.
        SuiteError: if the suite itself fails on it.
        Enough: inside of a Hypothesis test, if so many cases were not supported, or tell nothing, that it is not worth
            drawing more.
    """
    drawn = currently_in_test_context()  # a replay draws nothing
    if drawn:
        for name, value in traits(case).items():
            event(f"{name}: {value}")
    before = engine.compilations + COMPILER.compilations
    can_compile = engine.name == "simulate" and "xla" in law.engines and max(case.mesh.devices) < len(jax.devices())
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
    except (LawViolation, SuiteError):
        tally.broken = True
        raise
    finally:
        tally.compilations += engine.compilations + COMPILER.compilations - before
    tally.note(verdict, case)
    if (verdict.kind == "held" or verdict.final) and law.name == "communication":
        ran = COMPILER if verdict.instead else engine
        with precision_of(case):
            counted = communication_of(implementation, case, ran)
        tally.sends(case, full_bytes(case), str(counted.cost), compared_with(implementation, case))
        added = in_vain(case, counted) if implementation.whole and counted.rewritten else ""
        if added:
            compiler = f"XLA of jaxlib {version('jaxlib')} ({jax.default_backend()})"
            tally.finding(str(case), f"{compiler} adds {added}, of which nothing is needed")
    if drawn and verdict.final and not tally.broken and sum(tally.not_run.values()) >= NOTHING:
        raise Enough
    if verdict.kind == "held" and law.name == "value" and implementation.program and not implementation.accumulator:
        for equation, sent in rounded_sums(Runs("value", implementation, case, []).program.closed_jaxpr):
            if sent:
                tally.finding(
                    str(case),
                    f"a part of a sum is rounded to {equation.outvars[0].aval.dtype} before it is sent, "
                    f"at {location(equation)}: that error grows with the mesh",
                )
    # the rest of the budget is drawn all the same where nothing can run any case, or no more may be compiled
    another = verdict.kind == "not run" and not (law.interpreted or spent or verdict.final)
    if drawn and (verdict.kind == "unsupported" or another):
        declined = sum(tally.unsupported.values())
        if not tally.broken and declined >= patience and declined > 10 * tally.structures:
            raise Enough
        reject()
    return verdict


@contextmanager
def whole_tracebacks() -> Iterator[None]:
    """JAX leaves its own frames in tracebacks: they tell its exceptions from those of a function."""
    before = getattr(jax.config, "jax_traceback_filtering")  # noqa: B009 (mypy does not know of it)
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def _judged(law: Law, implementation: Implementation, case: Case, engine: Engine, ended_by: str = "") -> Verdict:
    try:
        if ended_by:
            return _ended(law, implementation, case, engine, DEFECTS[ended_by])
        defect = aborting(law, implementation, case, engine)
        if defect is not None:
            return spared(defect, law, implementation, case)
        checked = law.check(implementation, case, engine)
        return Verdict("held", checked=int(checked), undecided=getattr(checked, "undecided", 0))
    except InterpreterLimit as error:
        return Verdict("not run", f"the interpreter cannot run {error.lacks}")
    except NotRun as error:
        return Verdict("not run", str(error), final=isinstance(error, NothingToCompare))
    except SuiteError:
        raise
    except NotImplementedError as error:
        first = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1].endswith("interpreters.mlir"):  # the platform has no lowering, whoever asks for it
            return Verdict("not run", first)
        return Verdict("unsupported", first, declined=law.partial and declines(implementation, case, engine))
    except Exception as error:
        verdict = excused(law, implementation, case, engine, error)
        if verdict is not None:
            return verdict
        origin = () if isinstance(error, Broken | WrongResult) else origin_of(error)
        broken = _broken(law, case, error)
        if broken.kind in SHOWN_BY_DATA and broken.data is None:
            broken.data = _first_that_raises(type(error), law, implementation, case, engine)
        raise LawViolation(implementation, law, case, engine.name, broken, origin=origin) from error


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
    """What an exception says of the implementation.

    Raises:
        SuiteError: nothing: it comes from this suite.
    """
    if isinstance(error, Broken):
        return error
    first = str(error).partition("\n")[0]
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
    return spared(defect, law, implementation, case)


def declines(implementation: Implementation, case: Case, engine: Engine) -> bool:
    """Whether the function raises NotImplementedError for a case, traced as it is, without any derivative."""
    plain = dataclasses.replace(case, chain=tuple(link.name for link in case.links if not link.derives))
    try:
        traced(forward(plain, implementation, Seen()), plain, engine)
    except NotImplementedError:
        return True
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
    only_reported = law.interpreted or (law.name == "communication" and implementation.communication is None)
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
    none = f"all {tally.excluded:,} that were drawn are excluded" if tally.excluded else "none was drawn"
    counted = "; ".join(tally.left_out()) or none
    if law.partial and not tally.not_run and 0 < tally.declined == sum(tally.unsupported.values()):
        return f"{where}: does not apply: every case was declined: {counted}"
    what = "nothing ran it" if tally.not_run and not tally.unsupported else "held on no case"
    raise HeldOnNothing(f"{told}: {what}: {counted}")
