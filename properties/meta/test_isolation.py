"""Isolation: endless functions fail, slow ones do not, and no process is left behind."""

import dataclasses
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax import lax

from shardproof.impl import collectives
from shardproof.properties.contracts import Scope
from shardproof.properties.runner import child, isolation
from shardproof.properties.runner.child import Task, Watch
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.isolation import check_isolated, unending

ROOT = Path(__file__).resolve().parents[2]


def computes_for_ever(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Never ends."""
    while True:
        offset += 1


def says_who_it_is_and_waits(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Names its process, and never ends."""
    print(os.getpid(), flush=True)
    time.sleep(10**6)


def slow_beyond_sixteen(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Right, and slow on large meshes."""
    end = time.monotonic() + 3600 * (lax.axis_size(axis_name) > 16)
    while time.monotonic() < end:
        pass
    return collectives.ring_shift(x, axis_name, offset=offset)


def slow_on_long_blocks(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Right, and slow on blocks that are long."""
    end = time.monotonic() + 3600 * (max(x.shape, default=0) > 4)
    while time.monotonic() < end:
        pass
    return collectives.ring_shift(x, axis_name, offset=offset)


def compiles_for_long(x: Any, axis_name: Any, *, offset: int = 1) -> Any:
    """Right, and compiles programs for longer than a case may compute."""
    end = time.monotonic() + 20 * (not _compiled)
    while time.monotonic() < end:
        _compiled.append(jax.jit(lambda x: x + len(_compiled)).lower(0).compile())
    return collectives.ring_shift(x, axis_name, offset=offset)


_compiled: list[Any] = []


def task(function: str, law: str = "value") -> Task:
    """A task whose cases may compute for some seconds of processor time, the most expensive takes less than one."""
    given = Given("ring_shift", __name__, function)
    return Task(given, (law,), "simulate", Scope(large=100), 20, 0, "cpu", busy_seconds=6)


@pytest.fixture(autouse=True)
def no_memory() -> Iterator[None]:
    """Another test knows nothing of the functions of this one, nor runs them in its process."""
    yield
    isolation._unending.clear()
    isolation.end()


@pytest.mark.lengthy
def test_what_computes_for_ever_is_a_failure_once() -> None:
    """An endless computation is reported once, and its other laws do not wait for it."""
    assert not unending(task("computes_for_ever", "gradient"))
    found = check_isolated(task("computes_for_ever"))
    assert found.violation is not None
    assert found.violation.finding.startswith("does not finish: it still computes after")
    assert unending(task("computes_for_ever", "gradient")) == "value on simulate"
    assert not unending(task("slow_beyond_sixteen"))


@pytest.mark.lengthy
def test_what_compiles_for_long_is_no_failure() -> None:
    """A case without `jit` has hundreds of programs: only what computes without compiling any is ended."""
    assert check_isolated(task("compiles_for_long")).violation is None


def test_samples_are_no_time_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child says whenever it has run samples, and the time that a function may compute begins once more."""
    receive, said = isolation._receive, list[Any]()

    def receive_and_keep(of: Any, watch: Any) -> Any:
        said.append(receive(of, watch))
        return said[-1]

    monkeypatch.setattr(isolation, "_receive", receive_and_keep)
    given = Given("global_norm", "shardproof.impl.norms", "global_norm")
    assert check_isolated(Task(given, ("value",), "simulate", Scope(), 3, 0, "cpu")).violation is None
    assert child.WORKED in said


@pytest.mark.lengthy
def test_what_is_slow_on_large_meshes_is_no_failure() -> None:
    """A function that is slow on large meshes is judged on smaller ones and reported as not finished."""
    found = check_isolated(task("slow_beyond_sixteen"))
    assert found.violation is None
    assert found.tally.structures > 0
    assert found.tally.largest <= 16
    ((reason, times),) = found.tally.not_run.items()
    assert reason.startswith("not finished after")
    assert times >= 1


@pytest.mark.lengthy
def test_what_is_slow_on_long_blocks_is_no_failure() -> None:
    """A function that is slow on long blocks is judged on others and reported as not finished."""
    found = check_isolated(task("slow_on_long_blocks"))
    assert found.violation is None
    assert found.tally.structures > 0
    ((reason, times),) = found.tally.not_run.items()
    assert reason == "not finished after 6 s, so without long sides"
    assert times >= 1


def test_only_a_processor_that_is_used_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with a tenth of a processor is neither idle nor at its limit by the clock."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(child, "processor_seconds", lambda pid: now / 10)
    watch = Watch(os.getpid(), 40.0)
    while now < 390.0:
        assert watch.verdict() is None
        now += 1.0
    while now < 420.0 and watch.verdict() is None:
        now += 1.0
    assert now < 420.0


@pytest.mark.lengthy
def test_a_slow_import_is_no_slow_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an import does not count against the first case."""
    (tmp_path / "slow_to_import.py").write_text(
        "import multiprocessing, time\n"
        "from shardproof.impl.collectives import ring_shift\n"
        "end = time.process_time() + 7\n"
        "while multiprocessing.parent_process() and time.process_time() < end:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(child, "WINDOW_SECONDS", 1.0)
    given = Given("ring_shift", "slow_to_import", "ring_shift")
    found = check_isolated(dataclasses.replace(task(""), given=given))
    assert found.violation is None
    assert found.tally.structures > 0


def is_running(pid: int) -> bool:
    """True of a process that runs, and not of one that has ended and is not yet collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_run_leaves_no_process() -> None:
    """The child process ends when its parent is killed."""
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r})\n"
        "from shardproof.properties.runner.isolation import check_isolated\n"
        f"from {__name__} import task\n"
        "if __name__ == '__main__':\n"
        "    check_isolated(task('says_who_it_is_and_waits'))\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    try:
        assert select.select([run.stdout], [], [], 120)[0], "the function was not run"
        started = int(run.stdout.readline())
        assert is_running(started)
    finally:
        run.kill()
        run.wait()
    assert select.select([run.stdout], [], [], 120)[0]
    assert run.stdout.read() == ""  # the last process that could write to it has ended
    run.stdout.close()
    assert not is_running(started)
