"""Shared parts of collective matrix products: checks of arguments, the product of blocks, and loops round a ring."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import AxisName, as_axes, check_axes, check_divides, refuse
from shardproof.impl.collectives import cast_varying, varying
from shardproof.impl.dtypes import accumulator

Left = Shaped[Array, "*batch _ _"]
Right = Shaped[Array, "_ _"]
Result = Shaped[Array, "*batch _ _"]
"""Blocks: the contracted dimension has one size on the left and another on the right until it is gathered."""

Sums = Literal["accumulator", "operands"]
"""The dtype in which sums travel: that in which products are added up, or that of the operands."""

UNROLLED = 8
"""The most participants for which a ring's loop is unrolled when it is compiled: each step of a loop costs XLA:TPU a
copy of the carry, and a barrier. It is traced as a loop either way: 512 participants are traced as fast as 2."""

Product = TypeVar("Product", bound=Callable[..., Any])
Carry = TypeVar("Carry")


def check_product(gathered: Literal["lhs", "rhs"] | None = None) -> Callable[[Product], Product]:
    """Decorate `product(lhs, rhs, axis_name, …)`: arguments are checked, and `axis_name` arrives as a tuple.

    Arguments:
        gathered: the operand whose blocks have a part of the contracted dimension alone, if one has.

    Raises:
        ValueError: when the product is called, for an unknown axis, operands whose contracted sizes differ, a
            `scatter_dimension` that is neither 0 nor 1 or does not divide by the number of participants, or `sums`
            that is neither of its values.
    """

    def check(function: str, given: dict[str, Any], p: int) -> None:
        lhs, rhs = given["lhs"], given["rhs"]
        rows = rhs.shape[0] * (p if gathered == "rhs" else 1)
        check_contraction(function, "rhs", rows, lhs.shape[-1] * (p if gathered == "lhs" else 1))
        if "scatter_dimension" in given:
            _check_scattered(function, (lhs.shape[-2], rhs.shape[-1]), p, given["scatter_dimension"])

    return _checked(check)


def check_block(block: Product) -> Product:
    """Decorate `block(x, w_in, w_out, axis_name, …)`, as `check_product` does with a product.

    Raises:
        ValueError: when it is called, for an unknown axis, operands whose contracted sizes differ, columns of `w_out`
            that do not divide by the number of participants, or `sums` that is neither of its values.
    """

    def check(function: str, given: dict[str, Any], p: int) -> None:
        x, w_in, w_out = given["x"], given["w_in"], given["w_out"]
        check_contraction(function, "w_in", w_in.shape[0], x.shape[-1] * p)
        check_contraction(function, "w_out", w_out.shape[0], w_in.shape[-1])
        _check_scattered(function, (x.shape[-2], w_out.shape[-1]), p, 1)

    return _checked(check)(block)


def check_contraction(function: str, argument: str, rows: int, columns: int) -> None:
    """As many rows of the right operand as columns of the left one, once both are whole.

    Raises:
        ValueError: if not.
    """
    if rows != columns:
        refuse(function, argument, f"{rows} rows", f"{columns} rows, as many as the left operand has columns in all")


def multiply(lhs: Shaped[Array, "*batch m k"], rhs: Shaped[Array, "k n"]) -> Shaped[Array, "*batch m n"]:
    """`lhs @ rhs` in the accumulator's dtype."""
    return jnp.matmul(lhs, rhs, preferred_element_type=accumulator(lhs, rhs))


def rounded_product(lhs: Shaped[Array, "*batch m k"], rhs: Shaped[Array, "k n"]) -> Shaped[Array, "*batch m n"]:
    """`lhs @ rhs`, rounded once to the operands' dtype."""
    return multiply(lhs, rhs).astype(jnp.result_type(lhs, rhs))


def aligned(lhs: Left, rhs: Right, axis_name: AxisName = ()) -> tuple[Left, Right]:
    """Both operands, typed varying along `axis_name` and along whatever the other one varies along.

    A product casts its operands by itself, but the transpose of a cast is a sum over the axes that were
    missing: here it is one sum of a block, in a loop it would be one in every step.
    """
    along = {*as_axes(axis_name), *varying(lhs), *varying(rhs)}
    return cast_varying(lhs, along), cast_varying(rhs, along)


