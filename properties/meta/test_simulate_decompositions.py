"""The simulate engine's decompositions, orders, generators and four-bit integers, against XLA on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.lax import linalg

from shardproof.properties.engines.simulate import InterpreterLimit, simulate
from shardproof.properties.meta.test_simulate_elementwise import check
from shardproof.properties.meta.test_simulate_windows import check_near, numbers

DTYPES = st.sampled_from(["float32", "complex64"])
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5))


def reflections(x: Any) -> Any:
    """The operands of `householder_product`."""
    vectors, factors = jnp.linalg.qr(x, mode="raw")
    return jnp.swapaxes(vectors, -1, -2), factors


DECOMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "qr": lambda x: linalg.qr(x, full_matrices=False),
    "full qr": linalg.qr,
    "pivoted qr": lambda x: linalg.qr(x, full_matrices=False, pivoting=True),
    "reflections": reflections,
    "svd": lambda x: linalg.svd(x, full_matrices=False),
    "full svd": lambda x: jnp.linalg.svd(x)[1],
    "singular values": lambda x: linalg.svd(x, compute_uv=False),
    "lu": linalg.lu,
    "pseudo-inverse": jnp.linalg.pinv,
}


@settings(deadline=None, max_examples=20)
@given(SHAPES, DTYPES, st.sampled_from(sorted(DECOMPOSITIONS)))
def test_decompositions(shape: tuple[int, int, int], dtype: str, name: str) -> None:
    """A decomposition of matrices of any shape is XLA's, signs and pivots included."""
    check_near(DECOMPOSITIONS[name], numbers(*shape, dtype=dtype), rtol=1e-3)


def test_of_no_matrices_nothing_is_left() -> None:
    """A batch of none has results of the traced shapes, of the algorithms that take one matrix at a time as well."""
    for decompose in (linalg.lu, DECOMPOSITIONS["pivoted qr"], jnp.linalg.cholesky):
        for x in (np.ones((0, 3, 3), np.float32), np.ones((2, 0, 0), np.float32)):
            assert all(y.size == 0 for y in jax.tree.leaves(simulate(decompose, x)))


def definite(n: int, dtype: str) -> np.ndarray:
    """Two Hermitian matrices with eigenvalues that are apart."""
    x = numbers(2, n, n, dtype=dtype)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + np.diag(np.arange(1, n + 1))).astype(dtype)


SQUARE: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "cholesky of what is not definite": lambda x: jnp.linalg.cholesky(-x),
    "eigenvalues": lambda x: jnp.linalg.eigh(x)[0],
    "eigenvectors": lambda x: linalg.eigh(x, lower=False, symmetrize_input=False)[0],
    "solve": lambda x: jnp.linalg.solve(x, jnp.sin(jnp.arange(8.0)).reshape(4, 2).astype(x.dtype)),
    "inverse": jnp.linalg.inv,
    "determinant": lambda x: jnp.linalg.slogdet(x)[1],
}


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(name: str, dtype: str) -> None:
    """A function of definite matrices, and its gradient, are XLA's."""
    x = definite(4, dtype)
    check_near(SQUARE[name], x, rtol=1e-3)
    if name != "eigenvectors":  # they are determined but for a phase, and so are their derivatives
        check_near(jax.grad(lambda x: (jnp.abs(SQUARE[name](x)) ** 2).sum()), x, rtol=2e-2)


@pytest.mark.parametrize("name", ["qr", "singular values", "lu"])
def test_derivatives_of_decompositions(name: str) -> None:
    """The gradient of a decomposition is XLA's."""
    x = numbers(2, 5, 3) + np.eye(5, 3, dtype="float32") * 4

    def squares(x: Any) -> Any:
        leaves: list[Any] = jax.tree.leaves(DECOMPOSITIONS[name](x * x))
        return sum((leaf**2).sum() for leaf in leaves if leaf.dtype == x.dtype)

    check_near(jax.grad(squares), x, rtol=2e-3)


