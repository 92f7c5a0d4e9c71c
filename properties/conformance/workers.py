"""Processes that run programs: one that aborts or hangs is a verdict, not the end."""

import contextlib
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from shardproof.properties.conformance.child import Answer, Request
from shardproof.properties.conformance.program import Program
from shardproof.properties.conformance.running import Verdict
from shardproof.properties.runner.child import RENDEZVOUS_SECONDS, WINDOW_SECONDS, Death, Watch, patience

PACK_SECONDS, ALONE_SECONDS = 400, 120
"""How long a pack may compute before its next answer, and a program by itself; one that waits ends much earlier."""

PACK = 16
"""How many programs are compiled as one."""

FAST = "--xla_backend_optimization_level=0"
PATIENT = patience(*RENDEZVOUS_SECONDS)
"""XLA's flags for packs, and for giving up on a collective that some devices do not reach."""


class EndedError(Exception):
    """The process ended, or was ended, on the program that it had begun last."""


class Where(msgspec.Struct, frozen=True):
    """Where programs run: on a platform of JAX, on how many devices; a module may be named that is imported first."""

    platform: str = "cpu"
    devices: int = 8
    preload: str = ""


class Worker:
    """A process that runs programs, started again when it has ended.

    Arguments:
        fast: whether it compiles without optimizing.
        where: where it runs.
        excused: the known defects whose operations are replicated before a program is run.
    """

    def __init__(self, *, fast: bool, where: "Where", excused: Collection[str] = ()) -> None:
        self.fast, self.where, self.excused = fast, where, excused
        self.process: subprocess.Popen[bytes] | None = None
        self.words = tempfile.TemporaryFile()  # noqa: SIM115 # it lives as long as this object
        self.deaths = 0

    def start(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none."""
        if self.process is None:
            flags = f"{os.environ.get('XLA_FLAGS', '')} {PATIENT} {FAST if self.fast else ''}"
            env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": self.where.platform}
            env["JAX_NUM_CPU_DEVICES"] = str(self.where.devices)
            env |= {"TF_CPP_MIN_LOG_LEVEL": "2", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
            env["PYTHONPATH"] = os.pathsep.join([path for path in sys.path if path])
            self.words.seek(0)
            self.words.truncate()
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.child", self.where.preload],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.words,
                bufsize=0,
            )
        return self.process

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
            self.process = None

    def answers(self, request: Request, seconds: float) -> Iterator[Answer]:
        """The answers to a request, as they come.

        Raises:
            EndedError: if the process ends, or has not answered within `seconds`, with its last words.
        """
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            process.stdin.write(msgspec.json.encode(request) + b"\n")
        watch, answered, deaths = Watch(process.pid, seconds), threading.Event(), list[Death]()

        def end_if_stuck() -> None:
            while not answered.wait(WINDOW_SECONDS):
                if death := watch.verdict():
                    deaths.append(death)
                    process.kill()
                    return

        threading.Thread(target=end_if_stuck, daemon=True).start()
        try:
            while (text := process.stdout.readline()) != b"done\n":
                if not text.endswith(b"\n"):
                    self.stop()
                    stuck = deaths and deaths[0].kind == "unfinished"
                    raise EndedError(
                        "hangs" if stuck else f"aborts: {deaths[0].reason if deaths else self.last_words()}"
                    )
                watch.restart()
                yield msgspec.json.decode(text, type=Answer)
        finally:
            answered.set()

    def last_words(self) -> str:
        """The last message of a process that ended, without the parts that differ from run to run."""
        self.words.seek(0)
        text = self.words.read().decode(errors="replace")
        found = re.search(r"Check failed:.*|Fatal Python error:.*|F\d{4} .*|terminate called.*|LLVM ERROR.*", text)
        return re.sub(r"^F\d{4} \S+\s+\d+ ", "", found[0])[:300] if found else text.strip()[-200:]

    def run(self, programs: Sequence[Program], *, quick: bool = False) -> list[Verdict]:
        """The verdicts on programs of one mesh, packed; one after the other where a pack ends the process."""
        found: dict[int, Verdict] = {}
        if len(programs) > 1:
            try:
                for answer in self.answers(Request(list(programs), "packed", quick, [*self.excused]), PACK_SECONDS):
                    found[answer.number] = answer.verdict
            except EndedError:
                self.deaths += 1
        while left := [i for i in range(len(programs)) if i not in found]:
            found |= self.run_alone([programs[i] for i in left], left)
        return [found[i] for i in range(len(programs))]

    def run_alone(self, programs: Sequence[Program], numbers: Sequence[int], how: str = "alone") -> dict[int, Verdict]:
        """The verdicts on programs, up to one that ends the process."""
        found: dict[int, Verdict] = {}
        try:
            excused = [*self.excused] if how == "alone" else []
            for answer in self.answers(Request(list(programs), how, excused=excused), ALONE_SECONDS):
                found[numbers[answer.number]] = answer.verdict
        except EndedError as error:
            self.deaths += 1
            found[numbers[len(found)]] = Verdict("fails", str(error))
        return found

    def vote(self, program: Program) -> Verdict:
        """The verdict on a program by itself, with the votes of others if it is wrong, or ends a process."""
        verdict = self.run_alone([program], [0], "votes")[0]
        if not verdict.detail.startswith(("aborts", "hangs")):
            return verdict
        other = self.run_alone([program], [0], "one device")[0]
        return msgspec.structs.replace(verdict, votes={"one device": other.detail})


class Workers:
    """Several processes, each with a thread that talks to it."""

    def __init__(self, count: int, where: Where | None = None) -> None:
        self.local = threading.local()
        self.where = where or Where()
        self.pool = ThreadPoolExecutor(count)
        self.all: list[Worker] = []
        self.excused: set[str] = set()
        self.quick = True

    def worker(self, *, fast: bool) -> Worker:
        """This thread's process of a kind."""
        name = f"fast_{fast}"
        if not hasattr(self.local, name):
            made = Worker(fast=fast, where=self.where, excused=self.excused)
            setattr(self.local, name, made)
            self.all.append(made)
        return getattr(self.local, name)

    def run(self, programs: Sequence[Program], until: float = math.inf) -> Iterator[tuple[Program, Verdict]]:
        """Programs with their verdicts, pack by pack, as they come; none after `until` by `time.monotonic`."""
        groups: dict[object, list[Program]] = {}
        for program in programs:
            groups.setdefault((program.axes, *program.mesh.items()), []).append(program)
        packs = [group[i : i + PACK] for group in groups.values() for i in range(0, len(group), PACK)]

        def run(pack: Sequence[Program]) -> list[tuple[Program, Verdict]]:
            if time.monotonic() > until:
                return []
            return list(zip(pack, self.worker(fast=True).run(pack, quick=self.quick), strict=True))

        for found in self.pool.map(run, packs):
            yield from found

    def close(self) -> None:
        """Ends all processes."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for worker in self.all:
            worker.stop()
            worker.words.close()
