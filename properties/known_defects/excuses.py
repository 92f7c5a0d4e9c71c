"""Excuses by known defects: only for what holds without the defect, on the very same case."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import ENGINES, Engine
from shardproof.properties.engines.engine import MODES, ready
from shardproof.properties.engines.simulate.errors import InterpreterLimit, raised_in
from shardproof.properties.known_defects.registry import DEFECTS, Defect, find_aborting
from shardproof.properties.laws.law import Check, Law, Verdict
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, NotRun, SuiteError

INTERPRETER = ENGINES["simulate"]()


def in_the_interpreter(law: Law) -> Check:
    """The check of a law by the interpreter alone; for the agreement of both engines, its part."""
    return law.check_simulated or law.check


def excuse(
    law: Law,
    implementation: Implementation,
    case: Case,
    engine: Engine,
    error: Exception,
    repaired: frozenset[str] = frozenset(),
) -> Verdict | None:
    """The verdict on a failure that a known defect, other than the `repaired` ones, explains.

    Returns:
        `excuse` if the law holds without the defect; `not run` if that cannot be determined, and the compiler refuses
        the program; None if no defect explains the failure.

    Raises:
        Broken: what breaks the law in the interpreter too, where a defect of the compiler's explains the failure.
    """
    for defect in DEFECTS.values():
        if defect.name in repaired or not defect.is_in(engine) or not defect.shows(case, error):
            continue
        primitive = at_fault(defect, law, implementation, case, engine, ended=True)
        if primitive is None:
            continue
        verdict = _without(defect, primitive, law, implementation, case, engine)
        if verdict is not None and defect.confirmed and verdict.kind == "excused":
            assert defect.repair is not None, defect.name
            others = partial(excuse, law, implementation, case, engine, repaired=repaired | {defect.name})
            with defect.repair(primitive):
                verdict = _judged(defect, partial(law.check, implementation, case, engine), others)
        if verdict is not None and verdict.kind == "excused" and defect.says is not None:
            programs = _programs(law, implementation, case, engine)
            program = next(one for one in programs if defect.at_fault(case, one) is not None)
            return dataclasses.replace(verdict, findings=(f"{defect.says(program)} (known defect {defect.name})",))
        if verdict is not None:
            return verdict
    return None


def find_fatal(case: Case, words: bytes) -> Defect | None:
    """The known defect that may have ended a process on this case, by the process's last words, if there is one.

    It may be of any engine, since programs without a rule in the interpreter are compiled in its process. `at_fault`
    decides in a process of its own whether the program is at fault.
    """
    dangerous = (one for one in find_aborting(case) if one.words and one.words.encode() in words)
    return next((one for one in dangerous if any(one.is_in(engine()) for engine in ENGINES.values())), None)


def excuse_without_compiling(defect: Defect, law: Law, implementation: Implementation, case: Case) -> Verdict:
    """The interpreter's verdict on a case that is not compiled because a defect would end the process.

    Communication that a compiler inserts is in no trace.

    Raises:
        Exception: if the law does not hold in the interpreter either.
    """
    if law.check_simulated is None and not law.applies_to(implementation, INTERPRETER.name):
        return _undecided(defect, f"what the law of {law.name} checks of a compiler")
    try:
        in_the_interpreter(law)(implementation, case, INTERPRETER)
    except InterpreterLimit as limit:
        return _undecided(defect, limit.lacks)
    return Verdict("excused", defect.name)


def _undecided(defect: Defect, lacks: str) -> Verdict:
    return Verdict("not run", f"{_named(defect)}; and the interpreter cannot run {lacks}")


def _named(defect: Defect) -> str:
    return f"known defect {defect.name}: {defect.sentence.rstrip('.')}"


def at_fault(
    defect: Defect, law: Law, implementation: Implementation, case: Case, engine: Engine, *, ended: bool = False
) -> Any:
    """The primitive at fault in a program of a case, or None; `ended`: the defect showed, or may end a process."""
    condition = defect.suspect if ended and defect.suspect is not None else defect.at_fault
    found = (condition(case, program) for program in _programs(law, implementation, case, engine))
    return next((primitive for primitive in found if primitive is not None), None)


def _programs(law: Law, implementation: Implementation, case: Case, engine: Engine) -> Iterator[Any]:
    """The programs of a law on a case: values under the chain, if JAX can trace that, and derivatives in both modes."""
    plain = dataclasses.replace(case, chain=(), manual=())
    try:
        yield _traced("value", implementation, case, engine)
    except Exception:  # a transformation may fail: the function is traced without it
        with contextlib.suppress(Exception):  # if that fails too, no defect is at fault
            yield _traced("value", implementation, plain, engine)
        return
    for one in (case, plain) if law.derives else ():  # one may fail to trace
        for kind in MODES:
            with contextlib.suppress(Exception):
                yield _traced(kind, implementation, one, engine)
                if kind == "gradient":  # it has both modes
                    return


def _traced(kind: str, implementation: Implementation, case: Case, engine: Engine) -> Any:
    """The jaxpr of a program; without `jit`, that of the interpreter."""
    jaxpr = ready(kind, implementation, case, engine).prepared.jaxpr
    return ready(kind, implementation, case, INTERPRETER).prepared.jaxpr if jaxpr is None else jaxpr


def _without(
    defect: Defect, primitive: Any, law: Law, implementation: Implementation, case: Case, engine: Engine
) -> Verdict | None:
    """The verdict without the defect: in the interpreter, or where that lacks a rule, by the compiler and repaired.

    A case may meet a defect of the compiler and one of JAX: without the one, the other must explain the failure.
    """
    inside_jax = not defect.engine and not defect.platform
    repaired = defect.repair(primitive) if defect.repair is not None else None
    check = in_the_interpreter(law)

    def checked() -> Verdict:
        with repaired if inside_jax and repaired is not None else contextlib.nullcontext():
            try:
                return check(implementation, case, INTERPRETER)
            except InterpreterLimit as limit:
                # without a repair the compiler refuses the program, whatever the function does
                if repaired is None or (inside_jax and engine.name == INTERPRETER.name):
                    return _undecided(defect, limit.lacks)
                with contextlib.nullcontext() if inside_jax else repaired:
                    return check(implementation, case, engine)

    def otherwise(error: Exception) -> Verdict | None:
        if inside_jax and repaired is None and defect.shows(case, error) and raised_in(error).startswith("jax."):
            return Verdict("not run", f"{_named(defect)}; and JAX cannot trace it")
        # it fails without the defect as well, which explains nothing unless another defect explains the rest
        if inside_jax or engine.name == INTERPRETER.name:
            return None
        other = excuse(law, implementation, case, INTERPRETER, error)
        if other is None and isinstance(error, Broken):  # this is the function's mistake, whatever the compiler says
            raise error
        return other

    return _judged(defect, checked, otherwise)


def _judged(
    defect: Defect, check: Callable[[], Verdict], otherwise: Callable[[Exception], Verdict | None]
) -> Verdict | None:
    """The verdict of a check without the defect: excused if it holds, otherwise that on its failure."""
    try:
        found = check()
    except SuiteError:
        raise
    except NotRun as error:
        without = "" if error.sent else f", without the known defect {defect.name}"
        return Verdict("not run", f"{error}{without}", final=error.final, sent=error.sent)
    except Exception as error:
        return otherwise(error)
    return Verdict("excused", defect.name) if found.kind == "held" else found
