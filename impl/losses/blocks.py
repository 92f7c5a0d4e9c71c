"""What losses make of blocks inside of `shard_map`: gathered parameters, and sums whose parts are scattered."""

from collections.abc import Sequence

import jax
from jax import lax
from jaxtyping import Array, Float, Shaped

from shardproof.impl.collectives import cast_varying
from shardproof.impl.losses.layout import Axes
from shardproof.impl.model import wide

Gathers = Sequence[tuple[Axes, int]]
"""The axis tuples to gather over, each with the dimension that it shards, one after the other."""

GATHERED = frozenset({"all_gather", "convert_element_type", "custom_jvp_call", "pcast", "pvary"})
"""Primitives whose results are gathered parameters, or these in a wider dtype: what is not kept for a backward pass.

One that JAX has not taken apart is a gather of 16-bit floats, see `assembled`: by its name a policy would keep it.
"""


def assembled(block: Shaped[Array, "..."], gathers: Gathers = (), *, along: Axes) -> Float[Array, "..."]:
    """A device's block of a parameter, gathered, in the accumulator's dtype, and typed varying `along` these axes too.

    What travels forward is of the block's own dtype. Its gradient is added up in the accumulator's, over the devices
    of the gathers (a reduce-scatter) and over those that hold replicas of the block (an all-reduce), and rounded once.
    """
    gathers = tuple((axes, dimension) for axes, dimension in gathers if axes)
    if not gathers or wide(block).dtype == block.dtype:
        return _gathered(wide(block), gathers, along)

    @jax.custom_jvp
    def gathered(x: Array) -> Array:
        return wide(_gathered(x, gathers, along))

    @gathered.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return gathered(*primals), _gathered(wide(*tangents), gathers, along)

    result: Array = gathered(block)
    return result


def _gathered(block: Array, gathers: Gathers, along: Axes) -> Array:
    # cast first: the transpose of the cast is a sum over replicas, and then one of a block
    block = cast_varying(block, along)
    for axes, dimension in gathers:
        block = lax.all_gather(block, axes, axis=dimension, tiled=True)
    return block


def scattered_sum(x: Float[Array, "b d"], axes: Axes) -> Float[Array, "b d_part"]:
    """The sum over these axes, of whose columns every device keeps its part."""
    return lax.psum_scatter(x, axes, scatter_dimension=1, tiled=True) if axes else x


def saves_all_but_gathers(primitive: object, *_: object, **__: object) -> bool:
    """A policy of `jax.checkpoint`: gathered parameters are gathered again where a backward pass needs them."""
    return getattr(primitive, "name", "") not in GATHERED
