"""The simulate engine's dynamic slices, gathers and scatters, against XLA on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array, lax
from jax.lax import GatherScatterMode as Mode

from shardproof.properties.engines.simulate import OrderDependent
from shardproof.properties.meta.test_simulate_arrays import block, distinct
from shardproof.properties.meta.test_simulate_elementwise import check

MODES = (Mode.CLIP, Mode.FILL_OR_DROP, Mode.PROMISE_IN_BOUNDS)
SCATTERS: dict[str, Callable[..., Any]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "sub": getattr(lax, "scatter_sub", lax.scatter_add),
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(-3, 6), min_size=2, max_size=2), st.integers(0, 3), st.integers(0, 4))
def test_dynamic_slices(starts: list[int], rows: int, columns: int) -> None:
    """A window that would hang over the edge is moved inside, for reading and for writing."""
    x = distinct(3, 4)

    def read_and_write(x: Any, i: Any, j: Any) -> list[Any]:
        window = lax.dynamic_slice(x, (i, j), (rows, columns))
        return [window, lax.dynamic_update_slice(x, -window - 1, (j, i))]

    check(read_and_write, x, *(np.int32(s) for s in starts))


@st.composite
def gathers(draw: st.DrawFn, writes: bool = False) -> tuple[tuple[int, ...], tuple[int, ...], Any, tuple[int, ...]]:
    """An operand's shape, the indices' shape, dimension numbers and slice sizes."""
    batching = draw(st.lists(st.integers(1, 2), max_size=1))
    own = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3 - len(batching)))
    operand = (*batching, *own)
    batch = [*batching, *draw(st.lists(st.integers(0 if not writes else 1, 3), max_size=2 - len(batching)))]
    free = range(len(batching), len(operand))
    # XLA:CPU drops updates of a scatter whose index vectors have no components.
    mapped = tuple(draw(st.lists(st.sampled_from(free), unique=True, min_size=int(writes), max_size=len(free))))
    collapsed = tuple(sorted(draw(st.sets(st.sampled_from(free)))))
    sizes = tuple(
        1 if d < len(batching) or d in collapsed else draw(st.integers(0 if not writes else 1, operand[d]))
        for d in range(len(operand))
    )
    windows = len(operand) - len(batching) - len(collapsed)
    order = sorted(draw(st.permutations(range(len(batch) + windows)))[:windows])
    along = tuple(range(len(batching)))
    numbers = lax.GatherDimensionNumbers(tuple(order), collapsed, mapped, along, along)
    return operand, (*batch, len(mapped)), numbers, sizes


@pytest.mark.lengthy
@settings(deadline=None, max_examples=120)
@given(gathers(), st.sampled_from(MODES), st.sampled_from(["float32", "int32", "uint8", "bool"]), st.data())
def test_gather(case: tuple[Any, Any, Any, Any], mode: Mode, dtype: str, data: st.DataObject) -> None:
    """A gather by any dimension numbers and mode reads what XLA reads."""
    shape, index_shape, numbers, sizes = case
    low, high = (0, 0) if mode == Mode.PROMISE_IN_BOUNDS else (-2, 5)
    count = int(np.prod(index_shape))
    indices = np.array(data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), np.int32)
    x = distinct(*shape).astype(dtype)
    check(lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode), x, indices.reshape(index_shape))


@pytest.mark.lengthy
@settings(deadline=None, max_examples=120)
@given(gathers(writes=True), st.sampled_from(MODES), st.sampled_from(sorted(SCATTERS)), st.data())
def test_scatter(case: tuple[Any, Any, Any, Any], mode: Mode, kind: str, data: st.DataObject) -> None:
    """A scatter by any dimension numbers, mode and combination writes what XLA writes.

    Repeated indices included; where these are written with different numbers, no order is determined.
    """
    shape, index_shape, numbers, sizes = case
    low, high = (0, 0) if mode == Mode.PROMISE_IN_BOUNDS else (-2, 5)
    count = int(np.prod(index_shape))
    drawn = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    indices = np.array(drawn, np.int32).reshape(index_shape)
    scatter_numbers = lax.ScatterDimensionNumbers(
        numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map,
        numbers.operand_batching_dims, numbers.start_indices_batching_dims,
    )  # fmt: skip
    window = [
        n for d, n in enumerate(sizes) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    ]
    batch = list(index_shape[:-1])
    update_shape = [
        window.pop(0) if d in numbers.offset_dims else batch.pop(0) for d in range(len(window) + len(batch))
    ]
    updates = block(*update_shape, seed=2)

    def scattered(x: Array, i: Array, u: Array) -> Array:
        return SCATTERS[kind](x, i, u, scatter_numbers, mode=mode)

    try:
        check(scattered, block(*shape), indices, updates)
    except OrderDependent:
        assert kind == "set"
        check(scattered, block(*shape), indices, np.ones_like(updates))


INDEXING: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "elements": lambda x, i: x[i, i[::-1]],
    "one": lambda x, i: x[i[0]],
    "take with fill": lambda x, i: jnp.take(x, i * 3 - 2, axis=0, mode="fill", fill_value=7),
    "take with clip": lambda x, i: jnp.take(x, i * 3 - 2, axis=1, mode="clip"),
    "take_along_axis": lambda x, i: jnp.take_along_axis(x, i[:, None], axis=1),
    "vmapped rows": lambda x, i: jax.vmap(lambda row, j: row[j])(x, i),
    "vmapped slices": lambda x, i: jax.vmap(lambda row, j: lax.dynamic_slice(row, (j,), (2,)))(x, i),
    "set": lambda x, i: x.at[i].set(9),
    "add": lambda x, i: x.at[:, i].add(x[:, :1]),
    "sub": lambda x, i: x.at[i, 0].subtract(1),
    "mul": lambda x, i: x.at[i].multiply(2),
    "max": lambda x, i: x.at[i, i].max(1),
    "min": lambda x, i: x.at[i, i].min(1, mode="clip"),
    "apply": lambda x, i: x.at[i].apply(lambda v: v * v + 1),
    "gradient of rows": lambda x, i: jax.grad(lambda x: (x[i] * x[i]).sum())(x),
    "gradient of a fill": lambda x, i: jax.grad(lambda x: jnp.take(x, i * 2, axis=0, mode="fill", fill_value=0).sum())(
        x
    ),
    "segment_sum": lambda x, i: jax.ops.segment_sum(x, i, num_segments=3),
    "bincount": lambda x, i: jnp.bincount(i, length=5),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    """An index expression of jax.numpy reads and writes what XLA does."""
    check(INDEXING[name], block(4, 4), np.array([2, 0, 2, 1], np.int32))
