"""Who sends what to whom, one collective after the other, as the interpreter executed them."""

from dataclasses import dataclass

import numpy as np

from properties.cases import Case
from properties.data import Data, generate
from properties.engines import SimulateEngine
from properties.engines.simulate import Collective
from properties.implementations import Implementation
from properties.programs import Seen, forward


@dataclass(frozen=True)
class Step:
    """One collective.

    Arguments:
        kind: which one.
        bytes: the bytes of its operand on each device.
        links: (source, destination) devices by their position in the mesh; empty where an algorithm that
            the program does not show decides.
        devices: how many devices there are.
    """

    kind: str
    bytes: int
    links: tuple[tuple[int, int], ...]
    devices: int

    def __str__(self) -> str:
        size = f"{self.kind} of {self.bytes:,} bytes"
        if not self.links:
            return f"{size} per device; who sends to whom is the backend's choice"
        return f"{size} each: " + ", ".join(f"{source} -> {target}" for source, target in self.links)


def steps(implementation: Implementation, case: Case) -> list[Step]:
    """The collectives that an implementation executes in a case, in order."""
    program = forward(case, implementation, Seen())
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    return [_step(c) for c in SimulateEngine().record(program, case.mesh, arrays).sequence]


def _step(collective: Collective) -> Step:
    links = tuple(sorted(collective.links)) if collective.perm is not None else ()
    return Step(collective.kind, collective.operand_bytes, links, collective.mesh.size)


def text(implementation: Implementation, case: Case, found: list[Step]) -> str:
    """The steps in words."""
    total = sum(step.bytes for step in found)
    lines = [f"{implementation} on mesh {case.mesh}, axis {case.axis_name!r}, block {case.operands[0]}"]
    lines += [f"step {number}: {step}" for number, step in enumerate(found, 1)]
    return "\n".join([*lines, f"in all: {len(found)} collectives, {total:,} bytes of operands per device"])
