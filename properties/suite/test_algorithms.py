"""The communication of each hand-written algorithm when it is compiled."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import settings

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.programs.built_in import ALGORITHMS
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.implementations import Implementation

AXES = ("x", "y", "z")


def examples(implementation: Implementation, devices: int) -> Iterator[Case]:
    """One case over each mesh of one axis, of two, and of three that are equal, ever larger, in reverse mesh order."""
    lines = [(p,) for p in range(2, devices + 1)]
    grids = [(a, b) for a in range(2, devices) for b in range(2, devices // a + 1)]
    cubes = [(a, a, a) for a in range(2, devices) if a**3 <= devices]
    for sizes in sorted([*lines, *grids, *cubes], key=lambda sizes: MeshCase(AXES[: len(sizes)], sizes).size):
        mesh = MeshCase(AXES[: len(sizes)], sizes)
        case = example(implementation.contract.name, mesh, mesh.axis_names[::-1] if len(sizes) > 1 else "x")
        if implementation.serves is None or implementation.serves(case):
            yield case


@pytest.mark.engine("xla")
@pytest.mark.parametrize("implementation", ALGORITHMS, ids=str)
def test_compiled_costs(implementation: Implementation, engines: Mapping[str, Engine], devices: int) -> None:
    """Compiled, it sends what its formula says, forward and backward: on the largest mesh; in thorough runs, on all."""
    served = list(examples(implementation, devices))
    for case in served if settings().max_examples >= 1000 else served[-1:]:
        assert check_communication(implementation, case, engines["xla"]) == 2
