"""The engine tpu-compiler: compiles a program for a TPU topology without any TPU, and runs nothing.

`libtpu` has the compiler. It is an optional dependency (the group `tpu-compiler`), and works in a process of its own,
which starts once and compiles one program after another: environment variables that describe another machine must be
set before it is loaded.
"""

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
from typing import Any, final

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import contract_of
from shardproof.properties.performance.tpu_compiler.topology import Coordinates

FORWARD, BACKWARD = "forward", "backward"
WAYS = (FORWARD, BACKWARD)
COMPILER = "compiler"
"""In place of an implementation: the product of global arrays under `jit`, with XLA's own communication."""


@dataclass(frozen=True)
class Request:
    """One program for one topology."""

    topology: str  # such as `v5e:2x4`; the case's mesh has as many devices as it has
    case: Case  # the contract, the mesh, and the operands. The last axis of the mesh is laid over rings of neighbours.
    implementation: str  # `contract[name]` of this project, `MODULE:FUNCTION`, or `COMPILER`
    way: str = FORWARD  # `forward`, or `backward`: the gradients by all operands

    def to_json(self) -> dict[str, str]:
        """The request in JSON."""
        return {**vars(self), "case": self.case.to_json()}

    @classmethod
    def from_json(cls, record: dict[str, str]) -> "Request":
        """The request from JSON."""
        return cls(**{**record, "case": Case.from_json(record["case"], contract_of)})  # type: ignore[arg-type]


ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # nothing runs, and a local TPU stays free
    "TPU_SKIP_MDS_QUERY": "1",  # no query to the metadata server
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock protects a TPU, which is not used
}
"""Variables with which libtpu compiles for any topology on a machine without TPUs."""

SECONDS = 300.0
"""The time limit of one program; the largest of this project's own take twenty seconds."""


class NoTpuCompiler(RuntimeError):
    """There is no TPU compiler here; the message says how to get it."""


class NotCompiled(RuntimeError):
    """The TPU compiler does not compile a program; the message says why."""


def missing() -> str:
    """The reason why nothing can be compiled for TPUs here; empty if it can."""
    if importlib.util.find_spec("libtpu") is not None:
        return ""
    return (
        "the engine tpu-compiler needs libtpu, which is not installed: pip install --group tpu-compiler in a checkout, "
        "or pip install libtpu (a download of 140 MB, 700 MB installed); no TPU is needed"
    )


@dataclass(frozen=True)
class Compiled:
    """A compiled program."""

    text: str  # its scheduled HLO, in the order of execution
    temporary_bytes: int  # the most on a device at one time beside arguments and results
    argument_bytes: int
    result_bytes: int
    chips: tuple[Coordinates, ...]  # the chip of each device, in mesh order


@final
class TpuCompiler(ExitStack):
    """The TPU compiler in a process of its own, which lives as long as the `with` statement; raises NoTpuCompiler."""

    def __init__(self) -> None:
        if reason := missing():
            raise NoTpuCompiler(reason)
        super().__init__()
        self._log = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 # as long as the process lives
        # with the paths of this process, where a user's module may be
        path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in ["", *sys.path])
        started = subprocess.Popen(
            [sys.executable, "-m", "shardproof.properties.performance.tpu_compiler.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        )
        self._process = self.enter_context(started)
        self.callback(started.kill)

    def compile(self, request: Request) -> Compiled:
        """Compiles a program; raises NotCompiled if it cannot be built or compiled in time."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps(request.to_json()).encode() + b"\n")
            requests.flush()
            if not select.select([answers], [], [], SECONDS)[0]:
                self._process.kill()
                raise NotCompiled(f"the TPU compiler did not answer within {SECONDS:.0f} s")
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
