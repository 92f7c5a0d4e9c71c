"""The law of overlap on compiled programs: XLA:TPU's schedule hides what is claimed to be hidden.

`shardproof.properties.laws.communication` checks that a program could hide its communication. This checks the schedule
that the TPU's compiler made of it, and of its gradient, in a case with long products (`case_with_room`): all
communication is asynchronous permutes, and the device's waiting, the links and the memory are as claimed.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.counted import OUT, sizes_of
from shardproof.properties.performance.chips import Chip, in_words
from shardproof.properties.performance.compiled import CUT
from shardproof.properties.performance.scheduled import Schedule, Sent, schedule
from shardproof.properties.performance.shaped import shaped_case
from shardproof.properties.performance.tpu_compiler import BACKWARD, Compiled
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.examples import product_case
from shardproof.properties.programs.expectation import Overlap, names_of, value
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken, Of

ROOM = 1.25
"""The time of a product over that of sending a block, at the published peak and link bandwidth."""

SIDE = 512
"""The other sides of a block: four matrix units of a v5e, so that the compiler takes seconds and not minutes."""

RING = 4
"""The chips of a ring: a square of them is one on every topology."""

KNOWN = (*CUT, "sequence_parallel_mlp")


def case_with_room(contract: str, mesh: MeshCase, axis_name: str | tuple[str, ...], chip: Chip) -> Case:
    """The case of a contract, in bfloat16, over an axis tuple of neighbours, with products longer than transfers."""
    if contract not in KNOWN:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(KNOWN)}")
    # the side that makes room: a multiply-add of it takes as long as one element of float32 under way
    long = SIDE * math.ceil(ROOM * 4 / chip.link * chip.rate("bfloat16") / 2 / SIDE)
    if contract in CUT:
        among, gathered = CUT[contract]
        (free,) = {*among} - {gathered}  # what is sent does not depend on this side
        m, k, n = (long if i == free else SIDE for i in range(3))
        return product_case(contract, mesh, axis_name, (m, k, n), dtype="bfloat16")
    p = mesh.axis_size((axis_name,) if isinstance(axis_name, str) else axis_name)
    return shaped_case(contract, mesh, axis_name, [(p * SIDE // 8, 8, SIDE), (SIDE, p * long), (p * long, SIDE)])


def place(topology: Topology) -> tuple[MeshCase, str]:
    """A mesh of all chips, and the axis of a case: rings of four."""
    return MeshCase(("data", "model"), (topology.chips // RING, RING)), "model"


WITH_ROOM = Fraction(1, 20)
"""The exposed share that is allowed where all can be hidden: hops, and transfers that begin a little late."""

FOR_ITSELF = 2**20
"""Bytes for the compiler's own use: semaphores, copies of scalars, padding of small arrays."""


def share_of(implementation: Implementation, case: Case) -> Fraction:
    """The exposed share that a claim allows in a case with room.

    The second half of an all-reduce, and the first of several chunks, overlap with nothing: these may expose as much as
    they claim on any machine; the others, next to nothing.
    """
    stated = implementation.overlap
    assert stated is not None
    cannot_overlap = case.contract.name == "matmul_all_reduce" or implementation.name.startswith("chunked")
    return value(stated.exposed, **_sizes_without_results(case)) * cannot_overlap + WITH_ROOM


def check_compiled_overlap(
    stated: Overlap, share: Fraction, case: Case, compiled: Compiled, topology: Topology, way: str
) -> Schedule:
    """The schedule of a compiled program; raises Broken unless it hides what is claimed."""
    found = schedule(compiled.text, topology, compiled.chips)
    of: Of = "gradient" if way == BACKWARD else "result"
    whose = f"of {'its gradient' if way == BACKWARD else 'the function'}, compiled for {topology}"
    for sent in found.monolithic:
        raise Broken("overlap", f"{sent} {whose}, is left whole: expected permutes beside products ({stated})", of=of)
    for sent in found.synchronous:
        what = f"{sent} {whose}, is made synchronous by the compiler: nothing can be computed beside it ({stated})"
        raise Broken("overlap", what, of=of)
    if found.share > share:
        longest = max(found.sends, key=lambda sent: sent.waited)
        what = f"{float(found.share):.3f} of the communication {whose}, is exposed: expected at most {float(share):.3f}"
        raise Broken("overlap", f"{what} ({stated}); {in_words(longest.waited)} of it {longest}", of=of)
    if stated.directions > 1 and case.mesh.sizes[-1] > 2:
        _check_ways(found.sends, compiled, case.mesh.sizes[-1], f"{whose} ({stated})", of)
    if stated.memory is not None and way != BACKWARD:
        sizes = {**_sizes_without_results(case), OUT: compiled.result_bytes}
        most = value(stated.memory, **sizes) + FOR_ITSELF
        held = compiled.argument_bytes + compiled.result_bytes + compiled.temporary_bytes
        if held > most:
            what = f"{compiled.temporary_bytes:,} of them temporary, {whose}: expected at most {math.ceil(most):,}"
            raise Broken("overlap", f"{held:,} bytes held at one time, {what} ({stated})", of=of)
    return found


def _check_ways(sends: Sequence[Sent], compiled: Compiled, p: int, whose: str, of: Of) -> None:
    """Raises Broken unless both ways round the rings of chips carry about as much."""
    rings = [compiled.chips[at : at + p] for at in range(0, len(compiled.chips), p)]
    hops = [(a, b) for ring in rings for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
    ahead = sum((sent.loads.get((a, b), Fraction(0)) for sent in sends for a, b in hops), Fraction(0))
    back = sum((sent.loads.get((b, a), Fraction(0)) for sent in sends for a, b in hops), Fraction(0))
    least, busiest = sorted((ahead / len(hops), back / len(hops)))
    if 2 * least < busiest:
        sent = f"{math.ceil(least):,} bytes one way round a ring and {math.ceil(busiest):,} the other"
        raise Broken("overlap", f"{sent} {whose}: expected both ways to be used", of=of)


def _sizes_without_results(case: Case) -> dict[str, Any]:
    """The sizes that a claim may use, without running the oracle on arrays of this size."""
    return sizes_of(case, {*names_of(case.contract)} - {OUT})
