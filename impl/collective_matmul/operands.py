"""What every form of a collective matrix product shares: its operands, their checks, and the product of two blocks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import AxisName, check_axes, check_divides, refuse
from shardproof.impl.collectives import axis_index, cast_varying, varying

Axes = tuple[str, ...]
Left = Shaped[Array, "*batch _ _"]
Right = Shaped[Array, "_ _"]
Result = Shaped[Array, "*batch _ _"]
"""Blocks: what is contracted has one size on the left and another on the right until it is gathered."""


UNROLLED = 8
"""Up to so many participants a ring's loop is unrolled where it is compiled: each step of one costs XLA:TPU a copy of
what it carries, and a barrier. What is traced is a loop either way: 512 participants are traced as fast as 2."""


def counted(start: int, stop: int, step: int = 1) -> Any:
    """The steps of a loop, as constants: from a traced `arange` XLA:TPU computes the rows of all steps when it runs."""
    return np.arange(start, stop, step)


def unwritten(shape: tuple[int, ...], block: Array) -> Any:
    """An array of a shape, typed and laid out as a block that is to be written into it, as all of it must be."""
    empty = lax.empty(shape, block.dtype, out_sharding=jax.typeof(block).sharding)
    return cast_varying(empty, varying(block))


def places_back(axes: Axes) -> Callable[[Any], Array]:
    """The participant that is so many places behind this one, round the ring; ahead of it, if they are negative."""
    p, index = lax.axis_size(axes), axis_index(axes)
    return lambda away: (index - away) % p


def waiting(what: Array, before: Sequence[Array]) -> Array:
    """A block, or the row at which something begins, once other blocks are there; it has no derivative by them."""
    ready: Array = lax.optimization_barrier((what, *map(lax.stop_gradient, before)))[0]
    return ready


def accumulator(*operands: Array) -> Any:
    """The dtype in which products are added up: float32 for 16-bit floats, the operands' own otherwise."""
    dtype = jnp.result_type(*operands)
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def multiply(lhs: Shaped[Array, "*batch m k"], rhs: Shaped[Array, "k n"]) -> Shaped[Array, "*batch m n"]:
    """`lhs @ rhs` in the accumulator's dtype."""
    return jnp.matmul(lhs, rhs, preferred_element_type=accumulator(lhs, rhs))


def aligned(lhs: Left, rhs: Right, axes: Axes = ()) -> tuple[Left, Right]:
    """Both operands, typed varying along `axes` and along whatever the other one varies along.

    A product casts its operands by itself, but the transpose of a cast is a sum over the axes that were
    missing: here it is one sum of a block, in a loop it would be one in every step.
    """
    along = {*axes, *varying(lhs), *varying(rhs)}
    return cast_varying(lhs, along), cast_varying(rhs, along)


def check_contraction(function: str, argument: str, rows: int, columns: int) -> None:
    """As many rows of the right operand as columns of the left one, once both are whole.

    Raises:
        ValueError: if not.
    """
    if rows != columns:
        refuse(function, argument, f"{rows} rows", f"{columns} rows, as many as the left operand has columns in all")


def check_gathered_columns(function: str, lhs: Left, rhs: Right, axis_name: AxisName) -> Axes:
    """The axis tuple of `A[…, M, K_Y] W[K, N_Z]`.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes(function, axis_name)
    check_contraction(function, "rhs", rhs.shape[0], lhs.shape[-1] * lax.axis_size(axes))
    return axes


def check_whole(function: str, lhs: Left, rhs: Right, axis_name: AxisName) -> Axes:
    """The axis tuple of operands whose blocks can be multiplied as they are.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes(function, axis_name)
    check_contraction(function, "rhs", rhs.shape[0], lhs.shape[-1])
    return axes


def check_gathered_rows(function: str, lhs: Left, rhs: Right, axis_name: AxisName) -> Axes:
    """The axis tuple of `A[…, M_Z, K] W[K_Y, N]`.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes(function, axis_name)
    check_contraction(function, "rhs", rhs.shape[0] * lax.axis_size(axes), lhs.shape[-1])
    return axes


def check_scattered(function: str, lhs: Left, rhs: Right, axis_name: AxisName, scatter_dimension: int) -> Axes:
    """The axis tuple of `A[…, M, K_Y] W[K_Y, N]`, the rows or columns of whose product are to be scattered.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, or one that does not divide by the number of participants.
    """
    axes = check_whole(function, lhs, rhs, axis_name)
    if scatter_dimension not in (0, 1):
        refuse(function, "scatter_dimension", scatter_dimension, "0 or 1")
    size = lhs.shape[-2] if scatter_dimension == 0 else rhs.shape[-1]
    check_divides(function, "scatter_dimension", scatter_dimension, size, lax.axis_size(axes), tiled=True)
    return axes


def check_block(function: str, x: Left, w_in: Right, w_out: Right, axis_name: AxisName) -> Axes:
    """The axis tuple of `X[…, B, D_Y] W_in[D, F_Y] -> relu -> W_out[F_Y, D]`.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_axes(function, axis_name)
    check_contraction(function, "w_in", w_in.shape[0], x.shape[-1] * lax.axis_size(axes))
    check_contraction(function, "w_out", w_out.shape[0], w_in.shape[-1])
    return axes
