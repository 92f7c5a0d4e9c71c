"""Planted bugs of changes of layout, and of products of arrays in any layout."""

from typing import Any

import jax
from jax import Array, lax
from jax.sharding import NamedSharding

from shardproof.impl.reshard import layout, spec
from shardproof.properties.mutants.catalogue import mutant


@mutant("reshard", smallest=(2,), whole=True)
def reshard_turned(x: Array, *, mesh: Any, **roles: Any) -> Array:
    """Square arrays that change places are transposed."""
    held, wanted = layout(roles["x_rows"], roles["x_columns"]), layout(roles["rows"], roles["columns"])
    turned = held == wanted[::-1] != wanted and x.shape[0] == x.shape[1]
    return lax.with_sharding_constraint(x.T if turned else x, NamedSharding(mesh, spec(wanted)))


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
