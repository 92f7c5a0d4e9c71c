"""Axis tuples, and what refers to their members: permutations and groups of logical indices."""

from collections.abc import Sequence

from hypothesis import strategies as st

from oracles.mesh import MeshCase

MAX_AXES = 4
"""The most axes of a drawn mesh."""


@st.composite
def in_some_order(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """All of at most `MAX_AXES` names, in any order.

    Draws the same number of choices for every mesh, so that Hypothesis can take an axis away and leave
    all that was drawn afterwards as it is; and knows the reversed order by itself, because that stays
    what it is when an axis goes. Shrinks to the order given, then to the reversed one.
    """
    kind = draw(st.sampled_from(("given", "reversed", "any", "any")), label="kind of order")
    order = draw(st.permutations(range(MAX_AXES)), label="order of axes")
    if kind == "any":
        return [names[i] for i in order if i < len(names)]
    return list(names) if kind == "given" else list(reversed(names))


@st.composite
def axis_tuples(draw: st.DrawFn, mesh: MeshCase) -> tuple[str, ...]:
    """Non-empty subsets of the mesh's axes, in any order.

    Shrinks to the mesh's first axis. On `(dp=2, tp=4)` draws `("dp",)`, `("tp",)`, `("dp", "tp")`
    and `("tp", "dp")`.
    """
    count = draw(st.integers(1, MAX_AXES), label="number of axes")
    return tuple(draw(in_some_order(mesh.axis_names))[: min(count, len(mesh.axis_names))])


@st.composite
def axis_names(draw: st.DrawFn, mesh: MeshCase) -> str | tuple[str, ...]:
    """What a collective takes as `axis_name`: a bare name, or an axis tuple, of one name as well.

    Shrinks to the bare name of the mesh's first axis.
    """
    axes = draw(axis_tuples(mesh))
    as_tuple = draw(st.booleans(), label="one name as a tuple")
    return axes if len(axes) > 1 or as_tuple else axes[0]


@st.composite
def permutations_of_members(draw: st.DrawFn, size: int) -> tuple[tuple[int, int], ...]:
    """Partial permutations of `range(size)` as (source, destination) pairs, empty and complete ones among them.

    Shrinks to no pair at all. For 4 members draws `()`, `((0, 1),)`, `((0, 2), (1, 0), (3, 3))`.
    """
    index = st.integers(0, size - 1)
    pairs = draw(
        st.lists(
            st.tuples(index, index),
            unique_by=(lambda pair: pair[0], lambda pair: pair[1]),
            max_size=min(size, 16),
        ),
        label="pairs",
    )
    if draw(st.booleans(), label="complete"):
        sources, destinations = ({pair[side] for pair in pairs} for side in (0, 1))
        left = [i for i in range(size) if i not in destinations]
        pairs += zip([i for i in range(size) if i not in sources], left, strict=True)
    return tuple(pairs)


@st.composite
def index_groups(draw: st.DrawFn, size: int) -> tuple[tuple[int, ...], ...]:
    """Partitions of `range(size)` into groups of equal length, members in any order.

    Shrinks to one group in order. For 4 members draws `((0, 1, 2, 3),)`, `((0, 1), (2, 3))`, `((3, 0), (1, 2))`.
    """
    count = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]), label="number of groups")
    order = draw(st.permutations(range(size)), label="members")
    length = size // count
    return tuple(tuple(order[i * length : (i + 1) * length]) for i in range(count))
