"""How much each chip multiplies in a cycle: against what its compiler estimates for a large product."""

import pytest

from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.compiled import UNSHARDED, Place, Work
from shardproof.properties.performance.tpu_compiler import TpuCompiler, missing
from shardproof.properties.performance.tpu_compiler.topology import Topology

PLACES = {"v4:2x2x1": 4, "v5e:2x2": 4, "v5p:2x2x1": 4, "v6e:2x2": 4, "tpu7x:2x2x1": 8}
"""Topologies, with all of their devices along the model axis: a chip of TPU7x is two."""


@pytest.mark.skipif(bool(missing()), reason="libtpu is not installed: there is no compiler to ask")
def test_cycles_of_a_large_product() -> None:
    """Nothing is multiplied faster than the figure says, and a large product at five sixths of it or more.

    So it is not half of it, as the documented matrix units of v6e and TPU7x would have it.
    """
    with TpuCompiler() as compiler:
        for name, devices in PLACES.items():
            topology = Topology.parse(name)
            work = Work("all_gather_matmul_lhs", "large", Place(topology, devices))
            one, other = (operand.block for operand in work.case(local=True).operands)
            machine = chip(topology.generation)
            assert machine.cycle is not None
            cycles = work.compiled(compiler, UNSHARDED)[0].compute * machine.clock
            products = 2 * one[0] * one[1] * other[1] / cycles * devices / topology.chips
            assert machine.cycle * 5 <= products * 6 <= machine.cycle * 6, name
