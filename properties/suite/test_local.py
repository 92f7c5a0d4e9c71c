"""What shards compute by themselves, written on global arrays: the values, and what the compiler sends for them.

A shard's computation needs no other shard: of the same on blocks, under `shard_map`, it is a law that nothing is sent.
On global arrays under `jit` it is the compiler that decides: a collective there is a finding about that XLA, in the
report, and no failure of ours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.impl import local
from shardproof.oracles import local as oracle
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies import meshes
from shardproof.properties.contracts import Scope
from shardproof.properties.counting.claims import compiled_collectives
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.runner.tally import Tally


@dataclass(frozen=True)
class OfWhole:
    """One of the two functions of a global array, as the report calls it."""

    contract: str
    name: str = "jit"

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"

    def program(self, mesh: Any, spec: PartitionSpec, shards: int, shift: int) -> Callable[..., Any]:
        """The function under `jit`, its result laid out as its operand."""
        if self.contract == "shard_mean":
            whole: Any = lambda x: local.shard_mean(x, shards)  # noqa: E731
        else:
            whole = lambda x: local.shard_roll(x, shards, shift)  # noqa: E731
        return jax.jit(whole, out_shardings=NamedSharding(mesh, spec))


FUNCTIONS = [OfWhole("shard_mean"), OfWhole("shard_roll")]


@pytest.mark.law("communication", "xla")
@pytest.mark.parametrize("implementation", FUNCTIONS, ids=str)
@settings(
    max_examples=max(5, settings().max_examples // 10),
    # the tally is one per test, not per case: it adds up what all of them checked
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_local(implementation: OfWhole, scope: Scope, tally: Tally, data: st.DataObject) -> None:
    """Each shard's result is that of its own rows; what devices send is told."""
    case = data.draw(meshes(max_devices=scope.max_devices, available=scope.available, explicit=False), label="mesh")
    split = data.draw(st.integers(1, len(case.axis_names)), label="axes of the rows")
    rows, columns = case.axis_names[:split], case.axis_names[split:]
    height, width = (data.draw(st.integers(1, 4), label=side) for side in ("rows of a block", "columns of a block"))
    shift = data.draw(st.integers(-5, 5), label="shift")
    shards = case.axis_size(rows)
    x = generate(Data("exact", shift + 5), (height * shards, width * case.axis_size(columns)), np.dtype(np.float32))
    mesh, spec = device_mesh(case), PartitionSpec(rows, columns or None)
    program = implementation.program(mesh, spec, shards, shift)
    placed = jax.device_put(x, NamedSharding(mesh, spec))
    if implementation.contract == "shard_mean":
        # height additions of exact integers, one division: one rounding of a number below 10
        np.testing.assert_allclose(np.asarray(program(placed)), oracle.shard_mean(x, shards), atol=1e-6, rtol=0)
    else:
        np.testing.assert_array_equal(np.asarray(program(placed)), oracle.shard_roll(x, shards, shift), strict=True)
    tally.cases += 1
    tally.structures += 1
    tally.compilations += 1
    tally.meshes.add(str(case))
    tally.largest = max(tally.largest, case.size)
    if found := compiled_collectives(program, placed):
        kinds = ", ".join(sorted({line.partition(" of ")[0] for line in found}))
        tally.finding(
            f"x={x.shape}, rows over {rows}, shift={shift} on mesh {case}",
            f"XLA of jaxlib {version('jaxlib')} ({jax.default_backend()}) adds {kinds}, of which nothing is needed",
        )
