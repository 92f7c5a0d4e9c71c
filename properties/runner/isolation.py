"""Checking a function in a process of its own: one that aborts, hangs or eats memory is a result, not the end.

The function is sent by the name that a module has for it, others by value. The child draws, checks and shrinks as
`find_violation` does, and names every case before it runs it. The parent watches: when the child dies, waits for ever,
computes for ever or takes too much memory, the cause is the case that it named last.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
from jax.extend.core import Primitive

from shardproof.properties.cases.case import Case
from shardproof.properties.known_defects import find_fatal
from shardproof.properties.laws import LAWS, Law
from shardproof.properties.laws.law import LARGE, LawViolation, first_line
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.child import (
    GAVE_UP,
    MEMORY_BYTES,
    RENDEZVOUS_SECONDS,
    START_SECONDS,
    VIOLATED,
    WORKED,
    Answer,
    Death,
    Source,
    Task,
    Watch,
    memory,
    serve,
)
from shardproof.properties.runner.search import Finding
from shardproof.properties.runner.tally import Tally


class NotSent(RuntimeError):
    """A function cannot be sent to another process; the message says why."""


@dataclass(frozen=True, eq=False)
class Here:
    """An implementation of this process, which is pickled as an `Arrived`."""

    implementation: Implementation

    def load(self) -> Implementation:
        """The implementation."""
        return self.implementation

    def __reduce__(self) -> tuple[Any, ...]:
        content = BytesIO()
        try:
            _Pickler(content).dump(self.implementation)
        except Exception as error:  # anything that a function refers to may refuse
            raise NotSent(first_line(error).removeprefix("NotSent: ")) from error
        return Arrived, (content.getvalue(), tuple(sys.path), str(Path.cwd()))

    def __str__(self) -> str:
        return str(self.implementation)


@dataclass(frozen=True)
class Arrived:
    """An implementation of the parent process."""

    content: bytes  # the implementation, pickled
    path: tuple[str, ...]  # the parent's `sys.path`
    folder: str  # the parent's working directory

    def load(self) -> Implementation:
        """The implementation, for which modules are imported; raises NotSent if that fails."""
        os.chdir(self.folder)
        sys.path[:] = self.path
        try:
            found: Implementation = cloudpickle.loads(self.content)
        except Exception as error:  # whatever an import raises
            raise NotSent(first_line(error).removeprefix("NotSent: ")) from error
        if found.program is None:
            return found
        described = found.program.signature
        if len(described.names) != len(described.arrays):  # they are leaves here
            raise NotSent("classes of its arguments are registered with JAX in the main module alone")
        return replace(found, contract=found.program.contract)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no annotations
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Primitive):  # JAX finds its rules by its identity
            raise NotSent(f"it refers to the primitive {value} itself")
        if isinstance(value, CodeType):  # which keeps the name of its file, since reports name lines
            make, parts = self.dispatch_table[CodeType](value)
            return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)
        return super().reducer_override(value)


SMALLER = (1, 2)
"""The numbers of devices on which a crash is tried again, to find a smaller mesh."""


OnCase = Callable[[Law, Case, bool], None]
"""Called with a law, each case that it is checked on, and whether that breaks it, before the smallest one is found."""


class NeverBegan(RuntimeError):
    """The process that was to check a function ended before its first case; the message says how."""


def check_isolated(task: Task, on_case: OnCase = lambda law, case, breaks: None) -> Finding:
    """Runs `find_violation` in a child process; a crash, a hang and a lack of memory are violations too.

    A case on which a known defect of JAX or XLA ends the process is counted and left out. One that is still being
    computed is no violation unless its mesh and its sizes are small: others are left out, and the report says so.

    Raises:
        NotSent: if the function cannot be sent to the child.
        NeverBegan: if the child ended before its first case.
    """
    found, death = _past_known_defects(task, on_case)
    if task.case:
        return found
    unfinished: list[Case] = []  # a right function may be slow on large meshes, or take long to compile
    without = ""
    while death and death.busy and found.violation:
        size, scope = found.violation.case.mesh.size, task.scope
        if LARGE < size <= scope.large:
            scope = replace(scope, large=max(LARGE, size // 4))
            without = f"meshes of more than {scope.large} devices"
        elif not scope.small:
            scope, without = replace(scope, small=True), "long sides"
        else:  # its sizes are small, and so is its mesh
            break
        unfinished.append(found.violation.case)
        task = replace(task, scope=scope)
        found, death = _past_known_defects(task, on_case)
    if unfinished:
        reason = f"not finished after {task.busy_seconds:.0f} s, so without {without}"
        first = next(iter(found.tallies.values()))
        first.not_run[reason] = len(unfinished)
        first.first[reason] = str(unfinished[0])
    if not death:
        return found
    assert found.violation is not None
    law, size = found.violation.law.name, found.violation.case.mesh.size
    if death.waits or death.busy:
        _unending[task.given, task.engine if death.waits else ""] = f"{law} on {task.engine}"
    task = replace(task, laws=(law,))
    for devices in SMALLER:  # Hypothesis cannot shrink what kills it
        if devices < min(task.scope.max_devices, size):
            scope = replace(task.scope, max_devices=devices, large=0)
            try:
                again, death = _run(replace(task, scope=scope, until=None), on_case)
            except NeverBegan:  # what was found on more devices stays found
                return found
            if death:
                return again
    return found


_unending: dict[tuple[Source, str], str] = {}
"""The law and engine of functions that did not end on a case, by function and engine: "" where it is every engine."""


def unending(task: Task) -> str:
    """The law and engine under which the function did not end before; empty if it always did."""
    return _unending.get((task.given, "")) or _unending.get((task.given, task.engine), "")


def _past_known_defects(task: Task, on_case: OnCase) -> tuple[Finding, Death | None]:
    ended: dict[str, tuple[Finding, Death]] = {}
    found, died = _run(task, on_case)
    while died and found.violation and (defect := find_fatal(found.violation.case, died.words)):
        text = found.violation.case.to_json()
        if text in task.known or len(task.known) == 20:  # it would go on and on
            break
        ended[text] = found, died
        task = replace(task, known={**task.known, text: defect.name})
        found, died = _run(task, on_case)
    if found.violation and found.violation.kind == "ended":  # no defect is at fault
        return ended[found.violation.case.to_json()]
    return found, died


class Child:
    """A process that checks one task after another, until one kills it.

    Arguments:
        main: whether it runs the main module of this process once more, as `multiprocessing` does by default: a script
            that checks its functions would do so in the child as well, and start a child of its own.
    """

    def __init__(self, main: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        handle, words = tempfile.mkstemp(prefix="shardproof-", suffix=".log")
        os.close(handle)
        self.words = Path(words)
        """The file of its standard error."""
        self.parent, self.started, self.main = os.getpid(), time.time(), main
        self.process = context.Process(target=serve, args=(theirs, words, self.parent), daemon=True)
        with nullcontext() if main else _without_main():
            self.process.start()
        atexit.register(self.words.unlink, missing_ok=True)
        theirs.close()

    @property
    def usable(self) -> bool:
        """True if it can check one more task: it lives, has memory left, and no module was written since it started."""
        if self.parent != os.getpid() or not self.process.is_alive():
            return False
        return memory(self.process.pid or 0) < MEMORY_BYTES // 2 and not _is_outdated(self.started)

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        if self.parent == os.getpid():
            self.process.kill()
            self.process.join()
            self.words.unlink(missing_ok=True)
        self.connection.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hides the main module from `multiprocessing`."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _is_outdated(then: float) -> bool:
    """True if the file of a module was written since, so that the child may have imported an older one."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        with suppress(OSError):  # a file may be gone, or inside of another one
            if isinstance(file, str) and Path(file).stat().st_mtime > then:
                return True
    return False


