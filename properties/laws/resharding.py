"""The law of a change of layout, compiled: the values stay, are where they were asked for, and little is sent."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from shardproof.oracles.layout import Entries, shard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import meshes, specs
from shardproof.properties.counting.bounds import moved
from shardproof.properties.counting.counted import of_compiled
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.programs.mapping import partition_spec


@dataclass(frozen=True)
class Resharding:
    """An array of so many dimensions, how it is laid out, and how it is to be."""

    mesh: MeshCase
    shape: tuple[int, ...]
    held: Entries
    wanted: Entries

    @property
    def array(self) -> np.ndarray:
        """All elements different."""
        return np.arange(np.prod(self.shape, dtype=int), dtype=np.int32).reshape(self.shape)

    @property
    def lacking(self) -> int:
        """How many elements some device is to have and does not have."""
        before, after = (shard(self.array, self.mesh, spec) for spec in (self.held, self.wanted))
        return max(len({*after[at].flat} - {*before[at].flat}) for at in np.ndindex(*self.mesh.sizes))

    @property
    def in_front_of_another(self) -> bool:
        """Whether an axis of one dimension goes to another one, in front of an axis that is there already."""
        elsewhere = [{n for j, a in enumerate(self.held) if j != i for n in a} for i in range(len(self.held))]
        return any(
            name in held and elsewhere[i] & {*wanted[:at]}
            for i, (held, wanted) in enumerate(zip(self.held, self.wanted, strict=True))
            for at, name in enumerate(wanted)
        )

    @property
    def gathered(self) -> int:
        """How many elements a device receives that gathers the whole array."""
        return int(self.array.size - shard(self.array, self.mesh, self.held)[(0,) * len(self.mesh.sizes)].size)


@st.composite
def reshardings(draw: Any, *, max_devices: int, available: int, explicit: bool) -> Resharding:
    """Changes of layout on axes that are all explicit, or all automatic. Shrinks to one device."""
    mesh = draw(meshes(max_devices=max_devices, available=available, explicit=False))
    mesh = MeshCase(mesh.axis_names, mesh.sizes, mesh.devices, ("explicit" if explicit else "auto",) * len(mesh.sizes))
    rank = draw(st.integers(1, 3), label="rank")
    held, wanted = draw(specs(mesh, rank), label="held"), draw(specs(mesh, rank), label="wanted")
    if draw(st.integers(0, 7), label="replicas") == 7:  # of which slices are enough
        held = tuple(axes[: len(axes) // 2] for axes in wanted)
    parts = [np.lcm(mesh.axis_size(a), mesh.axis_size(b)) for a, b in zip(held, wanted, strict=True)]
    shape = tuple(int(part) * draw(st.integers(1, 2), label="factor") for part in parts)
    return Resharding(mesh, shape, held, wanted)


def check_resharding(function: Callable[..., Any], case: Resharding) -> None:
    """The law, of a function of an array, the spec that it is to have, and the mesh.

    Raises:
        AssertionError: if values differ, or are elsewhere; if something is sent though every device has what it is to
            have; or if more passes a device than if it gathered the whole array.
    """
    mesh = device_mesh(case.mesh)
    held, wanted = partition_spec(case.held), partition_spec(case.wanted)
    x = jax.device_put(case.array, NamedSharding(mesh, held))
    program: Any = jax.jit(lambda x: function(x, wanted, mesh)).lower(x).compile()
    result = program(x)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, wanted), x.ndim), f"{case}: {result.sharding}"
    blocks = shard(case.array, case.mesh, case.wanted)
    here = {s.device: np.asarray(s.data) for s in result.addressable_shards}
    for at in np.ndindex(*case.mesh.sizes):
        np.testing.assert_array_equal(here[mesh.devices[at]], blocks[at], err_msg=f"{case} at {at}")
    counted = of_compiled(program.as_text())
    sent = moved(counted.members)
    assert sent is not None
    most = Fraction(case.gathered if case.lacking else 0) * case.array.itemsize
    assert sent <= most, f"{case}: sends {counted.cost}, {sent} bytes through a device, expected at most {most}"
