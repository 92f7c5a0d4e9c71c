"""Who sends what to whom, one collective after the other, as the interpreter executed them."""

from dataclasses import dataclass

import numpy as np

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.simulate import Collective
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward


@dataclass(frozen=True)
class Step:
    """One collective.

    Arguments:
        kind: which one.
        bytes: the bytes of its operand on each device.
        links: (source, destination) devices by their position in the mesh; empty where an algorithm that
            the program does not show decides.
        devices: how many devices there are.
        round: what it has to wait for: those of one round may be under way at the same time.
    """

    kind: str
    bytes: int
    links: tuple[tuple[int, int], ...]
    devices: int
    round: int

    def __str__(self) -> str:
        size = f"{self.kind} of {self.bytes:,} bytes"
        if not self.links:
            return f"{size} per device; who sends to whom is the backend's choice"
        return f"{size} each: " + ", ".join(f"{source} -> {target}" for source, target in self.links)


def steps(implementation: Implementation, case: Case) -> list[Step]:
    """The collectives that an implementation executes in a case, round by round."""
    program = forward(case, implementation, Seen())
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    executed = SimulateEngine().evidence(program, case.mesh, arrays).sequence
    return [_step(c) for c in sorted(executed, key=lambda collective: collective.round)]


def _step(collective: Collective) -> Step:
    links = tuple(sorted(collective.links)) if collective.perm is not None else ()
    return Step(collective.kind, collective.operand_bytes, links, collective.mesh.size, collective.round)


def text(implementation: Implementation, case: Case, found: list[Step]) -> str:
    """The steps in words."""
    total = sum(step.bytes for step in found)
    lines = [f"{implementation} on mesh {case.mesh}, axis {case.axis_name!r}, block {case.operands[0]}"]
    lines += [f"round {step.round}: {step}" for step in found]
    rounds = max((step.round for step in found), default=0)
    plural = "s" * (rounds != 1)
    total_line = f"in all: {len(found)} collectives in {rounds} round{plural}, {total:,} bytes of operands per device"
    return "\n".join([*lines, total_line])
