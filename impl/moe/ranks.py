"""Places in queues: of every pair of a token and its choice, how many of the same queue come before it."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from shardproof.impl.collectives import Block, all_gather, axis_index, cast_varying, varying

Numbers = Int[Array, "n"]
"""A number for every pair."""


def sorting(numbers: Numbers) -> Numbers:
    """The order that sorts numbers, typed as they are: that of `jnp.argsort` is typed as the same everywhere."""
    return cast_varying(jnp.argsort(numbers), varying(numbers))


def counted(queues: Numbers, count: int) -> Int[Array, "q"]:
    """How many pairs each of `count` queues has; those of other numbers are in none."""
    return jnp.sum(queues[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)


def places(queues: Numbers, count: int, first: Sequence[Block] = ()) -> Numbers:
    """The place of every pair in its queue, from 0: by the keys in `first`, ties as the pairs stand.

    Sorts once, and never has an array of pairs by queues by features. Pairs of the queue `count` are in none, and
    have places of no meaning.
    """
    if not queues.size:
        return queues
    *_, order = lax.sort((queues, *first, jnp.arange(queues.size)), num_keys=1 + len(first))
    sizes = counted(queues, count + 1)
    ranked = jnp.arange(queues.size) - (jnp.cumsum(sizes) - sizes)[queues[order]]
    return jnp.zeros_like(ranked).at[order].set(ranked).astype(jnp.int32)


def places_of_all(queues: Numbers, count: int, axes: tuple[str, ...], first: Sequence[Block] = ()) -> Numbers:
    """As `places`, in queues of all participants: the pairs of the first one come first, in logical order.

    What is gathered are the lengths of queues, `[p, count]`, and no pairs.
    """
    if not queues.size:
        return queues
    lengths = all_gather(counted(queues, count), axes)
    lower = jnp.arange(lengths.shape[0])[:, None] < axis_index(axes)
    before = jnp.sum(jnp.where(lower, lengths, 0), axis=0)
    return places(queues, count, first) + jnp.append(before, 0)[queues]
