"""A block in another layout, with what both layouts have in common left where it is. Runs inside `jax.shard_map`."""

import itertools
from collections.abc import Sequence

from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import Axes
from shardproof.impl.collectives import all_gather_invariant, all_to_all, axis_index, cast_varying


def exchanged(x: Shaped[Array, "..."], held: Sequence[Axes], wanted: Sequence[Axes]) -> Shaped[Array, "..."]:
    """A block in another layout, of as many dimensions as there are axis tuples.

    A dimension is cut first if its new axes are those of replicas. Axes that go from one dimension to another, which
    had no others of its own to give up, are exchanged (all-to-all). What is left is gathered, then cut.
    """
    kept = [common(*both) for both in zip(held, wanted, strict=True)]
    left = [axes[n:] for n, axes in zip(kept, held, strict=True)]
    new = [axes[n:] for n, axes in zip(kept, wanted, strict=True)]
    taken = {name for axes in left for name in axes}
    for dimension in range(x.ndim):
        if not left[dimension] and not taken & {*new[dimension]}:
            x = _cut(x, dimension, new[dimension])
            new[dimension] = ()
    for source, target in itertools.permutations(range(x.ndim), 2):
        if left[source] and left[source] == new[target] and not left[target]:
            axes = left[source]
            x = all_to_all(cast_varying(x, axes), axes, split_axis=target, concat_axis=source, tiled=True)
            left[source] = new[target] = ()
    for dimension in range(x.ndim):
        if axes := left[dimension]:
            x = all_gather_invariant(cast_varying(x, axes), axes, axis=dimension, tiled=True)
    for dimension in range(x.ndim):
        x = _cut(x, dimension, new[dimension])
    return x


def common(one: Axes, other: Axes) -> int:
    """How many axes two tuples have in common, from the first on."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(x: Shaped[Array, "..."], dimension: int, axes: Axes) -> Shaped[Array, "..."]:
    """A device's part of a dimension, by its index along the axes."""
    if not axes:
        return x
    size = x.shape[dimension] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(x, axis_index(axes) * size, size, dimension)
