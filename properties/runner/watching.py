"""Watching a process that runs cases: what tells one that waits for ever from one that works for long."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

from shardproof.properties.programs.violation import Kind

GAVE_UP = b"Termination timeout for"
"""What XLA:CPU prints before it aborts the process, where some devices never reach a collective."""

IDLE_SECONDS = 30.0
"""How long a case may run without using a processor; longer than XLA:CPU waits for a collective before it gives up."""

BUSY_SECONDS = 30.0
"""How long a case may use a processor; the most expensive takes under 10, and what others use does not count."""

AGAIN_SECONDS = 10.0
"""The same for a function of which a case has not ended, once smaller meshes are tried."""

WINDOW_SECONDS = 3.0
"""Over how long the use is measured: runtimes that wait wake up now and then."""

IDLE_SHARE = 0.02
"""The share of a window below which a process counts as idle; one that competes with many others gets more."""

MEMORY_BYTES = 6 * 2**30
"""How much memory the process may hold; it needs about half a GiB."""


@dataclass(frozen=True)
class Death:
    """Why a process no longer runs a case.

    Arguments:
        reason: what is told, in a few words.
        words: what the process printed last.
        kind: what that is of the function.
        waits: whether devices wait for one another for ever.
        busy: whether the process was still working.
    """

    reason: str
    kind: Kind
    words: bytes = b""
    waits: bool = False
    busy: bool = False


def patience(warn: int, give_up: int) -> str:
    """XLA's flags for a warning after some seconds, and giving up on a collective after so many more."""
    flag = "--xla_cpu_collective_call_{}_timeout_seconds={}"
    return f"{flag.format('warn_stuck', warn)} {flag.format('terminate', give_up)}"


class Watch:
    """Measures one process from the moment on which a case begins."""

    def __init__(self, pid: int, busy_seconds: float = BUSY_SECONDS) -> None:
        self.pid = pid
        self.limit = busy_seconds
        self.restart()

    def restart(self) -> None:
        """Another case begins."""
        self.busy = self.idle = 0.0
        self.since, self.used = time.monotonic(), processor_seconds(self.pid)

    def verdict(self) -> Death | None:
        """Why the process is to be ended, if it is."""
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
            return Death(
                f"does not finish: it waits, and has computed nothing for {IDLE_SECONDS:.0f} s",
                "unfinished",
                waits=True,
            )
        if self.busy > self.limit:
            return Death(f"does not finish: it still computes after {self.limit:.0f} s", "unfinished", busy=True)
        return None


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used, threads included; the wall clock where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 (no path object per poll)
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def memory(pid: int) -> int:
    """The resident memory of a process in bytes; 0 where the system does not tell."""
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
