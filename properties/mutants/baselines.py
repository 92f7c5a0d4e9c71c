"""Planted bugs of matrix products in any layout, on blocks and on global arrays."""

from typing import Any

import jax
from jax import Array, lax

from shardproof.impl import baselines
from shardproof.impl.reshard import Layout, exchanged, layout, spec
from shardproof.impl.rings import aligned, multiply
from shardproof.properties.mutants.catalogue import formula_of, mutant


def _all_of_it(block: Array, held: Layout, wanted: Layout) -> Array:
    return exchanged(exchanged(block, held, ((), ())), ((), ()), wanted)


def _of_all(lhs: Array, rhs: Array, left: Layout, right: Layout, result: Layout) -> Array:
    whole = multiply(*aligned(_all_of_it(lhs, left, (result[0], ())), _all_of_it(rhs, right, ((), result[1]))))
    return whole.astype(lhs.dtype)


@mutant("sharded_matmul", law="communication", smallest=(1,), communication=formula_of("sharded_matmul", "gathered"))
def matmul_of_all(lhs: Array, rhs: Array, **layouts: Any) -> Array:
    """Gathers all of both operands, also what is laid out as it has to be."""
    return baselines.matmul_of_blocks("matmul", _of_all, lhs, rhs, layouts)


@mutant("sharded_matmul", smallest=(2, 2), whole=True)
def matmul_with_rows_in_mesh_order(lhs: Array, rhs: Array, *, mesh: Any, **layouts: Any) -> Array:
    """Its own `shard_map` takes rows in the order of the mesh, and columns as they are laid out."""
    rows, columns = layout(layouts["lhs_rows"], layouts["lhs_columns"])
    left, below = (tuple(name for name in mesh.axis_names if name in axes) for axes in (rows, columns))
    product: Any = jax.shard_map(
        lambda a, w: lax.psum(a @ w, columns) if columns else a @ w,
        mesh=mesh,
        in_specs=(spec((left, columns)), spec((below, ()))),
        out_specs=spec((rows, ())),
    )
    return product(lhs, rhs)


@mutant("two_matmuls", law="gradient", smallest=(2,), whole=True)
def two_matmuls_of_constant_hidden_values(
    x: Array, w_in: Array, w_out: Array, *, mesh: Any, hidden_columns: Any, **layouts: Any
) -> Array:
    """Takes hidden values to be constant that are sharded by columns."""
    axes, _ = layout(hidden_columns, ())
    several = any(mesh.shape[name] > 1 for name in axes)
    hidden = x @ w_in
    return (lax.stop_gradient(hidden) if several else hidden) @ w_out
