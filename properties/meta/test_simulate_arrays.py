"""The simulate engine's rules that move, reduce, order and contract, against XLA on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from shardproof.properties.meta.test_simulate_elementwise import REAL, check

DTYPES = ("float32", "bfloat16", "int32", "uint8")


def block(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small integers, so that everything computed from them is exact."""
    low = 0 if dtype.startswith("u") or dtype == "bool" else -3
    return np.random.default_rng(seed).integers(low, 2 if dtype == "bool" else 4, shape).astype(dtype)


def distinct(*shape: int, dtype: str = "int32") -> np.ndarray:
    """Every element different, in no order."""
    return np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


SHAPING: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: lax.reshape(x, (4, 6)),
    "reshape in another order": lambda x: lax.reshape(x, (6, 4), dimensions=(2, 0, 1)),
    "squeeze": lambda x: lax.squeeze(x[:, :1], (1,)),
    "transpose": lambda x: lax.transpose(x, (2, 0, 1)),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 5, 3, 4), (0, 2, 3)),
    "broadcast from size 1": lambda x: lax.broadcast_in_dim(x[:, :1], (2, 3, 4), (0, 1, 2)),
    "concatenate": lambda x: lax.concatenate([x, x[:, 1:], x[:, :0]], 1),
    "split": lambda x: lax.split(x, (1, 0, 2), axis=1),
    "stack": lambda x: jnp.stack([x, -x], axis=2),
    "unstack": lambda x: jnp.unstack(x, axis=1),
    "tile": lambda x: jnp.tile(x, (2, 1, 3)),
    "rev": lambda x: lax.rev(x, (0, 2)),
    "slice": lambda x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
    "pad": lambda x: lax.pad(x, x[0, 0, 0], [(1, 2, 0), (0, 0, 2), (0, 3, 1)]),
    "pad by less than nothing": lambda x: lax.pad(x, x[0, 0, 0], [(-1, 0, 0), (2, -1, 0), (-1, -2, 1)]),
    "iota": lambda x: x + lax.broadcasted_iota(x.dtype, (2, 3, 4), 1),
    "select": lambda x: jnp.where(x > 1, x, x[0, 0, 0]),
    "optimization_barrier": lax.optimization_barrier,
    "name": lambda x: checkpoint_name(x, "x"),
    "device_put": lambda x: jax.device_put(x, jax.devices()[0]),
}


@pytest.mark.parametrize("name", SHAPING)
def test_shaping(name: str) -> None:
    """A primitive that moves elements moves them where XLA does."""
    check(lambda xs: [SHAPING[name](x) for x in xs], [distinct(2, 3, 4, dtype=d) for d in DTYPES])


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-6, 6), st.integers(-6, 6), st.integers(0, 3)), max_size=2
    ).filter(
        lambda dims: all(
            (n - 1) * (inner + 1) + 1 + low + high >= 0 if n else low + high >= 0 for n, low, high, inner in dims
        )
    )
)
def test_padding(dimensions: list[tuple[int, int, int, int]]) -> None:
    """Padding of any sign, outside and between, is XLA's."""
    x = distinct(*(n for n, *_ in dimensions)) + np.int32(1)
    check(lambda x: lax.pad(x, jnp.int32(0), [(low, high, inner) for _, low, high, inner in dimensions]), x)


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: jnp.sum(x, (0, 2)),
    "sum of all": lambda x: lax.reduce_sum(x, (0, 1, 2)),
    "prod": lambda x: lax.reduce_prod(x, (1,)),
    "max": lambda x: lax.reduce_max(x, (0, 2)),
    "min": lambda x: lax.reduce_min(x, (0, 2)),
    "max of none": lambda x: lax.reduce_max(x[:, :0], (1,)),
    "min of none": lambda x: lax.reduce_min(x[:, :0], (1,)),
    "sum of none": lambda x: lax.reduce_sum(x[:, :0], (1,)),
    "argmax": lambda x: lax.argmax(x, 1, np.int32),
    "argmin": lambda x: lax.argmin(x, 2, np.uint8),
    "cumsum": lambda x: lax.cumsum(x, 1),
    "cumsum backwards": lambda x: lax.cumsum(x, 2, reverse=True),
    "cumprod": lambda x: lax.cumprod(x, 0),
    "cummax": lambda x: lax.cummax(x, 1, reverse=True),
    "cummin": lambda x: lax.cummin(x, 1),
    "sort": lambda x: lax.sort(x, dimension=1),
    "sort by two keys": lambda x: lax.sort((x, -x, lax.iota(np.int32, 24).reshape(2, 3, 4)), dimension=2, num_keys=2),
    "argsort": lambda x: jnp.argsort(x, axis=-1, stable=True),
    "argsort downwards": lambda x: jnp.argsort(x, axis=0, descending=True),
    "top_k": lambda x: lax.top_k(x, 3),
    "unique": lambda x: jnp.unique(x, size=4, fill_value=1),
    "nonzero": lambda x: jnp.nonzero(x, size=5),
    "searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0, 0]), x[1, 0]),
    "user's fold": lambda x: lax.reduce(x, jnp.array(-3, x.dtype), lax.max, (0, 2)),
    "user's fold of two": lambda x: lax.reduce(
        (x, -x), (x[0, 0, 0], x[0, 0, 0]), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (1,)
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str) -> None:
    """A primitive that reduces or orders says what XLA says, of equal elements too."""
    dtypes = (
        ("float32", "bfloat16", "int32")
        if name in ("sort by two keys", "user's fold", "user's fold of two")
        else DTYPES
    )
    check(lambda xs: [REDUCTIONS[name](x) for x in xs], [block(2, 3, 4, dtype=d) for d in dtypes])


