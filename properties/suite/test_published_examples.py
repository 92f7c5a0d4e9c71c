"""Published examples of collectives: what tutorials print for given inputs is what the implementations give.

The cases come from "JAX Sharding and Parallel Computing" (ring shift to all-to-all), part 10 of "How To
Scale Your Model" (slice and average) and a notebook on matrix multiplication under `shard_map`. Inputs and
values are those that they print, and types follow from them and the layout of the result. Where operands are
large and random, ours are small integers, so that float sums are exact.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl.collectives import (
    all_gather,
    all_gather_invariant,
    all_reduce,
    all_to_all,
    reduce_scatter,
    ring_shift,
)
from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase


@dataclass(frozen=True, eq=False)
class Published:
    """A program of a device-local function on explicit axes, and what comes out of it.

    Arguments:
        name: what it is called here.
        inputs: the global arrays.
        in_specs: their layouts, one per input.
        body: the device-local function.
        out_specs: the layout of its result, which varies along all the axes that it names.
        expected: the global result.
        mesh: axis names and sizes, in mesh order.
    """

    name: str
    inputs: tuple[np.ndarray, ...]
    in_specs: tuple[P, ...]
    body: Callable[..., Any]
    out_specs: P
    expected: Any
    mesh: dict[str, int]


GUIDE = {"dp": 4, "tp": 2}
guide = partial(Published, mesh=GUIDE)
square = partial(Published, mesh={"x": 2, "y": 2})


def ints(*rows: Any) -> np.ndarray:
    """An int32 array."""
    return np.array(rows, np.int32)


def iota(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    """0, 1, 2, … in row-major order."""
    return np.arange(math.prod(shape), dtype=dtype).reshape(shape)


BOTH = ("tp", "dp")
TENS_AND_ONES = 10 * iota(8)[:, None] + iota(8)[None, :]
A, B = iota(8, 16, dtype=np.float32), iota(16, 4, dtype=np.float32)
A_B = (P("x", "y"), P("y", None))


def shifted(name: str, shape: tuple[int, ...], at: P, over: Any, offset: int, expected: np.ndarray) -> Published:
    """Shift 0, 1, 2 and so on along a ring."""
    return guide(name, (iota(*shape),), (at,), partial(ring_shift, axis_name=over, offset=offset), at, expected)


RING_SHIFT = (
    shifted("ring-shift-forward-2x4", (2, 4), P("tp", "dp"), "dp", 1, ints([3, 0, 1, 2], [7, 4, 5, 6])),
    shifted("ring-shift-backward-2x4", (2, 4), P("tp", "dp"), "dp", -1, ints([1, 2, 3, 0], [5, 6, 7, 4])),
    shifted("ring-shift-forward-4x2", (4, 2), P("dp", "tp"), "dp", 1, ints([6, 7], [0, 1], [2, 3], [4, 5])),
    shifted("ring-shift-backward-4x2", (4, 2), P("dp", "tp"), "dp", -1, ints([2, 3], [4, 5], [6, 7], [0, 1])),
    shifted("ring-shift-forward-over-tuple-out-of-mesh-order", (8,), P(BOTH), BOTH, 1, ints(7, 0, 1, 2, 3, 4, 5, 6)),
    shifted("ring-shift-backward-over-tuple-out-of-mesh-order", (8,), P(BOTH), BOTH, -1, ints(1, 2, 3, 4, 5, 6, 7, 0)),
)


def scattered(name: str, dimension: int, tiled: bool, out: P, expected: np.ndarray, *shape: int) -> Published:
    """A reduce-scatter over `tp` of 0, 1, 2, …, whose last dimension is sharded over it."""
    body = partial(reduce_scatter, axis_name="tp", scatter_dimension=dimension, tiled=tiled)
    return guide(name, (iota(*shape),), (P(*(None,) * (len(shape) - 1), "tp"),), body, out, expected)


REDUCE_SCATTER = (
    scattered("reduce-scatter-vector", 0, True, P("tp"), ints(2, 4), 4),
    scattered("reduce-scatter-rows-tiled", 0, True, P("tp"), ints([2, 4], [10, 12]), 2, 4),
    scattered("reduce-scatter-columns-tiled", 1, True, P(None, "tp"), ints([2, 4], [10, 12]), 2, 4),
    scattered("reduce-scatter-rows", 0, False, P("tp"), ints(2, 4, 10, 12), 2, 4),
    scattered("reduce-scatter-columns-tiled-joined-as-rows", 1, True, P("tp"), ints([2], [10], [4], [12]), 2, 4),
    scattered("reduce-scatter-columns", 1, False, P("tp"), ints(2, 10, 4, 12), 2, 4),
)


def gathered(
    name: str, function: Callable[..., Any], axis: int, tiled: bool, out: P, expected: np.ndarray
) -> Published:
    """An all-gather over `tp` of 0, 1, 2, 3."""
    body = partial(function, axis_name="tp", axis=axis, tiled=tiled)
    return guide(name, (iota(4),), (P("tp"),), body, out, expected)


ALL_GATHER = (
    gathered("all-gather-invariant-tiled", all_gather_invariant, 0, True, P(), iota(4)),
    gathered("all-gather-invariant-stacked-as-rows", all_gather_invariant, 0, False, P(), ints([0, 1], [2, 3])),
    gathered("all-gather-invariant-stacked-as-columns", all_gather_invariant, 1, False, P(), ints([0, 2], [1, 3])),
    gathered("all-gather-tiled", all_gather, 0, True, P("tp"), ints(0, 1, 2, 3, 0, 1, 2, 3)),
    guide(
        "all-gather-of-weights-before-a-matmul",
        (A, B),
        (P("dp", None), P("dp", None)),
        lambda x, w: x @ all_gather(w, "dp", axis=0, tiled=True),
        P("dp", None),
        A @ B,
    ),
)

ALL_REDUCE = (
    guide(
        "all-reduce-over-one-axis",
        (iota(8) - 1,),
        (P("dp"),),
        lambda x: all_reduce(x + 1, "dp"),
        P(),
        ints(0 + 2 + 4 + 6, 1 + 3 + 5 + 7),
    ),
    guide(
        "all-reduce-over-two-axes",
        (A, B),
        (P("dp"), P(None, "tp")),
        lambda x, w: all_reduce(x @ w, ("dp", "tp")),
        P(),
        # the sum of all products of a row block and a column block is the product of the sums of the blocks
        A.reshape(4, 2, 16).sum(axis=0) @ B.reshape(16, 2, 2).sum(axis=1),
    ),
    Published(
        "slice-and-average",
        (iota(512),),
        (P(("x", "y")),),
        lambda x: all_reduce(x[:4], ("x", "y"), op="mean"),
        P(None),
        iota(8, 64)[:, :4].mean(axis=0, dtype=np.float32),
        mesh={"x": 2, "y": 4},
    ),
)


def column(x: Any) -> Any:
    """One whole column of a matrix [8_dp, 8_tp], as a row."""
    return jnp.reshape(all_to_all(x, "dp", split_axis=1, concat_axis=0, tiled=False), (1, -1))


ALL_TO_ALL = (
    guide(
        "all-to-all-over-two-axes-transposes",
        (TENS_AND_ONES.ravel(),),
        (P(("dp", "tp")),),
        partial(all_to_all, axis_name=("dp", "tp"), split_axis=0, concat_axis=0, tiled=True),
        P(("dp", "tp")),
        TENS_AND_ONES.T.ravel(),
    ),
    guide(
        "all-to-all-over-one-axis-transposes",
        (TENS_AND_ONES,),
        (P("dp", "tp"),),
        column,
        P(BOTH),
        TENS_AND_ONES.T,
    ),
    guide(
        "all-to-all-over-one-axis-joined-in-the-other-order",
        (TENS_AND_ONES,),
        (P("dp", "tp"),),
        column,
        P(("dp", "tp")),
        TENS_AND_ONES.T[[0, 4, 1, 5, 2, 6, 3, 7]],
    ),
)


def matmul_rows_and_columns(a: Any, b: Any) -> Any:
    """A[M_x, K_y] B[K_y, N] -> [M_x, N_y]."""
    return reduce_scatter(a @ b, "y", scatter_dimension=1, tiled=True)


def matmul_rows(a: Any, b: Any) -> Any:
    """A[M_x, K_y] B[K_y, N] -> [M_x, N]."""
    return all_reduce(a @ b, "y")


def matmul_columns(a: Any, b: Any) -> Any:
    """A[M_x, K_y] B[K_y, N] -> [M, N_y], invariant along x."""
    return all_gather_invariant(matmul_rows_and_columns(a, b), "x", tiled=True)


MATMUL = (
    square("matmul-sharded-in-rows-and-columns", (A, B), A_B, matmul_rows_and_columns, P("x", "y"), A @ B),
    square("matmul-sharded-in-rows", (A, B), A_B, matmul_rows, P("x", None), A @ B),
    square("matmul-sharded-in-columns", (A, B), A_B, matmul_columns, P(None, "y"), A @ B),
    Published(
        "matmul-reduce-scatter",
        (A, B),
        (P(None, "x"), P("x", None)),
        lambda a, b: reduce_scatter(a @ b, "x", tiled=True),
        P("x", None),
        A @ B,
        mesh={"x": 4, "y": 1},
    ),
)


def parameters(*cases: Any) -> list[Any]:
    """Cases by their names, each with the number of devices that it needs."""
    return [pytest.param(c, id=c.name, marks=pytest.mark.needs_devices(math.prod(c.mesh.values()))) for c in cases]


def explicit_mesh(shape: dict[str, int]) -> Mesh:
    """A mesh with explicit axes over the first devices."""
    kinds = (AxisType.Explicit,) * len(shape)
    return jax.make_mesh(tuple(shape.values()), tuple(shape), kinds, devices=jax.devices()[: math.prod(shape.values())])


def place(mesh: Mesh, arrays: Any, specs: tuple[P, ...]) -> list[jax.Array]:
    """Arrays on a mesh: one with explicit axes takes only what is laid out as `in_specs` says."""
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]


@pytest.mark.parametrize(
    "case", parameters(*RING_SHIFT, *REDUCE_SCATTER, *ALL_GATHER, *ALL_REDUCE, *ALL_TO_ALL, *MATMUL)
)
def test_published_examples(case: Published) -> None:
    """The global result is the published one, and it and a device's block have the types that its layout says."""
    mesh, blocks = explicit_mesh(case.mesh), []

    def body(*inputs: Any) -> Any:
        result = case.body(*inputs)
        blocks.append(jax.typeof(result))
        return result

    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=case.in_specs, out_specs=case.out_specs))
    result = program(*place(mesh, case.inputs, case.in_specs))
    np.testing.assert_array_equal(np.asarray(result), case.expected, strict=True)
    on = MeshCase(tuple(case.mesh), tuple(case.mesh.values()))
    layout = spec_entries(case.out_specs, result.ndim, on)
    assert spec_entries(jax.typeof(result).sharding.spec, result.ndim, on) == layout
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, case.out_specs), result.ndim)
    assert blocks[-1].dtype == result.dtype
    assert blocks[-1].shape == tuple(n // on.axis_size(a) for n, a in zip(result.shape, layout, strict=True))
    assert blocks[-1].manual_axis_type.varying == {name for axes in layout for name in axes}


def test_vmap_is_a_loop() -> None:
    """`vmap` of x -> x x^T over a stack of matrices is the stack of its results."""
    stack = iota(4, 3, 1)
    outer = jax.vmap(lambda x: x @ x.T)(jnp.asarray(stack))
    np.testing.assert_array_equal(np.asarray(outer), np.stack([x @ x.T for x in stack]), strict=True)
