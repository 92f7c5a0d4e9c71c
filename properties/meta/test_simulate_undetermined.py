"""Results that depend on what JAX leaves open are refused by the simulate engine, and no others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import OrderDependent, UnwrittenRead, simulate
from shardproof.properties.meta.test_simulate_elementwise import same

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.complex64, jnp.int8, jnp.uint32, jnp.bool_)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory(dtype: Any) -> None:
    """A result that depends on it is refused, whatever the dtype, and only such a result."""
    one = np.ones(2, dtype)

    def partly_written(x: Array) -> Array:
        return lax.dynamic_update_slice(lax.empty((3,), dtype), x, (0,))

    with pytest.raises(UnwrittenRead, match=r"result 0 .* element \[2\] .*test_simulate_undetermined.py:\d+"):
        simulate(partly_written, one)
    with pytest.raises(UnwrittenRead, match=r"result 1 .* element \[\] "):
        simulate(lambda x: (x, jax.jit(lambda x: jnp.abs(partly_written(x)) > 0)(x).sum()), one)
    assert same(simulate(lambda x: partly_written(x)[:2], one), one)
    assert same(simulate(lambda x: jnp.where(jnp.arange(3) < 2, partly_written(x), x[0]), one), np.ones(3, dtype))


def test_blocks() -> None:
    """The device is named that reads it, even where one content of the memory gives the right result."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def largest(x: Array) -> Array:
        buffer = lax.dynamic_update_slice(lax.empty((2,), jnp.int32), x, (0,))
        written = (lax.axis_index("tp") == 0) | (jnp.arange(2) == 0)
        return jnp.where(written, x, buffer).max(keepdims=True)  # the lowest integer is no maximum

    function = jax.shard_map(largest, mesh=mesh, in_specs=P(("dp", "tp")), out_specs=P(("dp", "tp")))
    with pytest.raises(UnwrittenRead, match=r"element \[1\] .* first on device \(dp=0, tp=1\) in element \[0\]"):
        simulate(function, np.arange(4, dtype=np.int32))


TWICE = np.array([0, 1, 1, 2])
"""Places, of which one is updated twice."""

X = np.arange(2, 6, dtype=np.float32)


def scattered(x: Array, at: Array, n: int = 5) -> Array:
    """`[4]` to `[n]`: elements where they are to be, and zeros elsewhere."""
    return jnp.zeros(n, x.dtype).at[at].set(x)


ORDERS: dict[str, Any] = {
    "one of two": scattered,
    "one of two, in one of two batches": jax.vmap(scattered, in_axes=(None, 0)),
    "a lost term": lambda x, at: jnp.zeros(5).at[at].add(x, unique_indices=True),
    "a lost factor": lambda x, at: jnp.ones(5).at[at].multiply(x, unique_indices=True),
    "a lost term of a gradient": lambda x, at: jax.grad(lambda x: (x.at[at].get(unique_indices=True) * x).sum())(x),
    "the last function": lambda x, at: x.at[at].apply(jnp.square) + scattered(x, at, 4),
    "in a loop": lambda x, at: lax.fori_loop(0, 2, lambda i, y: scattered(y, at, 4) + x, x),
}
"""Functions of elements and places, whose results are not determined."""

