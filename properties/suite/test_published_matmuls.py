"""Published collective matrix products, and the exercises that were set with them: at their shapes, the product.

From a guide to sharding in JAX (fully sharded data parallelism and reduce-scatter, one way and both ways),
part 10 of "How To Scale Your Model" (the contracting ring; its problems 3 and 4, which are published without an
answer), and a notebook on overlapping a gathered left operand. Where operands are random or too large for
their sums to be exact, ours are small integers. A CPU multiplies for all devices here, so the
notebook's 16384 rows are 2048, unless the profile is a thorough one; problems 3 and 4, for which no shapes
are given, take a quarter of each side of the example before them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import settings
from jax.sharding import PartitionSpec as P

from shardproof.impl import collective_matmul as products
from shardproof.properties.suite.test_published_examples import GUIDE, explicit_mesh, parameters, place

BOOK = {"X": 2, "Y": 4}
NOTEBOOK = {"x": 4, "y": 1}
ROWS_HELD = 16384 if settings().max_examples >= 1000 else 2048


@dataclass(frozen=True, eq=False)
class Product:
    """A product of global operands: a device-local function, layouts, and the result as a function of the operands."""

    mesh: dict[str, int]
    shapes: tuple[tuple[int, int], ...]
    in_specs: tuple[P, ...]
    out_specs: P
    name: str
    body: Callable[..., Any]
    expected: Callable[..., np.ndarray] = np.matmul


def block(x: np.ndarray, w_in: np.ndarray, w_out: np.ndarray) -> np.ndarray:
    """X W_in, what is positive of it, times W_out."""
    return np.asarray(np.maximum(x @ w_in, 0) @ w_out)


def on_each_of_four(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """All of A times each device's own rows of X, one result after the other: not A X."""
    return np.concatenate([lhs @ part for part in np.split(rhs, 4)])


def copied(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """A X once for each of four devices, so that no copy is hidden behind another."""
    return np.tile(lhs @ rhs, (4, 1))


X_Y = (P("X", "Y"), P("Y", None))
FSDP = partial(Product, GUIDE, ((1024, 4096), (4096, 256)), (P("dp", None), P("dp", None)), P("dp", None))
EVERY = ("dp", "tp")
SCATTERED = partial(Product, GUIDE, ((1024, 4096), (4096, 256)), (P(None, EVERY), P(EVERY, None)), P(EVERY, None))
CONTRACTING = partial(Product, BOOK, ((1024, 2048), (2048, 8192)), (P("X", "Y"), P(None, "Y")), P("X", "Y"))
ALL_REDUCED = partial(Product, BOOK, ((256, 512), (512, 2048)), X_Y)
DOWN = partial(Product, BOOK, ((256, 2048), (2048, 512)), X_Y, P("X", "Y"))
STACK = partial(
    Product,
    BOOK,
    ((256, 512), (512, 2048), (2048, 512)),
    (P("X", "Y"), P(None, "Y"), P("Y", None)),
    P("X", "Y"),
    expected=block,
)
ROWS = partial(Product, NOTEBOOK, ((ROWS_HELD, 1024), (1024, 2048)), (P("x", None), P()), P("x"), expected=copied)
SUMS = partial(Product, NOTEBOOK, ((ROWS_HELD, 1024), (1024, 2048)), (P(None, "x"), P("x", None)), P("x", None))


def over(function: Callable[..., Any], axis_name: Any, **params: Any) -> Callable[..., Any]:
    """A device-local product over an axis or a tuple."""
    return lambda *blocks: function(*blocks, axis_name, **params)


def four_times(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """A W for every pair of devices along X, once for each of the four along Y."""
    return np.concatenate([np.tile(half, (4, 1)) for half in np.split(lhs @ rhs, 2)])


PRODUCTS = (
    FSDP("fsdp-gathered-first", over(products.all_gather_matmul_rhs, "dp")),
    FSDP("fsdp-one-way", over(products.ring_all_gather_matmul_rhs, "dp")),
    FSDP("fsdp-both-ways", over(products.joined_all_gather_matmul_rhs, "dp")),
    SCATTERED("reduce-scatter-at-the-end", over(products.matmul_reduce_scatter, EVERY)),
    SCATTERED("reduce-scatter-one-way", over(products.ring_matmul_reduce_scatter, EVERY)),
    SCATTERED("reduce-scatter-both-ways", over(products.alternating_matmul_reduce_scatter, EVERY)),
    CONTRACTING("contracting-gathered-first", over(products.all_gather_matmul_lhs_contracting, "Y")),
    CONTRACTING("contracting-ring", over(products.ring_all_gather_matmul_lhs_contracting, "Y")),
    ALL_REDUCED(P(("X", "Y")), "problem-3.1-rings", over(products.alternating_matmul_all_reduce, "Y"), four_times),
    DOWN("problem-3.2", over(products.ring_matmul_reduce_scatter, "Y", scatter_dimension=1)),
    STACK("problem-3.3", over(products.overlapped_transformer_block, "Y")),
    ALL_REDUCED(P("X"), "problem-4-all-reduce", over(products.scattered_matmul_all_reduce, "Y")),
    DOWN("problem-4-reduce-scatter", over(products.alternating_matmul_reduce_scatter, "Y", scatter_dimension=1)),
    STACK("problem-4-block", over(products.alternating_transformer_block, "Y")),
    ROWS("rows-one-way", over(products.ring_all_gather_matmul_lhs, "x")),
    ROWS("rows-both-ways", over(products.bidirectional_all_gather_matmul_lhs, "x")),
    Product(
        NOTEBOOK,
        ((ROWS_HELD, 1024), (4096, 2048)),
        (P("x", None), P("x", None)),
        P("x"),
        "rows-both-ways-of-a-sharded-right-operand",
        over(products.bidirectional_all_gather_matmul_lhs, "x"),
        on_each_of_four,
    ),
    SUMS("sums-at-the-end", over(products.matmul_reduce_scatter, "x")),
    SUMS("sums-one-way", over(products.ring_matmul_reduce_scatter, "x")),
)


def result(case: Product, arrays: list[np.ndarray]) -> np.ndarray:
    """The global result on the first devices."""
    mesh = explicit_mesh(case.mesh)
    program = jax.shard_map(case.body, mesh=mesh, in_specs=case.in_specs, out_specs=case.out_specs)
    return np.asarray(jax.jit(program)(*place(mesh, arrays, case.in_specs)))


@pytest.mark.parametrize("case", parameters(*PRODUCTS))
def test_a_published_product_is_the_product(case: Product) -> None:
    """The global result is NumPy's product of the global operands, element by element: sums stay below 2**24."""
    random = np.random.default_rng(0)
    arrays = [random.integers(-2, 3, shape).astype(np.float32) for shape in case.shapes]
    np.testing.assert_array_equal(result(case, arrays), case.expected(*arrays))


@pytest.mark.needs_devices(8)
def test_the_published_integers() -> None:
    """The book's own operands, which count up in int32, wrap around in both ring and product: at 1/16 of each side."""
    case = CONTRACTING("integers-that-wrap", over(products.ring_all_gather_matmul_lhs_contracting, "Y"))
    arrays = [np.arange(m * n // 256, dtype=np.int32).reshape(m // 16, n // 16) for m, n in case.shapes]
    arrays = [a * np.int32(9973) for a in arrays]  # so that sums are as large as those of whole sides
    np.testing.assert_array_equal(result(case, arrays), case.expected(*arrays))