_child: Child | None = None


def start(main: bool = False) -> Child:
    """The child, which takes seconds to import JAX, and is used again as long as it can be."""
    global _child
    if _child is None or not _child.usable or main > _child.main:
        end()
        _child = Child(main)
    return _child


def end() -> None:
    """Ends the child, if there is one."""
    global _child
    if _child is not None:
        _child.end()
        _child = None


def _run(task: Task, on_case: OnCase) -> tuple[Finding, Death | None]:
    child = start(main=getattr(task.given, "module", "") == "__main__")
    implementation = task.given.load()
    try:
        child.connection.send(task)
    except Exception as error:  # whatever pickling raises
        raise NotSent(first_line(error).removeprefix("NotSent: ")) from error
    last: Case | None = None
    law = LAWS[task.laws[0]]
    cases = 0
    watch = Watch(child.process.pid or 0, START_SECONDS)
    try:
        while True:
            message = _receive(child, watch)
            if isinstance(message, int | float):
                watch.limit = message
            elif message == WORKED:
                continue
            elif message == VIOLATED:
                assert last is not None
                on_case(law, last, True)
            elif isinstance(message, tuple):
                law, cases = LAWS[message[0]], cases + 1
                last = Case.from_json(message[1], lambda name: implementation.contract)
                on_case(law, last, False)
            else:
                break
    except BaseException:  # such as Ctrl-C, while it is in the middle of something
        end()
        raise
    if isinstance(message, bytes):
        raise cloudpickle.loads(message)
    if isinstance(message, Answer):
        if message.violation is None:
            return message.found, None
        case = Case.from_json(message.case, lambda name: implementation.contract)
        violation = LawViolation(implementation, LAWS[message.law], case, **message.violation)
        return replace(message.found, violation=violation), None
    end()
    if last is None:
        raise NeverBegan(f"{task.given}: the process that was to check it {message.reason} before the first case")
    broken = Broken(message.kind, message.reason)
    violation = LawViolation(implementation, law, last, task.engine, broken)
    contract = implementation.contract.name
    tally = Tally(contract, implementation.name, law.name, task.engine, cases, largest=last.mesh.size)
    return Finding(violation, {law.name: tally}), message


def _receive(child: Child, watch: Watch) -> Any:
    """The child's next message, or how it died."""
    watch.restart()
    while not child.connection.poll(0.1):
        death = watch.verdict()
        if death is not None:
            return death
    try:
        return child.connection.recv()
    except (EOFError, ConnectionResetError):
        child.process.join()
        code = child.process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        words = child.words.read_bytes()
        if GAVE_UP in words:
            reason = f"does not finish: devices wait for one another, and XLA gave up after {sum(RENDEZVOUS_SECONDS)} s"
            return Death(reason, "unfinished", waits=True)
        return Death(f"aborts the process ({how})", "aborts", words)