def test_bitwise_reductions() -> None:
    """And, or and xor fold bits, and truth values."""
    x, b = distinct(3, 4), block(3, 4, dtype="bool")
    folds = (lax.reduce_and, lax.reduce_or, lax.reduce_xor)
    check(lambda x, b: [[f(x, (0,)) for f in folds], [f(b, (1,)) for f in folds[:2]]], x, b)


def test_nan_and_zeros_in_order() -> None:
    """NaN is last in a sort, first in a top_k and in argmax and argmin, and zeros of either sign are equal."""
    x = np.array([1, np.nan, 0.0, -0.0, np.inf, -np.inf, np.nan, -1], np.float32)
    check(lambda x: [jnp.argsort(x), lax.sort(x), lax.argmax(x, 0, np.int32), lax.argmin(x, 0, np.int32)], x)
    check(lambda x: [lax.top_k(x, 5), lax.reduce_max(x, (0,)), lax.cummax(x), jnp.sum(x)], x)


@st.composite
def contractions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Shapes of two operands and the dimension numbers of their dot product."""
    sizes = st.integers(0, 3)
    batch, contract = draw(st.lists(sizes, max_size=2)), draw(st.lists(sizes, max_size=2))
    lhs = [*batch, *contract, *draw(st.lists(sizes, max_size=2))]
    rhs = [*batch, *contract, *draw(st.lists(sizes, max_size=2))]
    left, right = draw(st.permutations(range(len(lhs)))), draw(st.permutations(range(len(rhs))))
    nb, nc = len(batch), len(contract)

    def places(order: Any, first: int, count: int) -> tuple[int, ...]:
        return tuple(order.index(d) for d in range(first, first + count))

    numbers = ((places(left, nb, nc), places(right, nb, nc)), (places(left, 0, nb), places(right, 0, nb)))
    return tuple(lhs[d] for d in left), tuple(rhs[d] for d in right), numbers


@settings(deadline=None, max_examples=50)
@given(contractions(), st.sampled_from(["float32", "bfloat16", "int8", "complex64"]), st.booleans())
def test_dot_general(case: tuple[Any, Any, Any], dtype: str, wide: bool) -> None:
    """A dot product with any batch and contracting dimensions is XLA's, in the preferred type."""
    lhs, rhs, numbers = case
    preferred = {"int8": jnp.int32, "bfloat16": jnp.float32}.get(dtype) if wide else None
    check(
        lambda a, b: lax.dot_general(a, b, numbers, preferred_element_type=preferred),
        block(*lhs, dtype=dtype),
        block(*rhs, dtype=dtype, seed=1),
    )


RAGGED_SIZES = ((2, 1, 3), (0, 6, 0), (1, 1, 1), (0, 0, 0))


@pytest.mark.parametrize("sizes", RAGGED_SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_dot(sizes: tuple[int, ...], dtype: str) -> None:
    """A ragged dot product and its gradients are XLA's: rows past the last group are zero."""
    lhs, rhs, groups = block(6, 4, dtype=dtype), block(3, 4, 5, dtype=dtype, seed=1), np.array(sizes, np.int32)

    def value_and_gradients(lhs: Any, rhs: Any, groups: Any) -> Any:
        value, pull = jax.vjp(lambda a, b: lax.ragged_dot(a, b, groups), lhs, rhs)
        return value, pull(jnp.ones_like(value) * 2)

    check(value_and_gradients, lhs, rhs, groups)


def test_every_real_dtype_sums() -> None:
    """A sum is accumulated without loss and wraps in its own dtype."""
    check(lambda xs: [lax.reduce_sum(x, (0,)) for x in xs], [np.full((5, 2), 100, d) for d in REAL if d != "int8"])
