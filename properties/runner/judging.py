"""The verdict on one case, and on a law once all of its cases were judged."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb

import jax
from hypothesis import currently_in_test_context, event, reject

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import Engine
from shardproof.properties.engines.engine import ready, sharing, trace, whole_tracebacks
from shardproof.properties.engines.simulate.errors import (
    OF_THE_PROGRAM,
    CollectiveMismatch,
    InterpreterLimit,
    OrderDependent,
    UnwrittenRead,
    raised_in,
)
from shardproof.properties.engines.simulate.jaxprs import STEPS, steps_of
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
from shardproof.properties.laws.law import LARGE, LEAKED, LawViolation, Verdict, first_line, origin_of, own_frames
from shardproof.properties.precision.compiled import COMPILER
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, WrongResult, forward, precision_of
from shardproof.properties.programs.violation import Broken, Kind, NotDifferentiable, NotRun, SuiteError
from shardproof.properties.runner.tally import (
    DECLINED,
    HeldOnNothing,
    StopDrawing,
    Tally,
    most_frequent,
    traits,
)

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
"""The modules whose exceptions are errors of this suite, but for those that say that a program or result is wrong."""

MAX_UNSUPPORTED = 400
"""How many unsupported cases end a search: of a function that supports one percent, one that held is among them."""

MAX_UNCOMPARED = 20
"""After how many cases that a law cannot compare with anything it is checked no more."""

Before = Callable[[Law, Case], str]
"""Called with each case before it runs; returns the name of the known defect that ended a process on it, or ""."""


def applicable_laws(implementation: Implementation, engine: str, laws: Sequence[Law] = (*LAWS.values(),)) -> list[Law]:
    """The laws that apply to an implementation on an engine."""
    return [law for law in laws if law.applies_to(implementation, engine)]


def tallies_of(implementation: Implementation, engine: str, laws: Sequence[Law]) -> dict[str, Tally]:
    """An empty tally for each of the laws."""
    return {law.name: Tally(implementation.contract.name, implementation.name, law.name, engine) for law in laws}


@sharing()
def verify(
    implementation: Implementation,
    case: Case,
    engine: Engine,
    *,
    laws: Sequence[Law],
    tallies: Mapping[str, Tally],
    instead: int,
    enough: int,
    before: Before,
) -> dict[str, Verdict]:
    """Judges a case by every law that applies, on one trace, one run on all data, and one derivative.

    Arguments:
        tallies: where the verdict of each is counted.
        instead: how many structures may be compiled because the interpreter lacks a rule.
        enough: on how many structures a law has to hold to be checked no more.

    Returns:
        The verdict of each law that applies; raises LawViolation if one does not hold, SuiteError if the suite fails.
    """
    verdicts = {}
    for law in applicable_laws(implementation, engine.name, laws):
        its, tally = law.of(case), tallies[law.name]
        if its is None or is_decided(tally, enough):
            continue
        known, made = before(law, its), engine.compilations
        steps = 0.0 if its.forbidden else _steps_of(implementation, its, engine)
        tally.compilations += engine.compilations - made
        if reason := _too_long(implementation, its, steps):
            verdicts[law.name] = Verdict("not run", reason, final=True)
            tally.note(verdicts[law.name], its)
            continue
        its = _with_fewer_sets(its, steps)
        verdicts[law.name] = judge(law, implementation, its, engine, tally, instead=instead, ended_by=known)
    return verdicts


def is_decided(tally: Tally, enough: int) -> bool:
    """True if a law need not be checked any more: it held on enough structures, or has nothing to compare."""
    underived = 0 if tally.structures or tally.defects else tally.underived
    nothing = max(tally.uncompared, underived) >= MAX_UNCOMPARED
    return not tally.broken and (tally.structures >= enough or nothing)


MOST_STEPS = 20 * STEPS
"""The most equations, as `steps_of` counts them, of a case on one data set, where nobody stated its long sides."""

TOO_LONG = f"a run takes more than {MOST_STEPS:,} steps, since"
LONG_SIDES, MANY_DEVICES = f"{TOO_LONG} sides are long; sizes= has such sides checked", f"{TOO_LONG} the mesh is large"

SHORT = 64
"""The longest side that is not a long one."""


def _too_long(implementation: Implementation, case: Case, steps: float) -> str:
    """Why a case of a user's program is not run that takes long, and that a smaller one can stand for; or nothing."""
    program = implementation.program
    if program is None or steps <= MOST_STEPS:
        return ""
    if case.mesh.size > LARGE:
        return MANY_DEVICES
    longest = max((n for operand in case.operands for n in operand.block), default=0)
    return LONG_SIDES if longest > SHORT and not program.sizes else ""


