"""Cases in which there is room to hide everything: what a compiled program is held to is what its schedule makes of it.

The product of one block takes longer than to send a block of float32 over one link. So even one ring, one way round,
that sends sums in float32, can send beside its products; and what is exposed all the same is exposed by how the program
is written or scheduled.
"""

import math

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import sequence_parallel
from shardproof.properties.contracts.products import product_case
from shardproof.properties.performance.chips import Chip
from shardproof.properties.performance.tpu_compiler.topology import Topology

ROOM = 1.25
"""How many times as long as a block under way a product takes, at the published peak and link bandwidth."""

SIDE = 512
"""The other sides of a block: four matrix units of a v5e, so that the compiler takes seconds and not minutes."""

RING = 4
"""The chips of a ring: a square of them is one on every topology."""

LONG: dict[str, int] = {
    "all_gather_matmul_lhs_contracting": 2,
    "all_gather_matmul_lhs": 2,
    "all_gather_matmul_rhs": 0,
    "matmul_reduce_scatter": 1,
    "matmul_all_reduce": 1,
    "transformer_block": 2,
}
"""Of rows, contracted size and columns on a device, the one on which what is sent does not depend."""

NORMALISED = sequence_parallel.NORMALISED
KNOWN = (*LONG, sequence_parallel.MLP.name, NORMALISED.name)


def longest(chip: Chip, element: int = 4) -> int:
    """The side that makes room: a multiply-add of it takes as long as one element under way.

    Arguments:
        chip: whose peak and links.
        element: the bytes of what travels.
    """
    least = ROOM * element / chip.link * chip.rate("bfloat16") / 2
    return SIDE * math.ceil(least / SIDE)


def roomy(contract: str, mesh: MeshCase, axis_name: str | tuple[str, ...], chip: Chip) -> Case:
    """The case of a contract, in bfloat16, over an axis tuple of devices that are neighbours.

    Raises:
        ValueError: for a contract that there is none of.
    """
    if contract not in KNOWN:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(KNOWN)}")
    long = longest(chip)
    if contract in LONG:
        m_k_n = [SIDE] * 3
        m_k_n[LONG[contract]] = long
        return product_case(contract, mesh, axis_name, (m_k_n[0], m_k_n[1], m_k_n[2]), dtype="bfloat16")
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    normalised = contract == NORMALISED.name
    weights: list[tuple[tuple[int, ...], int | None]] = [((SIDE, long), 1), ((long, SIDE), 0)]
    blocks = [((SIDE // 8, 8, SIDE), 0), *([((SIDE,), None)] if normalised else []), *weights]
    operands = tuple(
        Operand(block, "bfloat16", Placement(tuple(axes if i == at else () for i in range(len(block)))))
        for block, at in blocks
    )
    return Case(contract, mesh, axis_name, operands, tuple(NORMALISED.usual.items()) if normalised else ())


def place(topology: Topology) -> tuple[MeshCase, str]:
    """A mesh of all chips, with the axis that a case runs over: rings of four."""
    return MeshCase(("data", "model"), (topology.chips // RING, RING)), "model"
