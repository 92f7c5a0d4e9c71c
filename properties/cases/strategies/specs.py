"""PartitionSpecs: which mesh axes split which dimension, in which order."""

from collections.abc import Collection

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies.axes import MAX_AXES, in_some_order
from shardproof.properties.cases.strategies.making import Composite

DIMENSIONS = st.lists(st.integers(0, 5), min_size=MAX_AXES, max_size=MAX_AXES)
TOGETHER = st.sampled_from((False, False, False, True))
"""Whether all axes split one dimension, if any does: what takes them in another order is wrong there."""


@Composite
def specs(
    draw: st.DrawFn,
    mesh: MeshCase,
    rank: int,
    *,
    required: Collection[str] = (),
    allowed: Collection[str] | None = None,
) -> Entries:
    """Specs for arrays of `rank` dimensions, as one tuple of mesh axes per dimension.

    Arguments:
        mesh: the mesh whose axes are used.
        rank: the number of dimensions, thus of entries.
        required: axes that some entry must name.
        allowed: axes that entries may name (all of the mesh by default).

    Shrinks to `required` in mesh order on the first dimension, all else replicated. On
    `(dp=2, tp=4)` draws `((), ())`, `(("dp",), ())`, `((), ("tp", "dp"))` for rank 2.

    Raises:
        InvalidArgument: if axes are required and there is no dimension to put them on.
    """
    if required and rank == 0:
        raise InvalidArgument(f"specs: {rank=}, {required=}: expected a dimension to shard")
    candidates = [name for name in mesh.axis_names if allowed is None or name in allowed or name in required]
    places = draw(DIMENSIONS, label="dimensions of axes")
    if draw(TOGETHER, label="axes together"):
        places = [max(places)] * len(places)
    place_of = dict(zip(mesh.axis_names, places, strict=False))
    entries: list[list[str]] = [[] for _ in range(rank)]
    for name in in_some_order.within(draw, candidates):
        if name in required:
            entries[max(place_of[name] - 1, 0) % rank].append(name)
        elif rank and place_of[name] > 0:
            entries[(place_of[name] - 1) % rank].append(name)
    return tuple(tuple(entry) for entry in entries)
