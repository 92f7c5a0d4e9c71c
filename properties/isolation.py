"""Checking a function in a process of its own: one that aborts, hangs or eats memory is a result, not the end.

The child draws, checks and shrinks as `find_violation` does, and names every case before it runs
it. The parent watches: when the child dies, stands still, or grows beyond all measure, the case
that it named last is what did it.
"""

import dataclasses
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

from properties.cases import Case
from properties.contracts import Scope
from properties.engines import engine_named
from properties.failures import FOLDER
from properties.failures.text import origin
from properties.given import Given
from properties.implementations import Implementation
from properties.known_defects import fatal
from properties.laws.violation import LawViolation
from properties.search import Finding, find_violation
from properties.tally import Tally
from properties.verification import LAWS

STALL_SECONDS = 40.0
"""How long one case may take; the dearest takes under 10 on a busy machine."""

MEMORY_BYTES = 6 * 2**30
"""How much memory the child may hold; it needs about half a GiB."""

RENDEZVOUS_SECONDS = (5, 15)
"""After the first, XLA:CPU warns of a collective that some devices do not reach; after the second more, it gives up."""

MOST_KNOWN = 20
"""How many cases that a known defect ends are left out before that is taken for a result."""

SMALLER = (1, 2)
"""The numbers of devices on which a crash is tried again, to find a smaller mesh."""


@dataclass(frozen=True)
class Task:
    """What the child is to check, and how much of it."""

    given: Given
    law: str
    engine: str
    scope: Scope
    max_examples: int
    random_seed: int | None
    platform: str
    known: Mapping[str, str] = field(default_factory=dict)
    """Cases, as JSON, that are not to be run again, and the known defects that ended the process on them."""


def check_isolated(task: Task) -> Finding:
    """`find_violation` in a child process; a crash, a hang and a lack of memory are violations too.

    A case on which a known defect of JAX or XLA ends the process is counted and left out.
    """
    found, died = _run(task)
    while died and found.violation and (defect := fatal(found.violation.case, died.words)):
        if found.violation.case.to_json() in task.known or len(task.known) == MOST_KNOWN:
            break
        task = dataclasses.replace(task, known={**task.known, found.violation.case.to_json(): defect.name})
        found, died = _run(task)
    if not died:
        return found
    for devices in SMALLER:  # Hypothesis cannot shrink what kills it
        if devices < min(task.scope.max_devices, found.tally.largest or task.scope.max_devices):
            smaller = dataclasses.replace(task, scope=dataclasses.replace(task.scope, max_devices=devices))
            again, died = _run(smaller)
            if died:
                return again
    return found


class Child:
    """A process that checks one task after another, until one kills it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self.process.kill()
        self.process.join()
        last_words(self.process.pid).unlink(missing_ok=True)
        self.connection.close()


_child: Child | None = None


def _run(task: Task) -> tuple[Finding, "_Death | None"]:
    global _child
    child = _child or Child()
    _child = child  # starting one costs as much as a small law, so it stays for the next
    implementation = task.given.load()
    start = time.perf_counter()
    child.connection.send(task)
    last: Case | None = None
    cases = 0
    while True:
        message = _receive(child)
        if isinstance(message, str):
            last, cases = Case.from_json(message), cases + 1
        elif isinstance(message, dict):
            return _finding(message, implementation, task), None
        else:
            break
    child.end()
    _child = None
    if last is None:
        raise RuntimeError(
            f"--impl={task.given}: the process that was to check it {message.reason} before the first case"
        )
    violation = LawViolation(implementation, task.law, last, message.reason)
    violation.engine, violation.registered = task.engine, task.law
    tally = Tally(implementation.contract, implementation.name, task.law, task.engine, cases, largest=last.mesh.size)
    seconds = time.perf_counter() - start
    return Finding(task.law, violation, tally, cases, seconds, seconds), message


@dataclass(frozen=True)
class _Death:
    reason: str
    words: bytes = b""


def _receive(child: Child) -> Any:
    """The child's next message, or how it died."""
    deadline = time.monotonic() + STALL_SECONDS
    while not child.connection.poll(0.1):
        if _memory(child.process.pid) > MEMORY_BYTES:
            return _Death(f"takes more than {MEMORY_BYTES // 2**30} GiB of memory")
        if time.monotonic() > deadline:
            return _Death(f"does not finish within {STALL_SECONDS:.0f} s: devices wait for one another, or for ever")
    try:
        return child.connection.recv()
    except (EOFError, ConnectionResetError):
        child.process.join()
        code = child.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = last_words(child.process.pid).read_bytes()
        if b"Termination timeout for" in words:
            return _Death(
                f"does not finish: devices wait for one another, and XLA gave up after {sum(RENDEZVOUS_SECONDS)} s"
            )
        return _Death(f"aborts the process ({how})", words)


