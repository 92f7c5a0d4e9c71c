"""Matrix products of arrays in any layout: by hand on blocks, and as the compiler partitions them.

Rows and columns of every array are each sharded over an axis tuple of their own, which may be empty, and may have
axes that shard another array: `A[B_X, D_Y] W[D_X, F] -> [B_X, F_Y]`, say. Fully sharded data parallelism is
`A[B_X, D] W[D_X, F] -> [B_X, F]`.

The device-local forms run inside `jax.shard_map`; their results are typed varying along the axes of their own layout
alone. The others take global arrays, for `jax.jit`. On axes of type Auto the compiler chooses how to get from the
layouts of the operands to that of the result. On axes of type Explicit the layout is part of the type, and a product
whose result could have several gets it as `out_sharding`. All raise ValueError for operands whose contracted sizes
differ.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jaxtyping import Array

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul.operands import check_contraction
from shardproof.impl.collectives import cast_varying
from shardproof.impl.reshard import Block, Global, Layout, abstract_of, layout, on_explicit_axes, reshard_block, spec
from shardproof.impl.rings import align_types, multiply

Way = Callable[[Array, Array, Layout, Layout, Layout], Array]
"""Two blocks, their layouts, and that of their product, to a block of it."""


def gathered_matmul(lhs: Block, rhs: Block, **layouts: AxisName) -> Block:
    """`A[B_lhs_rows, D_lhs_columns] W[D_rhs_rows, F_rhs_columns] -> [B_rows, F_columns]` on blocks: gathers first.

    `layouts` are `lhs_rows`, `lhs_columns`, `rhs_rows`, `rhs_columns`, `rows`, `columns`: an axis or axis tuple each.
    The product is rounded once to the operands' dtype.
    """
    return matmul_of_blocks("gathered_matmul", gather_then_multiply, lhs, rhs, layouts)


def reduced_matmul(lhs: Block, rhs: Block, **layouts: AxisName) -> Block:
    """As `gathered_matmul`: multiplies the columns of A that a device has, and adds up the products."""
    return matmul_of_blocks("reduced_matmul", multiply_then_reduce, lhs, rhs, layouts)


def gathered_two_matmuls(x: Block, w_in: Block, w_out: Block, **layouts: AxisName) -> Block:
    """`X[B, D] W_in[D, F] W_out[F, D] -> [B, D]` on blocks, the hidden values `[B, F]` laid out as well: gathers first.

    `layouts` are `x_rows`, `x_columns`, and so on for `w_in`, `w_out` and `hidden`; of the result `rows` and `columns`.
    The hidden values are rounded to the operands' dtype, and so is the result.
    """
    name = "gathered_two_matmuls"
    start, first, second, between = layouts_of(layouts, "x", "w_in", "w_out", "hidden")
    _check(name, "w_in", x, w_in, start, first)
    _check(name, "w_out", w_in, w_out, first, second)
    hidden = gather_then_multiply(x, w_in, start, first, between)
    return gather_then_multiply(hidden, w_out, between, second, layout(layouts["rows"], layouts["columns"]))


def matmul_of_blocks(function: str, way: Way, lhs: Block, rhs: Block, layouts: Mapping[str, AxisName]) -> Block:
    """The block of a product, of operands whose contracted sizes are checked, brought together in a way."""
    left, right = layouts_of(layouts, "lhs", "rhs")
    _check(function, "rhs", lhs, rhs, left, right)
    return way(lhs, rhs, left, right, layout(layouts["rows"], layouts["columns"]))


def gather_then_multiply(lhs: Block, rhs: Block, left: Layout, right: Layout, result: Layout) -> Block:
    """Gathers what a device lacks of the rows and columns that its part of the product depends on, then multiplies."""
    of_rows, of_columns = reshard_block(lhs, left, (result[0], ())), reshard_block(rhs, right, ((), result[1]))
    return multiply(*align_types(of_rows, of_columns)).astype(lhs.dtype)


def multiply_then_reduce(lhs: Block, rhs: Block, left: Layout, right: Layout, result: Layout) -> Block:
    """Multiplies the columns of A that a device has with the rows of W for them, and adds up the products."""
    rows, contracted = left
    partial = multiply(*align_types(lhs, reshard_block(rhs, right, (contracted, ()))))
    total = lax.psum(cast_varying(partial, contracted), contracted) if contracted else partial
    return reshard_block(total.astype(lhs.dtype), (rows, ()), result)


def automatic_matmul(
    lhs: Global, rhs: Global, *, mesh: Mesh | AbstractMesh, rows: AxisName, columns: AxisName, **layouts: AxisName
) -> Global:
    """`[B, D] @ [D, F] -> [B_rows, F_columns]` on automatic axes, whatever the operands' layouts."""
    _check_whole("automatic_matmul", mesh, rhs=(lhs, rhs))
    return _constrained_product(lhs, rhs, mesh, layout(rows, columns))


