"""A published product on automatic and on explicit axes, at its shapes, and what explicit axes refuse.

From the chapter on programming in JAX of "How To Scale Your Model": `In[8_X, 2048_Y]**2 W[2048_Y, 8192]`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.properties.cases.data import Data, generate
from shardproof.properties.suite.test_published_examples import place

MESHES = [pytest.param(sizes, marks=pytest.mark.needs_devices(math.prod(sizes))) for sizes in ((2, 2), (4, 2))]


def placed(sizes: tuple[int, int], kind: AxisType, rows: int, columns: int) -> tuple[Any, list[np.ndarray], list[Any]]:
    """A mesh (X, Y) over the first devices, and operands `[8_X, rows_Y]`, `[rows_Y, columns]` on it, small integers."""
    mesh = jax.make_mesh(sizes, ("X", "Y"), (kind,) * 2, devices=jax.devices()[: math.prod(sizes)])
    arrays = [
        generate(Data("exact", seed), shape, np.dtype("bfloat16"), terms=rows, degree=3)
        for seed, shape in enumerate(((8, rows), (rows, columns)))
    ]
    return mesh, arrays, place(mesh, arrays, (P("X", "Y"), P("Y", None)))


def product(lhs: Any, rhs: Any, **more: Any) -> Any:
    """An element-wise operation, which is to be done in the layout of its operand, and a product."""
    return jnp.einsum("bd,df->bf", jnp.square(lhs), rhs, **more)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("sizes", MESHES)
def test_the_published_product(sizes: tuple[int, int], kind: AxisType) -> None:
    """It goes to `[8_X, 8192]` automatically, and explicitly to `[8_X, 8192_Y]`, which is part of its type."""
    mesh, arrays, operands = placed(sizes, kind, 2048, 8192)
    wide = [array.astype(np.float32) for array in arrays]
    if kind == AxisType.Auto:
        result = jax.jit(product, out_shardings=NamedSharding(mesh, P("X", None)))(*operands)
    else:
        result = jax.jit(lambda *xs: product(*xs, out_sharding=NamedSharding(mesh, P("X", "Y"))))(*operands)
        assert str(jax.typeof(result)) == "bfloat16[8@X,8192@Y]"
    off = np.abs(np.asarray(result).astype(np.float32) - np.square(wide[0]) @ wide[1])
    # a device's sum may be rounded, and so may be the sum of the sums
    assert (off <= 3 * 2.0**-8 * (np.square(wide[0]) @ np.abs(wide[1]))).all()


@pytest.mark.parametrize("sizes", MESHES)
def test_an_ambiguous_product_raises(sizes: tuple[int, int]) -> None:
    """On explicit axes a product that contracts a sharded dimension, and does not say where to, is refused."""
    _, _, operands = placed(sizes, AxisType.Explicit, 16, 8)
    with pytest.raises(Exception, match="ambiguous how the output should be sharded") as raised:
        jax.jit(product)(*operands)
    assert type(raised.value).__name__ == "ShardingTypeError"  # which has no public name
