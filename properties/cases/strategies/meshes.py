"""Meshes: every factorisation of every number of devices, under names and orders of the field.

Axis tuples have participants, which permutations and groups refer to; PartitionSpecs say which axes split which
dimension, in which order.
"""

import math
from collections.abc import Collection, Hashable, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies.making import Composite, sampled

MAX_AXES = 4
"""The most axes of a drawn mesh."""

# strategies that take no part of a case are made once, since Hypothesis validates each one
KINDS_OF_ORDER = st.sampled_from(("given", "reversed", "any"))
COUNTS = st.integers(1, MAX_AXES)
SKIPPED = st.integers(0, MAX_AXES - 2)
EVERY = st.one_of(st.just(()), st.permutations(range(MAX_AXES)))


@lru_cache
def orders(of: Hashable) -> st.SearchStrategy[list[Any]]:
    """The permutations of a tuple, or of a range."""
    return st.permutations(of)  # type: ignore[arg-type]


def in_some_order(draw: st.DrawFn, names: Sequence[str]) -> list[str]:
    """All names, in any order.

    Draws the same number of choices for every mesh of at most `MAX_AXES`, so that Hypothesis can remove an axis and
    leave all later draws as they are; and has the reversed order as a choice, which stays reversed without an axis.
    Shrinks to the order given, then to the reversed one.
    """
    kind = draw(KINDS_OF_ORDER, label="kind of order")
    order = draw(orders(range(max(MAX_AXES, len(names)))), label="order of axes")
    if kind == "any":
        return [names[i] for i in order if i < len(names)]
    return list(names) if kind == "given" else list(reversed(names))


@Composite
def axis_tuples(draw: st.DrawFn, mesh: MeshCase) -> tuple[str, ...]:
    """Non-empty subsets of the mesh's axes, in any order.

    Many skip an axis in the middle of the mesh, where there is one: its participants are then no slice of
    the mesh's devices. Where three axes have several devices, half are all axes in any order, since any order of two is
    its own inverse. In half of the draws an axis of one device is replaced by a longer one, if the tuple has no other
    axis, or only one of several devices: then the order would make no difference.
    Shrinks to the mesh's first axis. On `(dp=2, tp=4)` draws `("dp",)`, `("tp",)`, `("dp", "tp")`
    and `("tp", "dp")`.
    """
    names = mesh.axis_names
    count = draw(COUNTS, label="number of axes")
    order = in_some_order(draw, names)
    chosen = order[: min(count, len(names))]
    skipped = draw(SKIPPED, label="skipped axis")
    if skipped and count > 1 and len(names) > 2:  # two axes without a third are still two where there is none
        chosen = [name for name in order if name != names[1 + skipped % (len(names) - 2)]]
    short = draw(st.booleans(), label="as short as it is")
    longer = mesh.longer(names)
    if longer and not short and mesh.axis_size(chosen) == 1:
        chosen[0] = longer[0]
    left = [name for name in longer if name not in chosen]
    if left and len(chosen) > 1 and not short and len(longer) - len(left) == 1:
        chosen[next(i for i, name in enumerate(chosen) if name not in longer)] = left[0]
    every = draw(EVERY, label="every axis")
    if len(longer) > 2 and len(names) <= MAX_AXES and every:
        chosen = [names[i] for i in every if i < len(names)]
    return tuple(chosen)


@Composite
def axis_names(draw: st.DrawFn, mesh: MeshCase) -> str | tuple[str, ...]:
    """Arguments for `axis_name`: a bare name or an axis tuple. Shrinks to the bare name of the mesh's first axis."""
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
    count = draw(st.one_of(sampled(counts[:-1] or counts), sampled(counts)), label="number of groups")
    order = draw(orders(range(size)), label="participants")
    if uneven and draw(st.booleans(), label="uneven"):
        cuts = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)), max_size=3), label="cuts") - {size})
        return tuple(tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, size], strict=True))
    length = size // count
    return tuple(tuple(order[i * length : (i + 1) * length]) for i in range(count))


AXIS_NAMES = ("dp", "tp", "pp", "ep", "sp", "fsdp")
"""Data, tensor, pipelined, expert, sequence and fully sharded data parallelism."""