def last_words(pid: int | None) -> Path:
    """Where a child's standard error goes."""
    return FOLDER.parent / f"isolated-{pid}.log"


def _memory(pid: int | None) -> int:
    """The resident memory of a process in bytes; 0 where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123 (no path object per poll)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _finding(message: dict[str, Any], implementation: Implementation, task: Task) -> Finding:
    """The child's finding, about the parent's own copy of the function."""
    violation = None
    if message["error"]:
        raise RuntimeError(f"--impl={task.given}: the process that was to check it failed:\n{message['error']}")
    if message["violation"] is not None:
        finding, law, case, data, difference, raised = message["violation"]
        violation = LawViolation(implementation, law, case, finding, data=data, difference=difference)
        violation.engine, violation.registered, violation.origin = task.engine, task.law, raised
    return Finding(
        task.law,
        violation,
        message["tally"],
        message["caught_after"],
        message["caught_seconds"],
        message["seconds"],
    )


def serve(connection: Connection) -> None:
    """Runs in the child: checks what it is sent, naming every case before it runs, and answers."""
    warn, give_up = RENDEZVOUS_SECONDS
    patience = (
        f"--xla_cpu_collective_call_warn_stuck_timeout_seconds={warn} "
        f"--xla_cpu_collective_call_terminate_timeout_seconds={give_up}"
    )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {patience}".strip()
    words = last_words(os.getpid())
    words.parent.mkdir(parents=True, exist_ok=True)
    with words.open("wb") as log:  # what XLA prints when it aborts fills screens
        os.dup2(log.fileno(), 2)
    started = False
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:  # the parent is done
            return
        if not started:
            jax.config.update("jax_platforms", {"gpu": "cuda"}.get(task.platform, task.platform))
            if task.platform == "cpu":
                jax.config.update("jax_num_cpu_devices", task.scope.available)
            started = True
        try:
            connection.send(_answer(task, connection.send))
        except Exception:
            connection.send({"error": traceback.format_exc()})


def _answer(task: Task, name: Callable[[str], None]) -> dict[str, Any]:
    """Checks one task, naming every case before it runs."""

    def before(case: Case) -> str | None:
        text = case.to_json()
        if text not in task.known:
            name(text)
        return task.known.get(text)

    found = find_violation(
        LAWS[task.law],
        task.given.load(),
        engine_named(task.engine),
        task.scope,
        max_examples=task.max_examples,
        random_seed=task.random_seed,
        before=before,
    )
    violation = found.violation
    report: dict[str, Any] = {
        "error": "",
        "violation": None,
        "tally": found.tally,
        "caught_after": found.caught_after,
        "caught_seconds": found.caught_seconds,
        "seconds": found.seconds,
    }
    if violation is not None:
        cause = violation.__cause__
        raised = "" if cause is None else "\n".join(origin(cause))
        report["violation"] = (
            violation.finding,
            violation.law,
            violation.case,
            violation.data,
            violation.difference,
            raised,
        )
    return report
