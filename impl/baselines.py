"""Matrix products of global arrays that leave communication to the compiler: what written rings are compared with.

On axes of type Auto the compiler chooses how to get from the layouts of the operands to that of the result; on
axes of type Explicit the layout is part of the type, and a product whose result could have several must
be told which (`out_sharding`). Shapes are global, with the axes that shard them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

Left = Shaped[Array, "b d"]
Right = Shaped[Array, "d f"]
Result = Shaped[Array, "b f"]


def matmul(lhs: Left, rhs: Right) -> Result:
    """`[B, D] @ [D, F] -> [B, F]`, laid out as the compiler likes."""
    return jnp.einsum("bd,df->bf", lhs, rhs)


def square_matmul(lhs: Left, rhs: Right) -> Result:
    """`[B, D]**2 @ [D, F] -> [B, F]`: an element-wise operation before the product, in the operands' layout.

    Raises:
        Exception: JAX's ShardingTypeError, which has no public name, on explicit axes where D is sharded in
            both operands: the result may be scattered or whole.
    """
    return jnp.einsum("bd,df->bf", jnp.square(lhs), rhs)


def square_matmul_to(lhs: Left, rhs: Right, sharding: NamedSharding) -> Result:
    """The same on explicit axes, with the layout of the result as part of the product."""
    return jnp.einsum("bd,df->bf", jnp.square(lhs), rhs, out_sharding=sharding)


def two_matmuls(x: Left, w_in: Right, w_out: Shaped[Array, "f d"], sharding: NamedSharding) -> Shaped[Array, "b d"]:
    """`[B, D] @ [D, F] @ [F, D] -> [B, D]` on automatic axes, the hidden values `[B, F]` laid out so."""
    hidden = jax.lax.with_sharding_constraint(jnp.einsum("bd,df->bf", x, w_in), sharding)
    return jnp.einsum("bf,fd->bd", hidden, w_out)


def laid_out(
    function: Callable[..., Array], mesh: Mesh, in_specs: tuple[PartitionSpec, ...], out_specs: PartitionSpec
) -> Any:
    """The function under `jax.jit`, with layouts of operands and result that the compiler must bring together."""
    shardings = tuple(NamedSharding(mesh, spec) for spec in in_specs)
    return jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, out_specs))