@settings(deadline=None, max_examples=20)
@given(*[st.booleans()] * 5, DTYPES, st.integers(1, 3))
def test_triangular_solve(
    left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool, dtype: str, columns: int
) -> None:
    """A triangular system is solved from either side as XLA solves it, whatever the other triangle holds."""
    a, b = numbers(2, 4, 4, dtype=dtype) + 3 * np.eye(4, dtype=dtype), numbers(2, 4, columns, dtype=dtype, seed=1)
    given = {"lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a, "unit_diagonal": unit_diagonal}
    b = b if left_side else np.swapaxes(b, -1, -2)
    check_near(lambda a, b: linalg.triangular_solve(a, b, left_side=left_side, **given), a, b, rtol=1e-3)


def test_products_of_reflections() -> None:
    """The products that reflections make up are XLA's, from the left and the right, of Q and its adjoint."""
    x, c = numbers(2, 5, 3), numbers(2, 5, 5, seed=1)
    check_near(lambda x: linalg.householder_product(*reflections(x)), x)
    ormqr = getattr(linalg, "ormqr", None)
    if ormqr is not None:
        for left in (True, False):
            for transpose in (True, False):
                check_near(lambda x, c: ormqr(*reflections(x), c, left=left, transpose=transpose), x, c)  # noqa: B023
    check_near(lambda x, c: linalg.symmetric_product(x, c, alpha=2.0, beta=0.5), x, np.tril(c) + np.tril(c).mT)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_philox(dtype: str) -> None:
    """Bits of XLA's own generator are those of XLA:CPU, and so is the key, whose counter moves on."""
    with jax.enable_x64(dtype == "uint64"):
        for counter in (4, 2**32 - 1):
            key = np.array([1, 2, 2**32 - 1, counter], np.uint32)
            check(lambda key: lax.rng_bit_generator(key, (3, 5), dtype=np.dtype(dtype)), key)


def test_keys_of_xlas_generator() -> None:
    """Random numbers by the keys of that generator are the same as JAX's, of many keys too, and Threefry is refused."""

    def draw(seed: Any) -> Any:
        key = jax.random.key(seed, impl="rbg")
        return jax.random.bits(key, (7,)), jax.vmap(lambda key: jax.random.bits(key, (3,)))(jax.random.split(key, 4))

    check(draw, np.int32(3))
    with pytest.raises(InterpreterLimit, match="no rule for Threefry as an algorithm"):
        simulate(
            lambda key: lax.rng_bit_generator(key, (3,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY),
            np.zeros(4, np.uint32),
        )


@settings(deadline=None, max_examples=25)
@given(st.data(), st.sampled_from(["float32", "bfloat16", "int32", "int4", "uint4", "bool"]))
def test_orders(data: st.DataObject, dtype: str) -> None:
    """Several arrays are sorted by any number of keys along any dimension, and the largest found, as XLA does."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dimension, count = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 3))
    keys, k = data.draw(st.integers(1, count)), data.draw(st.integers(0, shape[dimension]))
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    arrays = [random.integers(0, 2, shape).astype(np.int8).astype(jnp.dtype(dtype)) for _ in range(count)]
    stable = count > keys or data.draw(st.booleans())  # others leave the order of equal ones open

    def order(*arrays: Any) -> Any:
        return lax.sort(arrays, dimension=dimension, is_stable=stable, num_keys=keys)

    check(order, *arrays)
    if dtype not in ("bool", "int4", "uint4"):  # XLA:CPU compiles none of these
        check(lambda x: lax.top_k(x, k, axis=dimension), arrays[0])


CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(CUMULATIVE), st.integers(0, 2), st.booleans(), st.sampled_from(["float32", "complex64", "int32"])
)
def test_cumulative_forms(name: str, axis: int, reverse: bool, dtype: str) -> None:
    """A cumulative form from either end, and its gradient, are XLA's."""
    if dtype != "float32" and name in ("cummax", "cummin", "cumlogsumexp"):
        dtype = "float32"
    x = numbers(2, 3, 4, dtype=dtype) * 2

    def cumulate(x: Any) -> Any:
        return getattr(lax, name)(x, axis=axis, reverse=reverse)

    check_near(cumulate, x.astype(dtype))
    if dtype == "float32":
        check_near(jax.grad(lambda x: (cumulate(x) ** 2).sum()), x)


FOUR_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "arithmetic": lambda a, b: [a + b, a - b, a * b, lax.div(a, b), lax.rem(a, b), lax.max(a, b), lax.clamp(b, a, b)],
    "order": lambda a, b: [a < b, a <= b, a == b, a != b, lax.sort(a), lax.argmax(a, 0, np.int32), lax.sign(a)],
    "bits": lambda a, b: [a & b, a | b, a ^ b, ~a, lax.clz(a), lax.population_count(a & 7)],
    "shifts": lambda a, b: [
        lax.shift_left(a, b), lax.shift_right_logical(a, b), lax.shift_right_arithmetic(a, b),
    ],
    "sums": lambda a, b: [lax.reduce_max(a, (0,)), lax.reduce_min(a, (0,)), lax.cumsum(a), lax.cummax(a)],
    "moves": lambda a, b: [a.reshape(16, -1).T, jnp.where(a < b, a, b), a[b.astype(jnp.int32)], jnp.pad(a, 2), a[::-1]],
    "products": lambda a, b: [lax.dot(a.reshape(16, 16), b.reshape(16, 16)), lax.cumprod(a), lax.integer_pow(a, 3)],
    "casts": lambda a, b: [a.astype(d) for d in (jnp.int32, jnp.float32, jnp.uint8, bool)],
    "bytes": lambda a, b: [
        lax.bitcast_convert_type(a.reshape(-1, 2), jnp.int8), lax.bitcast_convert_type(a.astype(jnp.int32), a.dtype),
    ],
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("name", FOUR_BITS)
def test_four_bits(name: str, dtype: str) -> None:
    """Operations on integers of four bits are XLA's, for any two of them."""
    x = np.arange(16).astype(np.int8).astype(getattr(ml_dtypes, dtype))
    check(FOUR_BITS[name], np.repeat(x, 16), np.tile(x, 16))
