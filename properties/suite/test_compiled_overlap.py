"""The law of overlap on compiled programs: everything that claims to overlap, forward and backward, for TPU topologies.

Needs libtpu, and no TPU: `tox -e tpu-compiler`, or `pytest -m tpu_compiler` where libtpu is installed.
"""

import pytest

from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.tpu_compiler import FORWARD, WAYS, Request, TpuCompiler
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.suite.compiled_overlap import (
    case_with_room,
    check_compiled_overlap,
    place,
    share_of,
)

CLAIMING = [one for one in IMPLEMENTATIONS if one.overlap is not None]
MAIN, OTHER = "v5e:2x4", "v6e:2x4"
"""Each form is compiled for the first topology, and the first form of each contract for the other one as well."""

PROGRAMS = [(one, MAIN, way) for way in WAYS for one in CLAIMING]
PROGRAMS += [(one, OTHER, FORWARD) for one in {one.contract.name: one for one in reversed(CLAIMING)}.values()]


FALLS_SHORT: dict[tuple[str, str], tuple[str, ...]] = {
    (MAIN, FORWARD): (
        "matmul_reduce_scatter[ring_matmul_reduce_scatter]",
        "matmul_all_reduce[scattered_matmul_all_reduce]",
        "transformer_block[overlapped_transformer_block]",
    ),
    (OTHER, FORWARD): (
        "all_gather_matmul_lhs_contracting[ring_all_gather_matmul_lhs_contracting]",
        "all_gather_matmul_rhs[ring_all_gather_matmul_rhs]",
        "matmul_reduce_scatter[ring_matmul_reduce_scatter]",
        "matmul_all_reduce[scattered_matmul_all_reduce]",
        "transformer_block[overlapped_transformer_block]",
        "sequence_parallel_mlp[bidirectional]",
    ),
}
"""Forms that could hide their communication, a larger part of which XLA:TPU schedules with no product beside it; and
`scattered`, whose all-gather has none by its claim.

These are findings, and no exceptions: the law must report each of them. One that it reports no more is to be taken out.
"""


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("one", "topology", "way"), PROGRAMS, ids=str)
def test_what_claims_to_overlap_is_scheduled_so(
    one: Implementation, topology: str, way: str, tpu_compiler: TpuCompiler
) -> None:
    """Permutes alone, begun before the products that hide them, next to nothing of them waited for."""
    chips = Topology.parse(topology)
    mesh, axis_name = place(chips)
    case = case_with_room(one.contract.name, mesh, axis_name, chip(chips.generation))
    compiled = tpu_compiler.compile(Request(topology, case, str(one), way))
    assert one.overlap is not None
    try:
        check_compiled_overlap(one.overlap, share_of(one, case), case, compiled, chips, way)
    except Broken as broken:
        if str(one) not in FALLS_SHORT.get((topology, way), ()):
            pytest.fail(f"{one}: overlap: {broken.finding}", pytrace=False)
    else:
        if str(one) in FALLS_SHORT.get((topology, way), ()):
            pytest.fail(f"{one} {way} on {topology} hides what it sends: take it out of FALLS_SHORT", pytrace=False)