def travelling(sums: Sums, lhs: Left, rhs: Right) -> Any:
    """The dtype in which the sums of a product travel."""
    return accumulator(lhs, rhs) if sums == "accumulator" else jnp.result_type(lhs, rhs)


def part_of_product(
    lhs: Left, rhs: Right, start: Array, size: int, dimension: int, before: Sequence[Array] = ()
) -> Result:
    """So many rows (dimension 0) or columns (1) of `lhs @ rhs`, computed when the blocks `before` are there.

    What waits is `start`. The derivatives need not wait: they are those of the same part at a `start` that does not.
    """

    def product(lhs: Left, rhs: Right, start: Array) -> Result:
        if dimension == 0:
            return multiply(lax.dynamic_slice_in_dim(lhs, start, size, lhs.ndim - 2), rhs)
        return multiply(lhs, lax.dynamic_slice_in_dim(rhs, start, size, 1))

    @jax.custom_jvp
    def late(lhs: Left, rhs: Right, start: Array, later: Array) -> Result:
        return product(lhs, rhs, later)

    @late.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Result, Result]:
        lhs, rhs, start, _ = primals
        return late(*primals), jax.jvp(lambda a, w: product(a, w, start), (lhs, rhs), tangents[:2])[1]

    if not before:
        return product(lhs, rhs, start)
    found: Result = late(lhs, rhs, start, waiting(start, before))
    return found


def waiting(block: Array, before: Sequence[Array]) -> Array:
    """A block, or the row at which something begins, once other blocks are there; it has no derivative by them."""
    ready: Array = lax.optimization_barrier((block, *map(lax.stop_gradient, before)))[0]
    return ready


def ring_loop(step: Callable[[Carry, Array], Carry], carry: Carry, start: int, stop: int, axis_name: AxisName) -> Carry:
    """`step(carry, distance)` for every distance from `start` to `stop - 1`, or down to `stop + 1`.

    Up to `UNROLLED` participants it is unrolled when it is compiled. Distances are constants: from a traced `arange`
    XLA:TPU would compute the rows of all steps as it runs.
    """
    distances: Any = np.arange(start, stop, 1 if start <= stop else -1)
    unroll = lax.axis_size(axis_name) <= UNROLLED
    return lax.scan(lambda carry, at: (step(carry, at), None), carry, distances, unroll=unroll)[0]


def empty_array(shape: Sequence[int], block: Array) -> Array:
    """An array whose elements are still to be written, typed and laid out as a block that is written into it."""
    empty = lax.empty(tuple(shape), block.dtype, out_sharding=jax.typeof(block).sharding)
    return cast(Array, cast_varying(empty, varying(block)))


def write(whole: Array, block: Array, start: Array | int, dimension: int) -> Array:
    """`whole` with a block written from `start` on along a dimension."""
    return lax.dynamic_update_slice_in_dim(whole, block, start, dimension)


def in_halves(block: Array, dimension: int) -> list[Array]:
    """Two halves of a block; the first has the odd row, and of a single row the second is empty, and is never sent."""
    rows = block.shape[dimension]
    return jnp.split(block, [rows - rows // 2], axis=dimension)


def _check_scattered(function: str, sizes: tuple[int, int], p: int, dimension: int) -> None:
    if dimension not in (0, 1):
        refuse(function, "scatter_dimension", dimension, "0 or 1")
    check_divides(function, "scatter_dimension", dimension, sizes[dimension], p, tiled=True)


def _checked(check: Callable[[str, dict[str, Any], int], None]) -> Callable[[Product], Product]:
    """A decorator that checks arguments by name, defaults included, once the axis tuple is known to be legal."""

    def decorate(function: Product) -> Product:
        name, signature = function.__name__, inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            given["axis_name"] = check_axes(name, given["axis_name"])
            check(name, given, lax.axis_size(given["axis_name"]))
            if given.get("sums", "operands") not in get_args(Sums):
                refuse(name, "sums", given["sums"], " or ".join(map(repr, get_args(Sums))))
            return function(*bound.args, **bound.kwargs)

        return cast(Product, checked)

    return decorate
