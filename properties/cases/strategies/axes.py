"""Axis tuples, and what refers to their participants: permutations and groups of logical indices."""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies.making import Composite, sampled

MAX_AXES = 4
"""The most axes of a drawn mesh."""

# strategies that take no part of a case are made once: Hypothesis validates each anew that is made
KINDS_OF_ORDER = st.sampled_from(("given", "reversed", "reversed", "reversed", "any"))
COUNTS = st.sampled_from((1, 2, 2, 3, 4))
SKIPPED = st.sampled_from((0, 0, 1, 1, 2))
EVERY = st.one_of(st.just(()), st.permutations(range(MAX_AXES)))


@lru_cache
def orders(of: Hashable) -> st.SearchStrategy[list[Any]]:
    """The permutations of a tuple, or of a range, made once for each."""
    return st.permutations(of)  # type: ignore[arg-type]


@Composite
def in_some_order(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """All names, in any order.

    Draws the same number of choices for every mesh of at most `MAX_AXES`, so that Hypothesis can take an axis
    away and leave all that was drawn afterwards as it is; and knows the reversed order by itself, because that
    stays what it is when an axis goes. Shrinks to the order given, then to the reversed one.
    """
    kind = draw(KINDS_OF_ORDER, label="kind of order")
    order = draw(orders(range(max(MAX_AXES, len(names)))), label="order of axes")
    if kind == "any":
        return [names[i] for i in order if i < len(names)]
    return list(names) if kind == "given" else list(reversed(names))


@Composite
def axis_tuples(draw: st.DrawFn, mesh: MeshCase) -> tuple[str, ...]:
    """Non-empty subsets of the mesh's axes, in any order.

    Over a third skip an axis in the middle of the mesh, where there is one: its participants are then no slice of
    the mesh's devices. Where three axes have several devices, half are all axes in any order, since any order of two is
    its own inverse. In half of the draws what would connect a device with itself alone gets a longer axis instead,
    and so does a tuple of several axes of which one alone has several devices, since their order tells nothing.
    Shrinks to the mesh's first axis. On `(dp=2, tp=4)` draws `("dp",)`, `("tp",)`, `("dp", "tp")`
    and `("tp", "dp")`.
    """
    names = mesh.axis_names
    count = draw(COUNTS, label="number of axes")
    order = in_some_order.within(draw, names)
    chosen = order[: min(count, len(names))]
    skipped = draw(SKIPPED, label="skipped axis")
    if skipped and count > 1 and len(names) > 2:  # two axes without a third are still two where there is none
        chosen = [name for name in order if name != names[1 + skipped % (len(names) - 2)]]
    kept = draw(st.booleans(), label="as short as it is")
    longer = mesh.longer(names)
    if longer and not kept and mesh.axis_size(chosen) == 1:
        chosen[0] = longer[0]
    left = [name for name in longer if name not in chosen]
    if left and len(chosen) > 1 and not kept and len(longer) - len(left) == 1:
        chosen[next(i for i, name in enumerate(chosen) if name not in longer)] = left[0]
    every = draw(EVERY, label="every axis")
    if len(longer) > 2 and len(names) <= MAX_AXES and every:
        chosen = [names[i] for i in every if i < len(names)]
    return tuple(chosen)


@Composite
def axis_names(draw: st.DrawFn, mesh: MeshCase) -> str | tuple[str, ...]:
    """What a collective takes as `axis_name`: a bare name, or an axis tuple, of one name as well.

    Shrinks to the bare name of the mesh's first axis.
    """
    axes = axis_tuples.within(draw, mesh)
    as_tuple = draw(st.booleans(), label="one name as a tuple")
    return axes if len(axes) > 1 or as_tuple else axes[0]


@Composite
def permutations_of_participants(draw: st.DrawFn, size: int) -> tuple[tuple[int, int], ...]:
    """Partial permutations of `range(size)` as (source, destination) pairs, empty and complete ones among them.

    Half of them may leave every block where it is. Shrinks to no pair at all. For 4 participants draws `()`,
    `((0, 1),)`, `((0, 2), (1, 0), (3, 3))`.
    """
    moves = draw(st.booleans(), label="moves") and size > 1
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
        left = [*left[moves:], *left[:moves]]
        pairs += zip([i for i in range(size) if i not in sources], left, strict=True)
    if moves and all(source == destination for source, destination in pairs):
        return ((0, 1),)
    return tuple(pairs)


@Composite
def index_groups(draw: st.DrawFn, size: int, *, uneven: bool = False) -> tuple[tuple[int, ...], ...]:
    """Partitions of `range(size)` into groups of equal length, or of any if `uneven`, participants in any order.

    Groups of one participant each are rare, since they exchange nothing. Shrinks to one group in order. For 4
    participants draws `((0, 1, 2, 3),)`, `((0, 1), (2, 3))`, `((3, 0), (1, 2))`, and if `uneven` `((2,), (0, 1, 3))`.
    """
    counts = [d for d in range(1, size + 1) if size % d == 0]
    count = draw(sampled([*counts, *6 * counts[:-1]]), label="number of groups")
    order = draw(orders(range(size)), label="participants")
    if uneven and draw(st.booleans(), label="uneven"):
        cuts = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=3), label="cuts") - {size})
        return tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, size], strict=True))
    length = size // count
    return tuple(tuple(order[i * length : (i + 1) * length]) for i in range(count))
