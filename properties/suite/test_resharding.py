"""Changes of layout, compiled: the values stay, are where they were asked for, and little is sent."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardproof.oracles.layout import Entries, shard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import meshes, specs
from shardproof.properties.communication.counted import bytes_moved, of_compiled
from shardproof.properties.contracts import Scope
from shardproof.properties.engines.engine import device_mesh
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.known_defects.faults import in_front
from shardproof.properties.programs.program import partition_spec

Change = Callable[[Any, PartitionSpec, Any], Any]
"""A function of an array, the spec that it is to have, and the mesh."""


@dataclass(frozen=True)
class Resharding:
    """An array, how it is laid out, and how it is to be."""

    mesh: MeshCase
    shape: tuple[int, ...]
    held: Entries
    wanted: Entries

    @property
    def array(self) -> np.ndarray:
        """All elements different."""
        return np.arange(np.prod(self.shape, dtype=int), dtype=np.int32).reshape(self.shape)

    @property
    def lacks(self) -> bool:
        """True if a device lacks something of its new part."""
        before, after = (shard(self.array, self.mesh, spec) for spec in (self.held, self.wanted))
        return any({*after[at].flat} - {*before[at].flat} for at in np.ndindex(*self.mesh.sizes))

    @property
    def gathered(self) -> int:
        """How many elements a device receives that gathers the whole array."""
        return int(self.array.size - shard(self.array, self.mesh, self.held)[(0,) * len(self.mesh.sizes)].size)

    @property
    def over_another_axis(self) -> bool:
        """True if one dimension is to be sharded, over an axis of two, in place of other ones.

        In place of one, over another axis of two; or of two, over an axis of two each, of which the first one's goes to
        a dimension that is not between them.
        """
        held, wanted = (
            [(i, name) for i, axes in enumerate(entries) for name in axes if self.mesh.shape[name] > 1]
            for entries in (self.held, self.wanted)
        )
        if len(wanted) != 1 or any(self.mesh.shape[name] != 2 for _, name in (*held, *wanted)):
            return False
        ((to, over),) = wanted
        if len(held) == 1:
            return held[0][0] != to and held[0][1] != over
        if len(held) != 2:
            return False
        (first, moving), (second, _) = held
        return over == moving and first < second and not first <= to <= second


@st.composite
def reshardings(draw: st.DrawFn, scope: Scope, *, explicit: bool) -> Resharding:
    """Changes of layout on axes that are all explicit, or all automatic. Shrinks to one device."""
    mesh = draw(meshes(max_devices=scope.max_devices, available=scope.available, explicit=False), label="mesh")
    mesh = MeshCase(mesh.axis_names, mesh.sizes, mesh.devices, ("explicit" if explicit else "auto",) * len(mesh.sizes))
    rank = draw(st.integers(1, 3), label="rank")
    held, wanted = draw(specs(mesh, rank), label="held"), draw(specs(mesh, rank), label="wanted")
    if draw(st.booleans(), label="replicas"):  # of which slices are enough
        held = tuple(axes[: len(axes) // 2] for axes in wanted)
    parts = [np.lcm(mesh.axis_size(a), mesh.axis_size(b)) for a, b in zip(held, wanted, strict=True)]
    return Resharding(mesh, tuple(int(part) * draw(st.integers(1, 2)) for part in parts), held, wanted)


def check(function: Change, case: Resharding) -> None:
    """Values are where they were asked for; no more is sent than for gathering the array, and nothing for a slice."""
    mesh, held, wanted = device_mesh(case.mesh), partition_spec(case.held), partition_spec(case.wanted)
    x = jax.device_put(case.array, NamedSharding(mesh, held))
    program: Any = jax.jit(lambda x: function(x, wanted, mesh)).lower(x).compile()
    result = program(x)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, wanted), x.ndim), f"laid out as {result.sharding}"
    here = {s.device: np.asarray(s.data) for s in result.addressable_shards}
    blocks = shard(case.array, case.mesh, case.wanted)
    for at in np.ndindex(*case.mesh.sizes):
        np.testing.assert_array_equal(here[mesh.devices[at]], blocks[at], strict=True)
    sent = bytes_moved(of_compiled(program.as_text()).participants)
    most = Fraction(case.gathered if case.lacks else 0) * case.array.itemsize
    assert sent is not None
    known = case.over_another_axis and DEFECTS["reshard_over_another_axis"].in_version(jax.__version__)
    assert sent <= most or known, f"{sent} bytes pass a device, expected at most {most}"


def constrained(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """On automatic axes."""
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def from_type_to_type(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """On explicit axes."""
    return jax.reshard(x, NamedSharding(mesh, spec))


@pytest.mark.parametrize("function", [constrained, from_type_to_type])
@settings(max_examples=max(20, settings().max_examples // 7))
@given(data=st.data())
def test_a_change_of_layout_sends_no_more_than_there_is(function: Change, scope: Scope, data: st.DataObject) -> None:
    """Of any number of dimensions: what a device has is not sent, and never more than gathering everything takes."""
    case = data.draw(reshardings(scope, explicit=function is from_type_to_type), label="case")
    ends = DEFECTS["reshard_after_another"].in_version(jax.__version__)
    assume(not (in_front(case.held, case.wanted) and ends))
    check(function, case)


def gathering(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """Every device has the whole array first, also where a slice of what it has is enough."""
    return constrained(lax.optimization_barrier(constrained(x, PartitionSpec(), mesh)), spec, mesh)


def in_mesh_order(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """Devices hold the parts that they would in the order of the mesh's own axes."""
    entries = [(entry,) if isinstance(entry, str) else tuple(entry or ()) for entry in spec]
    in_order = PartitionSpec(*(tuple(n for n in mesh.axis_names if n in entry) or None for entry in entries))
    moved_blocks: Any = jax.shard_map(lambda block: block, mesh=mesh, in_specs=in_order, out_specs=spec)
    return moved_blocks(x)


def staying(x: Any, spec: PartitionSpec, mesh: Any) -> Any:
    """The values are right, and every device keeps all of them."""
    return constrained(x, PartitionSpec(), mesh)


TWO, FOUR = MeshCase(("x",), (2,)), MeshCase(("x", "y"), (2, 2))


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize(
    ("function", "case", "match"),
    [
        (gathering, Resharding(FOUR, (4,), (("x",),), (("x", "y"),)), "pass a device, expected at most 0"),
        (in_mesh_order, Resharding(FOUR, (8,), ((),), (("y", "x"),)), "Arrays are not equal"),
        (staying, Resharding(TWO, (4,), ((),), (("x",),)), "laid out as"),
    ],
)
def test_a_wrong_change_of_layout_is_found(function: Change, case: Resharding, match: str) -> None:
    """For what is wrong with it."""
    with pytest.raises(AssertionError, match=match):
        check(function, case)
