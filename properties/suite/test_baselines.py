"""The compiler's own forms of matrix products, on automatic and on explicit axes: what they give is the product."""

import math
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import baselines
from shardproof.properties.cases.data import Data, generate

MESHES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4))
SPECS = (P(), P("X"), P(None, "Y"), P("X", "Y"), P("Y", "X"), P(("X", "Y")), P(None, ("Y", "X")))
"""Every way in which a matrix can be laid out over these axes, but for those that only differ in an order."""

EXAMPLES = max(4, settings().max_examples // 10)
"""One structure is one compilation."""


def mesh_of(sizes: Sequence[int], kind: AxisType) -> Mesh:
    """A mesh (X, Y) over the first devices."""
    return jax.make_mesh(tuple(sizes), ("X", "Y"), (kind,) * 2, devices=jax.devices()[: math.prod(sizes)])


def matrix(rows: int, columns: int, seed: int, dtype: str = "float32") -> np.ndarray:
    """Small integers, whose sums of products are exact."""
    return generate(Data("exact", seed), (rows, columns), np.dtype(dtype), terms=max(rows, columns), degree=3)


def meshes() -> st.SearchStrategy[tuple[int, int]]:
    """Sizes of (X, Y) that the devices at hand can make up. Shrinks to (1, 1)."""
    return st.sampled_from([sizes for sizes in MESHES if math.prod(sizes) <= jax.device_count()])


def sides() -> st.SearchStrategy[tuple[int, int, int]]:
    """B, D and F: multiples of the eight members that any layout may have. Shrinks to 8, 8, 8."""
    return st.tuples(*[st.integers(1, 3).map(lambda n: 8 * n)] * 3)


def placed(x: np.ndarray, mesh: Mesh, spec: P) -> jax.Array:
    """A global array on a mesh."""
    return jax.device_put(x, NamedSharding(mesh, spec))


@settings(max_examples=EXAMPLES)
@given(sizes=meshes(), b_d_f=sides(), specs=st.tuples(*[st.sampled_from(SPECS)] * 3))
def test_the_compiler_multiplies(sizes: tuple[int, int], b_d_f: tuple[int, int, int], specs: tuple[P, P, P]) -> None:
    """On automatic axes, whatever the layouts of operands and result, the result is the product and so laid out."""
    (b, d, f), mesh = b_d_f, mesh_of(sizes, AxisType.Auto)
    lhs, rhs = matrix(b, d, 0), matrix(d, f, 1)
    result = baselines.laid_out(baselines.matmul, mesh, specs[:2], specs[2])(lhs, rhs)
    np.testing.assert_array_equal(np.asarray(result), lhs @ rhs)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, specs[2]), 2)


@settings(max_examples=EXAMPLES)
@given(sizes=meshes(), b_d_f=sides(), specs=st.tuples(*[st.sampled_from(SPECS)] * 5))
def test_the_compiler_keeps_to_a_constraint(
    sizes: tuple[int, int], b_d_f: tuple[int, int, int], specs: tuple[P, ...]
) -> None:
    """Two products with hidden values laid out as asked are the two products."""
    (b, d, f), mesh = b_d_f, mesh_of(sizes, AxisType.Auto)
    x, w_in, w_out = matrix(b, d, 0), matrix(d, f, 1), matrix(f, d, 2)

    def block(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
        return baselines.two_matmuls(x, w_in, w_out, NamedSharding(mesh, specs[4]))

    result = baselines.laid_out(block, mesh, specs[:3], specs[3])(x, w_in, w_out)
    np.testing.assert_array_equal(np.asarray(result), x @ w_in @ w_out)


@settings(max_examples=EXAMPLES)
@given(sizes=meshes(), b_d_f=sides(), to=st.sampled_from((P(), P("X"), P("X", "Y"), P("X", None))))
def test_an_explicit_product_goes_where_it_is_told(sizes: tuple[int, int], b_d_f: tuple[int, int, int], to: P) -> None:
    """On explicit axes the product of operands that are both sharded in D is laid out as `out_sharding` says."""
    (b, d, f), mesh = b_d_f, mesh_of(sizes, AxisType.Explicit)
    lhs, rhs = matrix(b, d, 0), matrix(d, f, 1)
    function = jax.jit(lambda lhs, rhs: baselines.square_matmul_to(lhs, rhs, NamedSharding(mesh, to)))
    result = function(placed(lhs, mesh, P("X", "Y")), placed(rhs, mesh, P("Y", None)))
    np.testing.assert_array_equal(np.asarray(result), np.square(lhs) @ rhs)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, to), 2)


@pytest.mark.parametrize("sizes", [pytest.param(s, marks=pytest.mark.needs_devices(math.prod(s))) for s in MESHES[3:]])
def test_an_ambiguous_product_raises(sizes: tuple[int, int]) -> None:
    """On explicit axes a product that contracts a sharded dimension, and does not say where to, is refused."""
    mesh = mesh_of(sizes, AxisType.Explicit)
    with pytest.raises(Exception, match="ambiguous how the output should be sharded") as raised:
        jax.jit(baselines.square_matmul)(
            placed(matrix(8, 16, 0), mesh, P("X", "Y")), placed(matrix(16, 8, 1), mesh, P("Y", None))
        )
    assert type(raised.value).__name__ == "ShardingTypeError"


@pytest.mark.parametrize("sizes", [pytest.param(s, marks=pytest.mark.needs_devices(math.prod(s))) for s in MESHES[3:5]])
def test_the_published_product(sizes: tuple[int, int]) -> None:
    """In[8_X, 2048_Y]**2 W[2048_Y, 8192] in bfloat16, to [8_X, 8192] automatically and to [8_X, 8192_Y] explicitly."""
    lhs, rhs = matrix(8, 2048, 0, "bfloat16"), matrix(2048, 8192, 1, "bfloat16")
    expected = np.square(lhs.astype(np.float32)) @ rhs.astype(np.float32)
    mesh = mesh_of(sizes, AxisType.Auto)
    automatic = baselines.laid_out(baselines.square_matmul, mesh, (P("X", "Y"), P("Y", None)), P("X", None))(lhs, rhs)
    mesh = mesh_of(sizes, AxisType.Explicit)
    function = jax.jit(lambda lhs, rhs: baselines.square_matmul_to(lhs, rhs, NamedSharding(mesh, P("X", "Y"))))
    explicit = function(placed(lhs, mesh, P("X", "Y")), placed(rhs, mesh, P("Y", None)))
    scale = np.square(lhs.astype(np.float32)) @ np.abs(rhs.astype(np.float32))
    for result in (automatic, explicit):  # a member's sum may be rounded, and so may be the sum of the sums
        assert (np.abs(np.asarray(result).astype(np.float32) - expected) <= 3 * 2.0**-8 * scale).all()
    assert str(jax.typeof(explicit)) == "bfloat16[8@X,8192@Y]"
