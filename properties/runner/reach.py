"""An estimate of the largest mesh on which a function ends in time: a ring has as many steps as participants."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample, Unsatisfiable

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies.meshes import MAX_AXES
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.engines.engine import SimulateEngine
from shardproof.properties.programs.examples import EXAMPLES, example
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward

PROBES = (((8,), (16,), (32,)), ((2, 4), (4, 4), (4, 8)))
"""Meshes, each twice as large as the one before: equations are counted on the first row that the function supports."""

SIMPLEST = settings(
    max_examples=200,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[*HealthCheck],
)
"""How the simplest case on such a mesh is found, without running anything."""


def reach(implementation: Implementation, most: int, before: Callable[[Case], object]) -> int:
    """On how many devices, up to `most`, the function is interpreted in seconds, by how its equations grow.

    It is `most` if the function cannot be interpreted on a small mesh, which a law will report. `before` is called with
    every case before it runs.
    """
    for meshes in PROBES:
        if math.prod(meshes[-1]) > most:
            return most
        cases = [probe(implementation, sizes) for sizes in meshes]
        try:
            counts = [equations(implementation, case, before) for case in cases if case is not None]
        except Exception:  # whatever the function raises is for a law to report, not for an estimate
            continue
        if len(counts) < len(meshes):
            continue
        earlier, later = counts[1] - counts[0], counts[2] - counts[1]
        if later < 1.5 * max(earlier, 1):  # by no more at each doubling: a logarithm
            return most
        growth = later / max(earlier, 1)  # at each doubling: 2 for a ring, 4 for steps between all pairs
        devices, count, more, limit = math.prod(meshes[2]), counts[2], float(later), min(most, 300)
        while devices < limit:
            longer = min(2, limit / devices)  # at last no whole doubling
            added = growth * more * (longer - 1)
            if count + added > 1_500:  # of a forward pass; derivatives have several times as many
                break
            devices, count, more = round(longer * devices), count + round(added), added
        return min(devices, limit)
    return most


@functools.lru_cache(maxsize=64)  # after each violation a function is searched again
def probe(implementation: Implementation, sizes: tuple[int, ...]) -> Case | None:
    """A case in which axes of these sizes connect participants; None if the function supports none.

    Without an example it is the simplest one that can be drawn; of this project's own functions, which are known to
    end, there is none, as it would take longer than it saves.
    """
    name, count = implementation.contract.name, math.prod(sizes)
    if name in EXAMPLES:
        mesh = MeshCase(("dp", "tp")[: len(sizes)], sizes)
        return example(name, mesh, mesh.axis_names if len(sizes) > 1 else mesh.axis_names[0])
    if implementation.built_in:
        return None
    contract, serves = implementation.contract, implementation.serves
    others = (1,) * min(max(len(contract.call.roles) - 1, 0), MAX_AXES - len(sizes))
    scope = Scope(count, count, explicit=False, sizes=(*sizes, *others))
    scope = replace(scope, layouts=implementation.layouts)

    def connects(case: Case) -> bool:
        tuples = axes_of(case.roles).values() if case.roles else [case.axes]
        return any(case.mesh.axis_size(axes) == count for axes in tuples) and (serves is None or serves(case))

    try:
        return find(contract.cases(scope), connects, settings=SIMPLEST)
    except (NoSuchExample, Unsatisfiable):
        return None


def equations(implementation: Implementation, case: Case, before: Callable[[Case], object]) -> int:
    """The number of equations that a case executes, in every iteration of loops; raises what the function raises."""
    before(case)
    program = forward(case, implementation, Seen())
    arrays = [generate(Data("exact", 0), a.shape, np.dtype(a.dtype)) for a in program.arguments]
    return SimulateEngine().prepare(program, case.mesh).evidence(arrays).equations