UNSORTED: dict[str, Any] = {
    "a gather": lambda x, at: x.at[at].get(indices_are_sorted=True),
    "its gradient": lambda x, at: jax.grad(lambda x: (x.at[at].get(indices_are_sorted=True) * jnp.arange(4)).sum())(x),
    "a scatter": lambda x, at: jnp.zeros(5).at[at].set(x, indices_are_sorted=True),
    "a sum": lambda x, at: jnp.zeros(5).at[at].add(x, indices_are_sorted=True),
    "of rows": lambda x, at: x.reshape(2, 2).at[at % 2, at // 2].get(indices_are_sorted=True),
    "one of two batches": lambda x, at: jax.vmap(lambda x, at: x.at[at].get(indices_are_sorted=True))(
        jnp.stack([x, x]), jnp.stack([jnp.arange(4), at])
    ),
}
"""Functions of elements and places, whose results are not determined where the places are not sorted."""

SORTED: dict[str, Any] = {
    **{f"{name}, sorted": lambda x, at, f=f: f(x, jnp.sort(at)) for name, f in UNSORTED.items() if name != "of rows"},
    "batches, each sorted": lambda x, at: jax.vmap(lambda x, at: x.at[at].get(indices_are_sorted=True))(
        jnp.stack([x, x]), jnp.stack([jnp.arange(4), jnp.sort(at)])
    ),
    "equal updates": lambda x, at: jnp.zeros(5).at[at].add(1, indices_are_sorted=True),
    "outside, in any order": lambda x, at: (
        jnp.zeros(4).at[jnp.sort(at).at[2:].add(9 - at[2:])].set(x, mode="drop", indices_are_sorted=True)
    ),
    "slices of a batch": lambda x, at: jax.vmap(lambda i: lax.dynamic_slice(x, (i,), (2,)))(at),
}
"""Functions whose results are determined."""

DETERMINED: dict[str, Any] = {
    "sums": lambda x, at: jnp.zeros(5).at[at].add(x),
    "the largest": lambda x, at: jnp.zeros(5).at[at].max(x),
    "a row for what is dropped": lambda x, at: scattered(x, jnp.where(at == 1, 4, at))[:4],
    "its gradient": lambda x, at: jax.grad(lambda x: (scattered(x, jnp.where(at == 1, 4, at))[:4] * x).sum())(x),
    "equal ones": lambda x, at: jnp.zeros(5).at[at].set(jnp.where(at == 1, 7.0, x), unique_indices=True),
    "outside, twice": lambda x, at: jnp.zeros(3).at[at * 4].set(x, mode="drop", unique_indices=True),
    "each once": lambda x, at: jnp.zeros(5).at[at + jnp.arange(4) // 2].set(x, unique_indices=True),
}
"""Functions whose results are determined, though some of them update a place twice."""


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_updates(name: str) -> None:
    """A result that depends on which of two updates of one place is applied last, or left out, is refused."""
    at = np.stack([TWICE, np.arange(4)]) if "batches" in name else TWICE
    with pytest.raises(
        OrderDependent, match=r"result 0 depends on which of two updates .*undetermined.py:\d+"
    ) as caught:
        simulate(ORDERS[name], X, at)
    assert ("promised" in str(caught.value)) == ("lost" in name)


@pytest.mark.parametrize("name", DETERMINED)
def test_what_no_order_changes(name: str) -> None:
    """Sums, what is written twice with the same, and what nobody reads, are what XLA makes of them."""
    assert same(simulate(DETERMINED[name], X, TWICE), np.asarray(jax.jit(DETERMINED[name])(X, TWICE)))


@pytest.mark.parametrize("name", UNSORTED)
def test_a_promised_order(name: str) -> None:
    """A result that depends on indices which are not sorted, though that is promised, is refused."""
    with pytest.raises(OrderDependent, match=r"not sorted, and indices_are_sorted promised it.*undetermined.py:\d+"):
        simulate(UNSORTED[name], X, np.array([2, 0, 3, 1]))


@pytest.mark.parametrize("name", SORTED)
def test_what_is_sorted_as_promised(name: str) -> None:
    """Its results are those of XLA, and so are those that any order would give."""
    at = np.array([2, 0, 3, 1])
    assert same(simulate(SORTED[name], X, at), np.asarray(jax.jit(SORTED[name])(X, at)))


def test_the_device_whose_updates_clash() -> None:
    """It is named, with the element of its block."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    function = jax.shard_map(
        lambda x: scattered(x, jnp.arange(2) * (1 - lax.axis_index("tp")), 2),
        mesh=mesh,
        in_specs=P(("dp", "tp")),
        out_specs=P(("dp", "tp")),
    )
    with pytest.raises(OrderDependent, match=r"element \[2\] is .* first on device \(dp=0, tp=1\) in element \[0\]"):
        simulate(function, np.arange(8, dtype=np.float32))