def automatic_two_matmuls(
    x: Global, w_in: Global, w_out: Global, *, mesh: Mesh | AbstractMesh, **layouts: AxisName
) -> Global:
    """`[B, D] @ [D, F] @ [F, D] -> [B_rows, D_columns]` on automatic axes, the hidden `[B, F]` laid out as well."""
    _check_whole("automatic_two_matmuls", mesh, w_in=(x, w_in), w_out=(w_in, w_out))
    (between,), wanted = layouts_of(layouts, "hidden"), layout(layouts["rows"], layouts["columns"])
    return _constrained_product(_constrained_product(x, w_in, mesh, between), w_out, mesh, wanted)


def explicit_matmul(
    lhs: Global, rhs: Global, *, mesh: Mesh | AbstractMesh, rows: AxisName, columns: AxisName, **layouts: AxisName
) -> Global:
    """`[B, D] @ [D, F] -> [B, F]` on explicit axes, where the types of the operands say how they are laid out."""
    _check_whole("explicit_matmul", mesh, rhs=(lhs, rhs))
    product = partial(jnp.matmul, out_sharding=spec(layout(rows, columns)))
    return on_explicit_axes(product, mesh, *layouts_of(layouts, "lhs", "rhs"))(lhs, rhs)


def explicit_two_matmuls(
    x: Global, w_in: Global, w_out: Global, *, mesh: Mesh | AbstractMesh, **layouts: AxisName
) -> Global:
    """`[B, D] @ [D, F] @ [F, D] -> [B, D]` on explicit axes, where types say how arrays are laid out."""
    wanted = spec(layout(layouts["rows"], layouts["columns"]))
    return _two_matmuls("explicit_two_matmuls", partial(jnp.matmul, out_sharding=wanted), x, w_in, w_out, mesh, layouts)


def mixed_two_matmuls(
    x: Global, w_in: Global, w_out: Global, *, mesh: Mesh | AbstractMesh, **layouts: AxisName
) -> Global:
    """As `explicit_two_matmuls`, whose second product is on automatic axes: the compiler has it, up to its type."""
    wanted, axes = spec(layout(layouts["rows"], layouts["columns"])), abstract_of(mesh).axis_names
    product = jax.sharding.auto_axes(jnp.matmul, axes=axes, out_sharding=wanted)
    return _two_matmuls("mixed_two_matmuls", product, x, w_in, w_out, mesh, layouts)


def _two_matmuls(
    function: str,
    second: Callable[..., Global],
    x: Global,
    w_in: Global,
    w_out: Global,
    mesh: Mesh | AbstractMesh,
    layouts: Mapping[str, AxisName],
) -> Global:
    """Two products on explicit axes, the hidden values typed as they are to be laid out."""
    _check_whole(function, mesh, w_in=(x, w_in), w_out=(w_in, w_out))
    between = spec(*layouts_of(layouts, "hidden"))

    def product(x: Global, w_in: Global, w_out: Global) -> Global:
        return second(jnp.matmul(x, w_in, out_sharding=between), w_out)

    return on_explicit_axes(product, mesh, *layouts_of(layouts, "x", "w_in", "w_out"))(x, w_in, w_out)


def layouts_of(layouts: Mapping[str, AxisName], *names: str) -> list[Layout]:
    """The layouts of these matrices, out of all `NAME_rows` and `NAME_columns`."""
    return [layout(layouts[f"{name}_rows"], layouts[f"{name}_columns"]) for name in names]


def _check(function: str, argument: str, lhs: Block, rhs: Block, left: Layout, right: Layout) -> None:
    columns, rows = (math.prod(map(lax.axis_size, axes)) for axes in (left[1], right[0]))
    check_contraction(function, argument, rhs.shape[0] * rows, lhs.shape[1] * columns)


def _check_whole(function: str, mesh: Mesh | AbstractMesh, **pairs: tuple[Global, Global]) -> None:
    with jax.sharding.use_abstract_mesh(abstract_of(mesh)):
        for argument, (lhs, rhs) in pairs.items():
            check_contraction(function, argument, rhs.shape[0], lhs.shape[1])


def _constrained_product(lhs: Global, rhs: Global, mesh: Mesh | AbstractMesh, to: Layout) -> Global:
    return lax.with_sharding_constraint(lhs @ rhs, NamedSharding(mesh, spec(to)))
