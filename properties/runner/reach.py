"""How large a mesh may be for a function to end in time: a ring has as many steps as participants."""

import math
from collections.abc import Callable

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.counting.examples import example
from shardproof.properties.engines.simulated import SimulateEngine
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward

PROBES = (((8,), (16,), (32,)), ((2, 4), (4, 4), (4, 8)))
"""Meshes, each twice as large as the one before: of the first row that the function supports, its equations tell."""

LARGEST = 300
"""The most devices for what has more steps on more devices; what it gathers has as many parts, at each step."""

EQUATIONS = 10_000
"""The most equations of a forward pass: they are traced in a few seconds, its derivatives included."""


def reach(implementation: Implementation, most: int, before: Callable[[Case], object]) -> int:
    """The most devices, up to `most`, on which the function is interpreted in seconds, by how its equations grow.

    That is `most` for what cannot be interpreted on a small mesh: a law will say why.

    Arguments:
        implementation: the function.
        most: the most devices that are asked for.
        before: called with every case before it runs.
    """
    for meshes in PROBES:
        if math.prod(meshes[-1]) > most:
            return most
        try:
            counts = [equations(implementation, sizes, before) for sizes in meshes]
        except Exception:  # whatever the function raises is for a law to report, not for an estimate
            continue
        earlier, later = counts[1] - counts[0], counts[2] - counts[1]
        if later < 1.5 * max(earlier, 1):  # by no more at each doubling: a logarithm
            return most
        growth = later / max(earlier, 1)  # at each doubling: 2 for a ring, 4 for steps between all pairs
        devices, count, more = math.prod(meshes[2]), counts[2], float(later)
        while devices < LARGEST and count + growth * more <= EQUATIONS:
            more *= growth
            devices, count = 2 * devices, count + round(more)
        return min(most, LARGEST, devices)
    return most


def equations(implementation: Implementation, sizes: tuple[int, ...], before: Callable[[Case], object]) -> int:
    """How many equations a fixed case executes on a mesh, those of a loop in every iteration.

    Raises:
        Exception: whatever tracing or interpreting the function raises.
    """
    mesh = MeshCase(("dp", "tp")[: len(sizes)], sizes)
    case = example(implementation.contract, mesh, mesh.axis_names if len(sizes) > 1 else mesh.axis_names[0])
    before(case)
    program = forward(case, implementation, Seen())
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    return SimulateEngine().evidence(program, mesh, arrays).equations
