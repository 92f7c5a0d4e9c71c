"""The law of engines: compiled results equal interpreted ones, and a compiler that differs is reported."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Prepared, XlaEngine
from shardproof.properties.engines.engine import forget
from shardproof.properties.laws.agreement import REFERENCE, check_agreement
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Program
from shardproof.properties.programs.violation import Broken


class AddsOne(XlaEngine):
    """A compiler that adds one to the last result of every program."""

    def prepare(self, program: Program, mesh: MeshCase) -> Prepared:
        """The engine that runs such a program."""
        right = super().prepare(program, mesh)

        def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            *results, last = right(arrays)
            return [*results, last + np.ones_like(last)]

        return Prepared(run, right.jaxpr)


@pytest.fixture
def fresh_caches() -> Iterator[None]:
    """Nothing is ready that another test, or another engine of the same name, has made."""
    forget()
    yield
    forget()


def gather(mesh: MeshCase) -> tuple[Implementation, Case]:
    """An implementation with a gradient, and a case of it."""
    (one,) = [one for one in IMPLEMENTATIONS if str(one) == "all_gather[lax]"]
    return one, example("all_gather", mesh, mesh.axis_names)


@pytest.mark.needs_devices(4)
def test_a_program_is_traced_once_for_both_engines(fresh_caches: None) -> None:
    """The interpreter runs what was traced to be compiled, forward and backward."""
    before = REFERENCE.traces
    one, case = gather(MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2)))
    assert check_agreement(one, case, XlaEngine()).checked == len(case.data)
    assert REFERENCE.traces == before


@pytest.mark.needs_devices(2)
def test_a_compiler_that_differs_is_reported(fresh_caches: None) -> None:
    """Though both run the same trace, a value that the compiler makes of it is held against the interpreter's."""
    one, case = gather(MeshCase(("dp",), (2,)))
    with pytest.raises(Broken, match="blocks wrong"):
        check_agreement(one, case, AddsOne())
