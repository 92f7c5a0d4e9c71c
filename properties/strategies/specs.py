"""PartitionSpecs: which mesh axes split which dimension, in which order."""

from collections.abc import Collection

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from oracles.mesh import MeshCase

Entries = tuple[tuple[str, ...], ...]


@st.composite
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
    entries: list[list[str]] = [[] for _ in range(rank)]
    if rank:
        for name in draw(st.permutations(candidates), label="order within entries"):
            places: list[int | None] = [*range(rank)] if name in required else [None, *range(rank)]
            place = draw(st.sampled_from(places), label=f"dimension of {name}")
            if place is not None:
                entries[place].append(name)
    return tuple(tuple(entry) for entry in entries)
