"""Meshes: every factorisation of every number of devices, under names and orders of the field."""

import math
from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies.axes import orders
from shardproof.properties.cases.strategies.making import Composite, sampled

AXIS_NAMES = ("dp", "tp", "pp", "ep", "sp", "fsdp")
"""Data, tensor, pipelined, expert, sequence and fully sharded data parallelism."""

NONE = 8
"""Of thirteen draws of a size-1 axis, those that are none."""

ONES = st.tuples(st.integers(0, NONE + 4), st.integers(0, NONE + 4))

MOST_WAYS = 24
"""A multiple of the number of factorisations of most counts; of the others, some are drawn a little more often."""


def known_names(count: int) -> tuple[str, ...]:
    """Names of axes: those of the field, and where a mesh has more axes than these, as many as it takes."""
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


@Composite
def axis_sizes(
    draw: st.DrawFn, *, min_devices: int, max_devices: int, max_axes: int, several: bool = False
) -> tuple[int, ...]:
    """Sizes of the axes of a mesh: any factorisation of any number of devices, with up to two axes of size 1 in it.

    If `several`, more than one axis is longer than 1, where that can be.

    Shrinks to `(min_devices,)`. Always draws the same number of choices, so that what is drawn
    afterwards stays what it is when the mesh gets smaller.
    """
    counts = [n for n in range(min_devices, max_devices + 1) if factorisations(n, max_axes=max_axes)]
    # one device is rare, since nothing moves there; what has several axes, in some order, is more frequent than primes
    splitting = [n for n in counts if len(factorisations(n, max_axes=max_axes)) > 1]
    any_count = [*counts, *counts[1:], *4 * splitting, *4 * counts[-1:]]
    n = draw(sampled(splitting if several and splitting else any_count), label="devices")
    shortest, *others = factorisations(n, max_axes=max_axes)
    # the order of axes tells where there are several
    ways = others if several and others else [shortest, *others, *others]
    sizes = list(ways[draw(st.integers(0, MOST_WAYS - 1), label="factorisation") % len(ways)])
    spare = min(max_axes, len(AXIS_NAMES)) - len(sizes)
    ones = draw(ONES, label="size-1 axes")
    for position in [one - NONE for one in ones if one >= NONE][: max(spare, 0)]:
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
        min_devices: the fewest devices.
        max_devices: the most devices.
        max_axes: the most axes.
        available: how many devices there are to choose from (`max_devices` by default); a mesh may
            use fewer, in any order.
        explicit: whether axes may be of the explicit type.
        sizes: the sizes of the axes, if they are not to be drawn.
        several: whether more than one axis is longer than 1, where that can be.

    Shrinks to `(dp=min_devices)`, devices in order, automatic. Draws such as `(dp=2)`,
    `(tp=2, dp=4)`, `(dp=1, tp=2) [devices 3,0]`, `(sp=2, ep=3) [explicit sp]`.

    Raises:
        InvalidArgument: if the bounds leave no mesh.
    """
    pool = max_devices if available is None else available
    if not 1 <= min_devices <= max_devices <= pool or max_axes < 1:
        raise InvalidArgument(
            f"meshes: {min_devices=}, {max_devices=}, {max_axes=}, available={pool}: expected "
            "1 <= min_devices <= max_devices <= available and at least one axis"
        )
    sizes = sizes or axis_sizes.within(
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

    Raises:
        InvalidArgument: if the bounds leave no mesh.
    """
    if not 1 <= min_devices <= max_devices:
        raise InvalidArgument(f"large_meshes: {min_devices=}, {max_devices=}: expected 1 <= min_devices <= max_devices")
    near, middle = (min(max_devices, max(min_devices, bound)) for bound in (32, 300))
    products = st.lists(st.sampled_from(SIDES), min_size=2, max_size=max_axes).map(tuple)
    within = [sizes for sizes in TORI if min_devices <= math.prod(sizes) <= max_devices and len(sizes) <= max_axes]
    choices = [
        st.integers(min_devices, near).map(lambda n: (n,)),
        st.integers(min_devices, middle).map(lambda n: (n,)),
        products.filter(lambda sizes: min_devices <= math.prod(sizes) <= middle),
        st.integers(min_devices, max_devices).map(lambda n: (n,)),
        *([st.sampled_from(within)] if within else []),
    ]
    chosen = sampled([0, 0, 1, 1, 2, 2, 2, 3, len(choices) - 1])
    sizes = draw(chosen.flatmap(lambda i: choices[i]), label="sizes")
    names = tuple(draw(orders(AXIS_NAMES), label="names")[: len(sizes)])
    return MeshCase(names, sizes)
