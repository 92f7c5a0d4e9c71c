"""The process that checks a function, and names every case before it runs it; and how the parent watches it.

A process that waits for ever is distinguished from one that works for long.
"""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import jax

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.reading import one_line
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.precision.runs import SAMPLED
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Kind
from shardproof.properties.runner.judging import MAX_UNSUPPORTED, judge
from shardproof.properties.runner.platforms import use
from shardproof.properties.runner.preconditions import NotAFailure, check_case, check_oracle
from shardproof.properties.runner.search import Finding, find_violation
from shardproof.properties.runner.tally import Tally

GAVE_UP = b"Termination timeout for"
"""The words of XLA:CPU before it aborts the process, where some devices never reach a collective."""

START_SECONDS = 120.0  # of computing before the first case, as on imports of the user's module, and for a diagnosis
IDLE_SECONDS = 30.0  # of a case without using a processor; longer than XLA:CPU waits for a collective
BUSY_SECONDS = 30.0  # of a processor, used between two programs that are compiled, or samples that are run
WINDOW_SECONDS = 3.0  # over which use is measured: runtimes that wait wake up now and then
IDLE_SHARE = 0.02  # of a window, below which a process counts as idle; one that competes with many others gets more
MEMORY_BYTES = 6 * 2**30  # that the process may hold; it needs about half a GiB


@dataclass(frozen=True)
class Death:
    """The reason that a process no longer runs a case."""

    reason: str  # in a few words, for the report
    kind: Kind
    words: bytes = b""  # what the process printed last
    waits: bool = False  # whether devices wait for one another for ever
    busy: bool = False  # whether the process was still working


def patience(warn: int, give_up: int) -> str:
    """XLA's flags for the seconds until it warns of a stuck collective, and those until it gives up after that."""
    flag = "--xla_cpu_collective_call_{}_timeout_seconds={}"
    return f"{flag.format('warn_stuck', warn)} {flag.format('terminate', give_up)}"


class Watch:
    """Measures one process from the moment on which a case begins."""

    def __init__(self, pid: int, busy_seconds: float = BUSY_SECONDS) -> None:
        self.pid = pid
        self.limit = busy_seconds
        self.restart()

    def restart(self) -> None:
        """Begins another case."""
        self.busy = self.idle = 0.0
        self.since, self.used = time.monotonic(), processor_seconds(self.pid)

    def verdict(self) -> Death | None:
        """The reason to end the process, if there is one."""
        if memory(self.pid) > MEMORY_BYTES:
            return Death(f"takes more than {MEMORY_BYTES // 2**30} GiB of memory", "memory")
        now = time.monotonic()
        if now - self.since < WINDOW_SECONDS:
            return None
        used = processor_seconds(self.pid)
        passed, worked = now - self.since, used - self.used
        self.since, self.used = now, used
        self.busy += min(worked, passed)  # of several threads, the wall clock
        self.idle = self.idle + passed if worked < IDLE_SHARE * passed else 0.0
        if self.idle > IDLE_SECONDS:
            reason = f"does not finish: it waits, and has computed nothing for {IDLE_SECONDS:.0f} s"
            return Death(reason, "unfinished", waits=True)
        if self.busy > self.limit:
            return Death(f"does not finish: it still computes after {self.limit:.0f} s", "unfinished", busy=True)
        return None


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used, threads included; the wall clock where that is unknown."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 (no path object per poll)
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def memory(pid: int) -> int:
    """The resident memory of a process in bytes; 0 where that is unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def die_with_parent(parent: int) -> None:
    """Lets the kernel end this process when the one that started it ends, however that ends."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None, use_errno=True).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


RENDEZVOUS_SECONDS = (5, 15)
"""After the first, XLA:CPU warns of a collective that some devices do not reach; after the second more, it gives up."""

VIOLATED, WORKED = "violated", "worked"
"""Messages to the parent: the case that was named last breaks a law, and a smaller one is sought; one of `WORK` is
done, so that the time limit begins again. A number is the time limit from now on."""

WORK = ("/jax/core/compile/backend_compile_duration", SAMPLED)
"""Events of work that ends, however often it is done: XLA compiles hundreds of programs in a case without `jit`, and
samples of large arrays take longer than the function."""


class Source(Protocol):
    """The source of an implementation: a name that the child looks up as well, or one that is sent to it."""

    def load(self) -> Implementation:
        """The implementation."""


