"""Axis tuples, and what refers to their members: permutations and groups of logical indices."""

from hypothesis import strategies as st

from oracles.mesh import MeshCase


@st.composite
def axis_tuples(draw: st.DrawFn, mesh: MeshCase, *, max_axes: int = 4) -> tuple[str, ...]:
    """Non-empty subsets of the mesh's axes, in any order.

    Shrinks to the mesh's first axis. On `(dp=2, tp=4)` draws `("dp",)`, `("tp",)`, `("dp", "tp")`
    and `("tp", "dp")`.
    """
    count = draw(st.integers(1, min(max_axes, len(mesh.axis_names))), label="number of axes")
    return tuple(draw(st.permutations(mesh.axis_names), label="axis order")[:count])


@st.composite
def axis_names(draw: st.DrawFn, mesh: MeshCase) -> str | tuple[str, ...]:
    """What a collective takes as `axis_name`: a bare name, or an axis tuple, of one name as well.

    Shrinks to the bare name of the mesh's first axis.
    """
    axes = draw(axis_tuples(mesh))
    if len(axes) == 1 and not draw(st.booleans(), label="one name as a tuple"):
        return axes[0]
    return axes


@st.composite
def permutations_of_members(draw: st.DrawFn, size: int) -> tuple[tuple[int, int], ...]:
    """Partial permutations of `range(size)` as (source, destination) pairs, empty and full ones among them.

    Shrinks to no pair at all. For 4 members draws `()`, `((0, 1),)`, `((0, 2), (1, 0), (3, 3))`.
    """
    sources = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=min(size, 16)), label="sources")
    if size <= 16 and draw(st.booleans(), label="all sources"):
        sources = list(range(size))
    if size <= 16:
        destinations = draw(st.permutations(range(size)), label="destinations")
    else:  # far too many to permute one by one: a rotation
        offset = draw(st.integers(0, size - 1), label="rotation")
        destinations = [(i + offset) % size for i in range(size)]
    return tuple((source, destinations[source]) for source in sources)


@st.composite
def index_groups(draw: st.DrawFn, size: int) -> tuple[tuple[int, ...], ...]:
    """Partitions of `range(size)` into groups of equal length, members in any order.

    Shrinks to one group in order. For 4 members draws `((0, 1, 2, 3),)`, `((0, 1), (2, 3))`, `((3, 0), (1, 2))`.
    """
    count = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]), label="number of groups")
    order = draw(st.permutations(range(size)), label="members")
    length = size // count
    return tuple(tuple(order[i * length : (i + 1) * length]) for i in range(count))