def _steps_of(implementation: Implementation, case: Case, engine: Engine) -> float:
    """The equations of the case on one data set, as `steps_of` counts them; 0 if that is not known."""
    try:
        with precision_of(case):
            jaxpr = ready("value", implementation, case, engine).prepared.jaxpr
    except Exception:  # whatever it is, the law will say
        return 0.0
    return 0.0 if jaxpr is None else steps_of(jaxpr, case.mesh.size)


def _with_fewer_sets(case: Case, steps: float) -> Case:
    """The case on as many of its data sets as `STEPS` allows: others in every case, one where that takes long."""
    count = max(1, int(STEPS // max(steps, 1)))
    if count >= len(case.data):
        return case
    start = case.data[0].seed % len(case.data)
    others = [*case.data[start:], *case.data[:start]]
    if case.contract.oracle.generic:  # of derivatives at small integers little is known
        others.sort(key=lambda data: data.kind == "exact")
    return dataclasses.replace(case, data=tuple(others[:count]))


def reject_if_unsupported(
    verdicts: Mapping[str, Verdict], tallies: Mapping[str, Tally], *, patience: int, instead: int
) -> None:
    """Rejects, in a Hypothesis test, a case that no law decides, since it is not supported, or cannot be run.

    Arguments:
        patience: how many unsupported cases end a search in which fewer than a tenth as many held: `StopDrawing`.
        instead: how many structures may be compiled because the interpreter lacks a rule.
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
        raise StopDrawing
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
    """Judges one case by a law and counts it; raises LawViolation if it does not hold, SuiteError if the suite fails.

    Arguments:
        instead: how many structures may be compiled because the interpreter lacks a rule.
        ended_by: the name of the known defect that ended a process on this case, which is not compiled again.
    """
    if currently_in_test_context():  # a replay draws nothing
        for name, value in traits(case).items():
            event(name, value)
    before = engine.compilations + COMPILER.compilations
    can_compile = engine.name == "simulate" and law.applies_to(implementation, COMPILER.name)
    can_compile = can_compile and max(case.mesh.devices) < len(jax.devices())
    # once a case has failed it must fail again, however much was spent: Hypothesis shrinks it
    spent = not tally.broken and sum(tally.instead.values()) >= instead
    try:
        with whole_tracebacks(), precision_of(case):
            verdict = _judge(law, implementation, case, engine, ended_by)
            if verdict.kind == "not run" and can_compile and not (spent or verdict.final):
                lacks, programs = verdict.reason, COMPILER.compilations
                verdict = _judge(law, implementation, case, COMPILER, ended_by)
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


def _judge(law: Law, implementation: Implementation, case: Case, engine: Engine, ended_by: str = "") -> Verdict:
    try:
        defect = _ending(law, implementation, case, engine, ended_by)
        if defect is not None:
            return excuse_without_compiling(defect, law, implementation, case)
        return law.check(implementation, case, engine)
    except InterpreterLimit as error:
        return Verdict("not run", f"the interpreter cannot run {error.lacks}")
    except NotRun as error:
        return Verdict("not run", str(error), final=error.final, sent=error.sent)
    except SuiteError:
        raise
    except NotImplementedError as error:
        first = first_line(error)
        frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
        if frames[-1].endswith("interpreters.mlir"):  # the platform has no lowering, for any program
            return Verdict("not run", first)
        declined = law.partial and declines(implementation, case)
        if isinstance(error, NotDifferentiable) and not declined:
            return Verdict("unsupported", f"{error}{_line_of(error)}", underived=True)
        return Verdict("unsupported", first, declined=declined)
    except Exception as error:
        try:
            verdict = excuse(law, implementation, case, engine, error)
        except Broken as wrong:
            verdict, error = None, wrong
        if verdict is not None:
            return verdict
        if case.chain and declines(implementation, dataclasses.replace(case, chain=())):
            reason = "NotImplementedError without the transformations around the call"
            return Verdict("unsupported", reason, declined=True)  # where JAX raises before the function does
        origin = () if isinstance(error, Broken | WrongResult) else origin_of(error)
        broken = _broken(law, case, error)
        if broken.kind in ("deadlock", "order", "unwritten") and broken.data is None:
            broken.data = _first_that_raises(type(error), law, implementation, case, engine)
        raise LawViolation(implementation, law, case, engine.name, broken, origin=origin) from error


def _ending(law: Law, implementation: Implementation, case: Case, engine: Engine, ended_by: str) -> Defect | None:
    """The known defect that would end the process, or ended it; raises Broken if that one is not at fault."""
    if not ended_by:
        # if a user's function runs in this process, a suspected defect is enough
        here = not implementation.built_in and implementation.given is None
        suspected = (defect for defect in find_aborting(case) if defect.is_in(engine))
        found = (one for one in suspected if at_fault(one, law, implementation, case, engine, ended=here) is not None)
        return next(found, None)
    if at_fault(DEFECTS[ended_by], law, implementation, case, engine, ended=True) is None:
        raise Broken("ended", "aborts the process")  # neither this case nor a smaller one is run again
    return DEFECTS[ended_by]


def _line_of(error: BaseException | None) -> str:
    """The line of the implementation where an exception was raised: that of its cause, where JAX traced before."""
    where = ""
    while error is not None:
        frame = next(reversed(own_frames(error)), None)
        where = where if frame is None else f", at {frame.filename}:{frame.lineno} ({frame.name})"
        error = error.__cause__
    return where


def _first_that_raises(
    error: type[Exception], law: Law, implementation: Implementation, case: Case, engine: Engine
) -> Data | None:
    """The first data set of a case that raises such an exception by itself."""
    for data in case.data:
        try:
            law.check(implementation, dataclasses.replace(case, data=(data,)), engine)
        except error:
            return data
        except Exception:  # another mistake than the one that is reported
            continue
    return None


def _broken(law: Law, case: Case, error: Exception) -> Broken:
    """The mistake of the implementation that an exception shows; raises SuiteError if it comes from this suite."""
    if isinstance(error, Broken):
        return error
    first = message_of(error)
    raised = f"{type(error).__name__}: {first}"
    if own(error):
        raise SuiteError(f"{law.name} fails, which is an error of this suite: {raised}, on {case}") from error
    if isinstance(error, WrongResult):
        return Broken("tree", first)
    kinds: dict[type[Exception], Kind] = {
        CollectiveMismatch: "deadlock",
        OrderDependent: "order",
        UnwrittenRead: "unwritten",
    }
    kind: Kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), "raises")
    derived = any(frame.f_code is check_gradient.__code__ for frame, _ in walk_tb(error.__traceback__))
    return Broken(kind, f"raises {raised}", of="gradient" if derived else "result")


def message_of(error: Exception) -> str:
    """The first line of an exception's message; in words where JAX finds a leaked tracer or an axis that is unknown."""
    first = str(error).partition("\n")[0]
    leaked = isinstance(error, jax.errors.UnexpectedTracerError) or "should match the aval mesh" in first
    if not first and (frames := [*walk_tb(error.__traceback__)]):  # as of JAX's own assertions
        first = f"{traceback.extract_tb(error.__traceback__)[-1].line}"
        known = frames[-1][0].f_locals
        if "assert set(new_axes) == set(axes)" in first and {"axes", "cur_mesh"} <= {*known}:
            unknown = [str(axis) for axis in known["axes"] if axis not in known["cur_mesh"].axis_names]
            first = f"unbound axis name: {', '.join(unknown)}"
            leaked = any(frame.f_code.co_name == "auto_insert_reshard" for frame, _ in frames)  # the type of an operand
    return LEAKED if leaked else first


def declines(implementation: Implementation, case: Case) -> bool:
    """True if the function raises NotImplementedError for a case when it is traced without any derivative."""
    plain = dataclasses.replace(case, chain=tuple(link.name for link in case.links if not link.derives))
    try:
        trace(forward(plain, implementation, Seen()), plain.mesh)
    except Exception as error:  # other exceptions say nothing about what it supports
        return isinstance(error, NotImplementedError)
    return False


def own(error: Exception) -> bool:
    """True if an exception comes from this suite, and not from what it judges.

    What the compiled program raises may have no frame of JAX's in its traceback, only the engine's call.
    """
    of_the_program = (WrongResult, jax.errors.JaxRuntimeError, *OF_THE_PROGRAM)
    return not isinstance(error, of_the_program) and raised_in(error).startswith(OWN)


def require_held(law: Law, implementation: Implementation, tally: Tally) -> str:
    """Checks that a law that no case broke held on one; returns why it does not apply, or "".

    A structure that a known defect excuses held without it. A law that needs the interpreter, or whose communication is
    unknown where the user expects nothing of it, may go unrun. A law of a part of the cases
    does not apply to a function that declines all of that part: an `all_reduce` of maxima has no gradients.

    Raises:
        HeldOnNothing: if it held on none; the message says what became of them.
    """
    where = f"{law.name} ({tally.engine})"
    start = f"{implementation}: {where}"
    may_go_unrun = law.optional(implementation)
    if tally.structures and not {"held", "excused"} & set(tally.exchanging):
        declined, unrun = (tally.exchanging.get(kind, 0) for kind in ("unsupported", "not run"))
        only = f"{start}: held only on cases with one participant"
        if declined and law.partial and declined == tally.exchanging.get(DECLINED, 0):
            return f"{where}: applies only to cases with one participant; {declined:,} with more were declined"
        if declined:
            raise HeldOnNothing(f"{only}; {declined:,} with more were unsupported")
        if unrun and not may_go_unrun:
            raise HeldOnNothing(f"{only}; {unrun:,} with more were not run: {most_frequent(tally.not_run)}")
    if tally.structures or tally.defects:
        return ""
    if tally.uncompared:
        return f"{where}: {most_frequent(tally.not_run)}"
    if tally.not_run and not tally.unsupported and may_go_unrun:
        return ""
    if not tally.drawn_structures and not tally.excluded and (law.partial or may_go_unrun):
        return f"{where}: no case was drawn to which it applies"
    none = f"all {tally.excluded:,} that were drawn are excluded" if tally.excluded else "none was drawn"
    counted = "; ".join(tally.left_out()) or none
    if law.partial and not tally.not_run and 0 < tally.declined == sum(tally.unsupported.values()):
        return f"{where}: does not apply: every case was declined: {counted}"
    if tally.underived == sum(tally.unsupported.values()) > 0:
        remedy = "say gradients=False, or " if implementation.program is not None else ""
        remedy += "take lax.stop_gradient of what goes into it where its derivative is none of the result's"
        raise HeldOnNothing(f"{start}: there is no gradient: {most_frequent(tally.unsupported)}: {remedy}")
    what = "nothing ran it" if tally.not_run and not tally.unsupported else "held on no case"
    stated = f"; stated: {'; '.join(implementation.stated)}" if implementation.stated else ""
    raise HeldOnNothing(f"{start}: {what}: {counted}{stated}")