@dataclass(frozen=True)
class Task:
    """Laws that the child checks on drawn cases, or the first of them on one case, as JSON."""

    given: Source
    laws: tuple[str, ...]
    engine: str
    scope: Scope
    max_examples: int
    random_seed: int | None
    platform: str
    busy_seconds: float = BUSY_SECONDS
    # cases, as JSON, that are not to be run again, and the known defects that ended the process on them
    known: Mapping[str, str] = field(default_factory=dict)
    case: str = ""
    # finds out in words what is wrong, in the process in which it went wrong
    diagnose: Callable[[LawViolation], Sequence[str]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of JAX in the child, by their names
    # these three as `find_violation` takes them; all processes of a machine have one clock
    is_reported: Callable[[LawViolation], bool] | None = None
    patience: int = MAX_UNSUPPORTED
    until: float | None = None


@dataclass(frozen=True)
class Answer:
    """The finding, with the parts of the violation in place of it."""

    found: Finding
    law: str = ""  # its name
    case: str = ""  # as JSON
    violation: Mapping[str, Any] | None = None  # the other arguments of `LawViolation`


def serve(connection: Connection, words: str, parent: int) -> None:
    """Runs in the child: checks what it is sent, naming every case before it runs, and answers."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the parent's terminal: the parent ends it, or needs it once more
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {patience(*RENDEZVOUS_SECONDS)}".strip()
    with Path(words).open("wb") as log:  # what XLA prints when it aborts fills screens
        os.dup2(log.fileno(), 2)
    started, main = False, threading.get_ident()

    def worked(event: str, *_: Any, **__: Any) -> None:
        if event in WORK and threading.get_ident() == main:  # a callback may compile as well
            connection.send(WORKED)

    jax.monitoring.register_event_listener(worked)
    jax.monitoring.register_event_duration_secs_listener(worked)
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:  # the parent is done
            return
        try:
            for name, value in task.options.items():
                if jax.config.values[name] != value:
                    jax.config.update(name, value)
            if not started:
                use(task.platform)
                if task.platform == "cpu":
                    devices = task.options.get("jax_num_cpu_devices", task.scope.available)
                    jax.config.update("jax_num_cpu_devices", devices)
                started = True
            implementation = task.given.load()
            if implementation.given is None:  # a defect that is suspected may end this process, which is there for that
                implementation = replace(implementation, given=task.given)
            connection.send(task.busy_seconds)
            answer: Any = _answer(task, implementation, connection.send)
        except Exception as error:
            answer = _portable(error)
        connection.send(answer)


def _portable(error: Exception) -> bytes:
    """An exception that the parent raises again, with its traceback; as text where it cannot be pickled."""
    text = f"in the process that was to check it:\n{traceback.format_exc()}"
    error.add_note(text)
    try:
        content: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(content)
    except Exception:  # as one may raise anything that is made of other arguments than it has
        content = cloudpickle.dumps(RuntimeError(text))
    return content


def _answer(task: Task, implementation: Implementation, send: Callable[[Any], None]) -> Answer:
    """Checks one task, naming every case before it runs."""

    def before(law: Law, case: Case) -> str:
        text = case.to_json()
        send((law.name, text))  # even one that is known: it is traced and interpreted, which may end the process too
        return task.known.get(text, "")

    def is_reported(violation: LawViolation) -> bool:
        if task.is_reported is not None and task.is_reported(violation):
            return True
        send(VIOLATED)
        return False

    if task.case:
        case, law = Case.from_json(task.case, lambda name: implementation.contract), LAWS[task.laws[0]]
        found = check_case_again(law, implementation, case, task.engine, ended_by=before(law, case))
    else:
        found = find_violation(
            [LAWS[law] for law in task.laws],
            implementation,
            engine_named(task.engine),
            task.scope,
            max_examples=task.max_examples,
            random_seed=task.random_seed,
            before=before,
            is_reported=is_reported,
            patience=task.patience,
            until=task.until,
        )
    violation = found.violation
    if violation is None:
        return Answer(found)
    if task.diagnose is not None and not (task.is_reported is not None and task.is_reported(violation)):
        send(START_SECONDS)
        violation.diagnosis = task.diagnose(violation)  # here, since it runs the function again
    parts = {name: getattr(violation, name) for name in ("engine", "broken", "origin", "diagnosis", "evidence")}
    return Answer(replace(found, violation=None), violation.law.name, violation.case.to_json(), parts)


def check_case_again(
    law: Law, implementation: Implementation, case: Case, engine: str, *, ended_by: str = ""
) -> Finding:
    """Judges a recorded case; raises NotAFailure if it is none of its contract.

    Arguments:
        ended_by: the known defect that ended a process on it, or "".
    """
    tally = Tally(implementation.contract.name, implementation.name, law.name, engine)
    try:
        check_case(law.name, case)  # of a program's, no one could before it was imported
        check_oracle(law.name, case)
    except ValueError as error:
        raise NotAFailure(one_line(str(error))) from error
    try:
        judge(law, implementation, case, engine_named(engine), tally, ended_by=ended_by)
    except LawViolation as violation:
        return Finding(violation, {law.name: tally})
    return Finding(None, {law.name: tally})