ONES = st.tuples(*[st.one_of(st.none(), st.integers(0, MAX_AXES))] * 2)
"""Where axes of size 1 come, if there are any."""

MOST_WAYS = 24
"""A multiple of the number of factorisations of most counts; of the others, some are drawn a little more often."""


def known_names(count: int) -> tuple[str, ...]:
    """At least `count` names of axes, `AXIS_NAMES` first."""
    return (*AXIS_NAMES, *(f"axis{i}" for i in range(count - len(AXIS_NAMES))))


@lru_cache
def axis_types(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Types of the axes of a mesh: all automatic, all explicit, or any."""
    choices = st.lists(st.sampled_from(("auto", "explicit")), min_size=count, max_size=count)
    return st.one_of(st.just(("auto",) * count), st.just(("explicit",) * count), choices.map(tuple))


@lru_cache
def factorisations(n: int, *, max_axes: int) -> tuple[tuple[int, ...], ...]:
    """All ordered ways to write `n` as a product of at most `max_axes` factors above 1, shortest first.

    `factorisations(8, max_axes=3)` is `((8,), (2, 4), (4, 2), (2, 2, 2))`; one device is `((1,),)`.
    """
    if n == 1:
        return ((1,),)
    found: list[tuple[int, ...]] = [(n,)]
    if max_axes > 1:
        for first in range(2, n):
            if n % first == 0:
                found += [(first, *rest) for rest in factorisations(n // first, max_axes=max_axes - 1)]
    return tuple(sorted(found, key=lambda sizes: (len(sizes), sizes)))


def axis_sizes(
    draw: st.DrawFn, *, min_devices: int, max_devices: int, max_axes: int, several: bool = False
) -> tuple[int, ...]:
    """Sizes of the axes of a mesh: any factorisation of any number of devices, with up to two axes of size 1 in it.

    If `several`, more than one axis is longer than 1, where that can be. Shrinks to `(min_devices,)`. Always draws the
    same number of choices, so that later draws are unchanged when the mesh gets smaller.
    """
    counts = [n for n in range(min_devices, max_devices + 1) if factorisations(n, max_axes=max_axes)]
    # several axes, whose order can be wrong, are worth more draws than one
    splitting = [n for n in counts if len(factorisations(n, max_axes=max_axes)) > 1]
    either = [splitting] if several and splitting else [counts, splitting] if splitting else [counts]
    n = draw(st.one_of([sampled(numbers) for numbers in either]), label="devices")
    ways = factorisations(n, max_axes=max_axes)
    ways = ways[1:] if several and len(ways) > 1 else ways
    sizes = list(ways[draw(st.integers(0, MOST_WAYS - 1), label="factorisation") % len(ways)])
    spare = min(max_axes, len(AXIS_NAMES)) - len(sizes)
    ones = draw(ONES, label="size-1 axes")
    for position in [one for one in ones if one is not None][: max(spare, 0)]:
        sizes.insert(position % (len(sizes) + 1), 1)
    return tuple(sizes)


@Composite
def meshes(
    draw: st.DrawFn,
    *,
    min_devices: int = 1,
    max_devices: int = 8,
    max_axes: int = 4,
    available: int | None = None,
    explicit: bool = True,
    sizes: tuple[int, ...] = (),
    several: bool = False,
) -> MeshCase:
    """Meshes of `min_devices` to `max_devices` devices in one to `max_axes` axes, some of size 1.

    Arguments:
        available: how many devices there are to choose from (`max_devices` by default), in any order.
        explicit: whether axes may be of the explicit type.
        sizes: the sizes of the axes, if they are not to be drawn.
        several: whether more than one axis is longer than 1, where that can be.

    Shrinks to `(dp=min_devices)`, devices in order, automatic. Draws such as `(dp=2)`,
    `(tp=2, dp=4)`, `(dp=1, tp=2) [devices 3,0]`, `(sp=2, ep=3) [explicit sp]`.
    """
    pool = max_devices if available is None else available
    if not 1 <= min_devices <= max_devices <= pool or max_axes < 1:
        raise InvalidArgument(
            f"meshes: {min_devices=}, {max_devices=}, {max_axes=}, available={pool}: expected "
            "1 <= min_devices <= max_devices <= available and at least one axis"
        )
    sizes = sizes or axis_sizes(
        draw, min_devices=min_devices, max_devices=max_devices, max_axes=max_axes, several=several
    )
    n = math.prod(sizes)
    names = tuple(draw(orders(known_names(len(sizes))), label="names")[: len(sizes)])
    devices: tuple[int, ...] = tuple(range(n))
    if pool > 1 and pool <= 16 and draw(st.booleans(), label="permuted"):
        devices = tuple(draw(orders(range(pool)), label="order")[:n])
    types: tuple[str, ...] = ("auto",) * len(sizes)
    if explicit:
        types = draw(axis_types(len(sizes)), label="types")
    return MeshCase(names, sizes, devices, types)


TORI = ((4, 4, 4), (16, 16), (4, 4, 8), (8, 8, 8), (32, 16), (8, 8, 16), (16, 16, 16))
"""Shapes of pods and their slices."""

SIDES = (2, 3, 4, 5, 7, 8, 16, 32)


@Composite
def large_meshes(draw: st.DrawFn, *, min_devices: int = 9, max_devices: int = 4096, max_axes: int = 4) -> MeshCase:
    """Meshes of `min_devices` to `max_devices` devices: one long axis, two to four shorter ones, or a torus.

    Shrinks to one axis of `min_devices`. Draws such as `(dp=9)`, `(tp=113)`, `(pp=5, dp=8)`,
    `(dp=16, tp=16, pp=16)`. Large ones are rarer: their cost grows with the number of devices.
    """
    if not 1 <= min_devices <= max_devices:
        raise InvalidArgument(f"large_meshes: {min_devices=}, {max_devices=}: expected 1 <= min_devices <= max_devices")
    near, middle = (min(max_devices, max(min_devices, bound)) for bound in (32, 300))
    products = st.lists(st.sampled_from(SIDES), min_size=2, max_size=max_axes).map(tuple)
    within = [sizes for sizes in TORI if min_devices <= math.prod(sizes) <= max_devices and len(sizes) <= max_axes]
    sizes = draw(
        st.one_of(
            st.integers(min_devices, near).map(lambda n: (n,)),
            st.integers(min_devices, middle).map(lambda n: (n,)),
            products.filter(lambda sizes: min_devices <= math.prod(sizes) <= middle),
            sampled(within) if within else st.nothing(),
            st.integers(min_devices, max_devices).map(lambda n: (n,)),
        ),
        label="sizes",
    )
    names = tuple(draw(orders(AXIS_NAMES), label="names")[: len(sizes)])
    return MeshCase(names, sizes)


DIMENSIONS = st.lists(st.integers(0, 5), min_size=MAX_AXES, max_size=MAX_AXES)
TOGETHER = st.sampled_from((False, False, False, True))
"""True to split one dimension by all axes, if by any: a wrong order of axes shows there."""


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

    They name all `required` axes, and may name the `allowed` ones (all of the mesh by default). Shrinks to `required`
    in mesh order on the first dimension, all else replicated. On `(dp=2, tp=4)` draws `((), ())`, `(("dp",), ())`,
    `((), ("tp", "dp"))` for rank 2.
    """
    if required and rank == 0:
        raise InvalidArgument(f"specs: {rank=}, {required=}: expected a dimension to shard")
    candidates = [name for name in mesh.axis_names if allowed is None or name in allowed or name in required]
    places = draw(DIMENSIONS, label="dimensions of axes")
    if draw(TOGETHER, label="axes together"):
        places = [max(places)] * len(places)
    place_of = dict(zip(mesh.axis_names, places, strict=False))
    entries: list[list[str]] = [[] for _ in range(rank)]
    for name in in_some_order(draw, candidates):
        if name in required:
            entries[max(place_of[name] - 1, 0) % rank].append(name)
        elif rank and place_of[name] > 0:
            entries[(place_of[name] - 1) % rank].append(name)
    return tuple(tuple(entry) for entry in entries)
