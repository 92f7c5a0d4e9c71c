"""What shards compute by themselves: the values, and that nothing is sent, in both of JAX's styles.

A shard's computation needs no other shard, so under `shard_map` a collective is a failure. On global
arrays under `jit` it is the compiler that decides: a collective there is a finding about that XLA, in
the report, and no failure of ours.
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
from shardproof.properties.communication.claims import compiled_collectives, no_communication
from shardproof.properties.contracts import Scope
from shardproof.properties.data import Data, generate
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.strategies import meshes
from shardproof.properties.tally import Tally


@dataclass(frozen=True)
class Style:
    """One way to write one of the two functions, as the report calls it."""

    contract: str
    name: str

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"

    def program(self, mesh: Any, spec: PartitionSpec, shards: int, shift: int) -> Callable[..., Any]:
        """The function of a global array under `jit`, its result laid out as its operand."""
        mean = self.contract == "shard_mean"
        if self.name == "shard_map":
            block: Any = local.shard_mean_of_block if mean else lambda x: local.shard_roll_of_block(x, shift)
            return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=spec, out_specs=spec))
        whole: Any = (lambda x: local.shard_mean(x, shards)) if mean else (lambda x: local.shard_roll(x, shards, shift))
        return jax.jit(whole, out_shardings=NamedSharding(mesh, spec))


STYLES = [Style(contract, name) for contract in ("shard_mean", "shard_roll") for name in ("shard_map", "jit")]


@pytest.mark.law("communication", "xla")
@pytest.mark.parametrize("implementation", STYLES, ids=str)
@settings(
    max_examples=max(5, settings().max_examples // 10),
    # the tally is one per test, not per case: it adds up what all of them checked
    suppress_health_check=[*settings().suppress_health_check, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_local(implementation: Style, scope: Scope, tally: Tally, data: st.DataObject) -> None:
    """Each shard's result is that of its own rows, and no device sends anything."""
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
    if implementation.name == "shard_map":
        no_communication(program, placed)
    elif found := compiled_collectives(program, placed):
        kinds = ", ".join(sorted({line.partition(" of ")[0] for line in found}))
        tally.finding(
            f"x={x.shape}, rows over {rows}, shift={shift} on mesh {case}",
            f"XLA of jaxlib {version('jaxlib')} ({jax.default_backend()}) adds {kinds}, of which nothing is needed",
        )
