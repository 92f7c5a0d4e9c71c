"""The process that compiles, from outside: started once, asked for one program after another."""

import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import contract_of
from shardproof.properties.performance.tpu_compiler.topology import Coordinates

FORWARD, BACKWARD = "forward", "backward"
WAYS = (FORWARD, BACKWARD)
COMPILER = "compiler"
"""In place of an implementation: the product of global arrays under `jit`, all of whose communication XLA inserts."""


@dataclass(frozen=True)
class Request:
    """One program for one topology."""

    topology: str  # such as `v5e:2x4`; the case's mesh has as many devices as it has
    case: Case  # the contract, the mesh, and the operands. The last axis of the mesh is laid over rings of neighbours.
    # what claims to satisfy the contract: `contract[name]` of one of this project's own, `MODULE:FUNCTION`, or
    # `COMPILER`
    implementation: str
    way: str = FORWARD  # `forward`, or `backward`: the gradients of a result's cotangent, by all operands

    def to_json(self) -> dict[str, str]:
        """What `from_json` reads."""
        return {**vars(self), "case": self.case.to_json()}

    @classmethod
    def from_json(cls, record: dict[str, str]) -> "Request":
        """What `to_json` wrote."""
        return cls(**{**record, "case": Case.from_json(record["case"], contract_of)})  # type: ignore[arg-type]


ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # nothing is run, and a TPU that is there stays free
    "TPU_SKIP_MDS_QUERY": "1",  # no server is asked what machine this is
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it is kept from one process to another only for the sake of a TPU's
}
"""What makes libtpu believe that it is on a machine with TPUs; any topology may be compiled for."""

SECONDS = 300.0
"""How long one program may take; the largest of this project's own take twenty seconds."""


class NoTpuCompiler(RuntimeError):
    """There is no TPU compiler here; the message says how to get it."""


class NotCompiled(RuntimeError):
    """A program that the TPU compiler does not compile; the message says why."""


def missing() -> str:
    """Why nothing can be compiled for TPUs here, as a sentence; empty if it can."""
    if importlib.util.find_spec("libtpu") is not None:
        return ""
    return (
        "the engine tpu-compiler needs libtpu, which is not installed: pip install --group tpu-compiler in a checkout, "
        "or pip install libtpu (a download of 140 MB); no TPU is needed"
    )


@dataclass(frozen=True)
class Compiled:
    """A compiled program."""

    text: str  # its scheduled HLO: the order of the lines is that of execution
    temporary_bytes: int  # the most bytes on a device at one time beside arguments and results, as the compiler says
    argument_bytes: int  # those of the arguments
    result_bytes: int  # those of the results
    chips: tuple[Coordinates, ...]  # where each device of the mesh is, in mesh order


@final
class TpuCompiler(ExitStack):
    """The TPU compiler in a process of its own, which lives as long as the `with` statement.

    Raises:
        NoTpuCompiler: if libtpu is not installed.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        if reason := missing():
            raise NoTpuCompiler(reason)
        super().__init__()
        self._seconds = seconds
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # as long as the process lives
        # imports as this process does, so that a user's module is found as well
        path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in ["", *sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardproof.properties.performance.tpu_compiler.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        )
        self.callback(self._end)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def compile(self, request: Request) -> Compiled:
        """Compiles a program.

        Raises:
            NotCompiled: if it cannot be built, compiled, or not in time.
        """
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps(request.to_json()).encode() + b"\n")
            asked.flush()
            if not select.select([answers], [], [], self._seconds)[0]:
                self._process.kill()
                raise NotCompiled(f"the TPU compiler did not answer within {self._seconds:.0f} s")
            line = answers.readline()
        except BrokenPipeError:
            line = b""
        named = f"{request.implementation} {request.way} on {request.topology}"
        if not line:
            raise NotCompiled(f"{named}: the process that compiles ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NotCompiled(f"{named}: {answer['error']}")
        return Compiled(**{**answer, "chips": tuple(map(tuple, answer["chips"]))})

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.wait()}, without a word"
