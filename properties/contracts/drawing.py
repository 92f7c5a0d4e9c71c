"""What the cases of all contracts have in common: a mesh within a scope, and which of its axes are manual."""

from collections.abc import Sequence

from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases import Placement
from shardproof.properties.contracts.contract import Scope
from shardproof.properties.strategies import axis_names, large_meshes, meshes
from shardproof.properties.strategies.axes import MAX_AXES

AxisName = str | tuple[str, ...]


@st.composite
def meshes_and_axes(
    draw: st.DrawFn, scope: Scope, around: str, *, most: int | None = None
) -> tuple[MeshCase, AxisName, tuple[str, ...]]:
    """Meshes within a scope, of at most `most` devices where they are large, an `axis_name`, and its axis tuple.

    Under `partial_manual` one axis of a mesh that has several is not in the tuple: it is to stay automatic.
    Shrinks to one device and its first axis.
    """
    if scope.large:
        mesh = draw(large_meshes(max_devices=min(scope.large, most or scope.large)))
    else:
        mesh = draw(
            meshes(max_devices=scope.max_devices, available=scope.available, explicit=scope.explicit, sizes=scope.sizes)
        )
    axis_name = draw(axis_names(mesh))
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    if around == "partial_manual" and 1 < len(axes) == len(mesh.axis_names):
        axis_name = axes = axes[:-1]
    return mesh, axis_name, axes


@st.composite
def manual_axes(draw: st.DrawFn, mesh: MeshCase, axes: Sequence[str]) -> tuple[str, ...]:
    """Axes for `shard_map` to make manual: those of the tuple, and at most one more, so long as one is left."""
    more = draw(st.lists(st.integers(0, MAX_AXES - 1), max_size=1), label="more manual axes")
    manual = mesh.in_mesh_order({*axes, *(name for i, name in enumerate(mesh.axis_names) if i in more)})
    return manual if len(manual) < len(mesh.axis_names) else mesh.in_mesh_order(axes)


def without(placement: Placement, axes: Sequence[str]) -> Placement:
    """The placement with its blocks replicated along `axes`."""
    return Placement(
        tuple(tuple(n for n in entry if n not in axes) for entry in placement.spec),
        tuple(n for n in placement.stacked if n not in axes),
    )
