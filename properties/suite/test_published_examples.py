"""Published examples of collectives: what tutorials print for given inputs is what the implementations give.

The cases come from "JAX Sharding and Parallel Computing" (ring shift to all-to-all), part 10 of "How To
Scale Your Model" (slice and average) and a notebook on matrix multiplication under `shard_map`. Inputs,
values and types are those that they print. Where operands are large and random, ours are small integers,
so that float sums are exact; the types shrink accordingly and the values are NumPy's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
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


@dataclass(frozen=True, eq=False)
class Program:
    """A program of a device-local function, on explicit axes.

    Arguments:
        name: what it is called here.
        mesh: axis names and sizes, in mesh order.
        inputs: the global arrays.
        in_specs: their layouts, one per input.
        body: the device-local function.
        out_specs: the layout of its result.
    """

    name: str
    mesh: dict[str, int]
    inputs: tuple[np.ndarray, ...]
    in_specs: tuple[P, ...]
    body: Callable[..., Any]
    out_specs: P


@dataclass(frozen=True, eq=False)
class Published(Program):
    """A program, and what comes out of it.

    Arguments:
        expected: the global result.
        block: dtype and shape of the device-local result.
        varying: the axes along which it varies.
        result: the type of the global result, with the axes that shard each dimension.
    """

    expected: np.ndarray
    block: str
    varying: set[str]
    result: str


GUIDE = {"dp": 4, "tp": 2}
SQUARE = {"x": 2, "y": 2}


def ints(*rows: Any) -> np.ndarray:
    """An int32 array."""
    return np.array(rows, np.int32)


def iota(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    """0, 1, 2, … in row-major order."""
    return np.arange(math.prod(shape), dtype=dtype).reshape(shape)


RING_SHIFT = (
    Published(
        name="ring-shift-forward-2x4",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P("tp", "dp"),),
        body=partial(ring_shift, axis_name="dp", offset=1),
        out_specs=P("tp", "dp"),
        expected=ints([3, 0, 1, 2], [7, 4, 5, 6]),
        block="int32[1,1]",
        varying={"tp", "dp"},
        result="int32[2@tp,4@dp]",
    ),
    Published(
        name="ring-shift-backward-2x4",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P("tp", "dp"),),
        body=partial(ring_shift, axis_name="dp", offset=-1),
        out_specs=P("tp", "dp"),
        expected=ints([1, 2, 3, 0], [5, 6, 7, 4]),
        block="int32[1,1]",
        varying={"tp", "dp"},
        result="int32[2@tp,4@dp]",
    ),
    Published(
        name="ring-shift-forward-4x2",
        mesh=GUIDE,
        inputs=(iota(4, 2),),
        in_specs=(P("dp", "tp"),),
        body=partial(ring_shift, axis_name="dp", offset=1),
        out_specs=P("dp", "tp"),
        expected=ints([6, 7], [0, 1], [2, 3], [4, 5]),
        block="int32[1,1]",
        varying={"tp", "dp"},
        result="int32[4@dp,2@tp]",
    ),
    Published(
        name="ring-shift-backward-4x2",
        mesh=GUIDE,
        inputs=(iota(4, 2),),
        in_specs=(P("dp", "tp"),),
        body=partial(ring_shift, axis_name="dp", offset=-1),
        out_specs=P("dp", "tp"),
        expected=ints([2, 3], [4, 5], [6, 7], [0, 1]),
        block="int32[1,1]",
        varying={"tp", "dp"},
        result="int32[4@dp,2@tp]",
    ),
    Published(
        name="ring-shift-forward-over-tuple-out-of-mesh-order",
        mesh=GUIDE,
        inputs=(iota(8),),
        in_specs=(P(("tp", "dp")),),
        body=partial(ring_shift, axis_name=("tp", "dp"), offset=1),
        out_specs=P(("tp", "dp")),
        expected=ints(7, 0, 1, 2, 3, 4, 5, 6),
        block="int32[1]",
        varying={"tp", "dp"},
        result="int32[8@(tp,dp)]",
    ),
    Published(
        name="ring-shift-backward-over-tuple-out-of-mesh-order",
        mesh=GUIDE,
        inputs=(iota(8),),
        in_specs=(P(("tp", "dp")),),
        body=partial(ring_shift, axis_name=("tp", "dp"), offset=-1),
        out_specs=P(("tp", "dp")),
        expected=ints(1, 2, 3, 4, 5, 6, 7, 0),
        block="int32[1]",
        varying={"tp", "dp"},
        result="int32[8@(tp,dp)]",
    ),
    Published(
        name="ring-shift-backward-on-2x2",
        mesh={"dp": 2, "tp": 2},
        inputs=(iota(4),),
        in_specs=(P(("tp", "dp")),),
        body=partial(ring_shift, axis_name=("tp", "dp"), offset=-1),
        out_specs=P(("tp", "dp")),
        expected=ints(1, 2, 3, 0),
        block="int32[1]",
        varying={"tp", "dp"},
        result="int32[4@(tp,dp)]",
    ),
)

REDUCE_SCATTER = (
    Published(
        name="reduce-scatter-vector",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=0, tiled=True),
        out_specs=P("tp"),
        expected=ints(2, 4),
        block="int32[1]",
        varying={"tp"},
        result="int32[2@tp]",
    ),
    Published(
        name="reduce-scatter-rows-tiled",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P(None, "tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=0, tiled=True),
        out_specs=P("tp"),
        expected=ints([2, 4], [10, 12]),
        block="int32[1,2]",
        varying={"tp"},
        result="int32[2@tp,2]",
    ),
    Published(
        name="reduce-scatter-columns-tiled",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P(None, "tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=1, tiled=True),
        out_specs=P(None, "tp"),
        expected=ints([2, 4], [10, 12]),
        block="int32[2,1]",
        varying={"tp"},
        result="int32[2,2@tp]",
    ),
    Published(
        name="reduce-scatter-rows",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P(None, "tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=0, tiled=False),
        out_specs=P("tp"),
        expected=ints(2, 4, 10, 12),
        block="int32[2]",
        varying={"tp"},
        result="int32[4@tp]",
    ),
    Published(
        name="reduce-scatter-columns-tiled-joined-as-rows",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P(None, "tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=1, tiled=True),
        out_specs=P("tp"),
        expected=ints([2], [10], [4], [12]),
        block="int32[2,1]",
        varying={"tp"},
        result="int32[4@tp,1]",
    ),
    Published(
        name="reduce-scatter-columns",
        mesh=GUIDE,
        inputs=(iota(2, 4),),
        in_specs=(P(None, "tp"),),
        body=partial(reduce_scatter, axis_name="tp", scatter_dimension=1, tiled=False),
        out_specs=P("tp"),
        expected=ints(2, 10, 4, 12),
        block="int32[2]",
        varying={"tp"},
        result="int32[4@tp]",
    ),
)

ALL_GATHER = (
    Published(
        name="all-gather-invariant-tiled",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(all_gather_invariant, axis_name="tp", axis=0, tiled=True),
        out_specs=P(),
        expected=ints(0, 1, 2, 3),
        block="int32[4]",
        varying=set(),
        result="int32[4]",
    ),
    Published(
        name="all-gather-invariant-stacked-as-rows",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(all_gather_invariant, axis_name="tp", axis=0, tiled=False),
        out_specs=P(),
        expected=ints([0, 1], [2, 3]),
        block="int32[2,2]",
        varying=set(),
        result="int32[2,2]",
    ),
    Published(
        name="all-gather-invariant-stacked-as-columns",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(all_gather_invariant, axis_name="tp", axis=1, tiled=False),
        out_specs=P(),
        expected=ints([0, 2], [1, 3]),
        block="int32[2,2]",
        varying=set(),
        result="int32[2,2]",
    ),
    Published(
        name="all-gather-tiled",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(all_gather, axis_name="tp", axis=0, tiled=True),
        out_specs=P("tp"),
        expected=ints(0, 1, 2, 3, 0, 1, 2, 3),
        block="int32[4]",
        varying={"tp"},
        result="int32[8@tp]",
    ),
    Published(
        name="all-gather-of-weights-before-a-matmul",
        mesh=GUIDE,
        inputs=(iota(8, 16, dtype=np.float32), iota(16, 4, dtype=np.float32)),
        in_specs=(P("dp", None), P("dp", None)),
        body=lambda x, w: x @ all_gather(w, "dp", axis=0, tiled=True),
        out_specs=P("dp", None),
        expected=iota(8, 16, dtype=np.float32) @ iota(16, 4, dtype=np.float32),
        block="float32[2,4]",
        varying={"dp"},
        result="float32[8@dp,4]",
    ),
)

ALL_REDUCE = (
    Published(
        name="all-reduce-over-one-axis",
        mesh=GUIDE,
        inputs=(iota(8) - 1,),
        in_specs=(P("dp"),),
        body=lambda x: all_reduce(x + 1, "dp"),
        out_specs=P(),
        expected=ints([0, 1], [2, 3], [4, 5], [6, 7]).sum(axis=0, dtype=np.int32),
        block="int32[2]",
        varying=set(),
        result="int32[2]",
    ),
    Published(
        name="all-reduce-over-two-axes",
        mesh=GUIDE,
        inputs=(iota(8, 16, dtype=np.float32), iota(16, 4, dtype=np.float32)),
        in_specs=(P("dp"), P(None, "tp")),
        body=lambda x, w: all_reduce(x @ w, ("dp", "tp")),
        out_specs=P(),
        # the sum of all products of a row block and a column block is the product of the sums of the blocks
        expected=iota(4, 2, 16, dtype=np.float32).sum(axis=0) @ iota(16, 2, 2, dtype=np.float32).sum(axis=1),
        block="float32[2,2]",
        varying=set(),
        result="float32[2,2]",
    ),
    Published(
        name="slice-and-average",
        mesh={"x": 2, "y": 4},
        inputs=(iota(512),),
        in_specs=(P(("x", "y")),),
        body=lambda x: all_reduce(x[:4], ("x", "y"), op="mean"),
        out_specs=P(None),
        expected=iota(8, 64)[:, :4].mean(axis=0, dtype=np.float32),
        block="float32[4]",
        varying=set(),
        result="float32[4]",
    ),
)

TENS_AND_ONES = 10 * iota(8)[:, None] + iota(8)[None, :]


def column(x: Any) -> Any:
    """Of a matrix [8_dp, 8_tp], one whole column, as a row."""
    return jnp.reshape(all_to_all(x, "dp", split_axis=1, concat_axis=0, tiled=False), (1, -1))


ALL_TO_ALL = (
    Published(
        name="all-to-all-over-two-axes-transposes",
        mesh=GUIDE,
        inputs=(TENS_AND_ONES.ravel(),),
        in_specs=(P(("dp", "tp")),),
        body=partial(all_to_all, axis_name=("dp", "tp"), split_axis=0, concat_axis=0, tiled=True),
        out_specs=P(("dp", "tp")),
        expected=TENS_AND_ONES.T.ravel(),
        block="int32[8]",
        varying={"tp", "dp"},
        result="int32[64@(dp,tp)]",
    ),
    Published(
        name="all-to-all-over-one-axis-transposes",
        mesh=GUIDE,
        inputs=(TENS_AND_ONES,),
        in_specs=(P("dp", "tp"),),
        body=column,
        out_specs=P(("tp", "dp")),
        expected=TENS_AND_ONES.T,
        block="int32[1,8]",
        varying={"tp", "dp"},
        result="int32[8@(tp,dp),8]",
    ),
    Published(
        name="all-to-all-over-one-axis-joined-in-the-other-order",
        mesh=GUIDE,
        inputs=(TENS_AND_ONES,),
        in_specs=(P("dp", "tp"),),
        body=column,
        out_specs=P(("dp", "tp")),
        expected=TENS_AND_ONES.T[[0, 4, 1, 5, 2, 6, 3, 7]],
        block="int32[1,8]",
        varying={"tp", "dp"},
        result="int32[8@(dp,tp),8]",
    ),
)

A, B = iota(8, 16, dtype=np.float32), iota(16, 4, dtype=np.float32)


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
    Published(
        name="matmul-sharded-in-rows-and-columns",
        mesh=SQUARE,
        inputs=(A, B),
        in_specs=(P("x", "y"), P("y", None)),
        body=matmul_rows_and_columns,
        out_specs=P("x", "y"),
        expected=A @ B,
        block="float32[4,2]",
        varying={"x", "y"},
        result="float32[8@x,4@y]",
    ),
    Published(
        name="matmul-sharded-in-rows",
        mesh=SQUARE,
        inputs=(A, B),
        in_specs=(P("x", "y"), P("y", None)),
        body=matmul_rows,
        out_specs=P("x", None),
        expected=A @ B,
        block="float32[4,4]",
        varying={"x"},
        result="float32[8@x,4]",
    ),
    Published(
        name="matmul-sharded-in-columns",
        mesh=SQUARE,
        inputs=(A, B),
        in_specs=(P("x", "y"), P("y", None)),
        body=matmul_columns,
        out_specs=P(None, "y"),
        expected=A @ B,
        block="float32[8,2]",
        varying={"y"},
        result="float32[8,4@y]",
    ),
    Published(
        name="matmul-reduce-scatter",
        mesh={"x": 4, "y": 1},
        inputs=(A, B),
        in_specs=(P(None, "x"), P("x", None)),
        body=lambda a, b: reduce_scatter(a @ b, "x", tiled=True),
        out_specs=P("x", None),
        expected=A @ B,
        block="float32[2,4]",
        varying={"x"},
        result="float32[8@x,4]",
    ),
)


def cases(*groups: tuple[Program, ...]) -> list[Any]:
    """The examples as parameters, each with the number of devices that it needs."""
    return [
        pytest.param(case, id=case.name, marks=pytest.mark.needs_devices(math.prod(case.mesh.values())))
        for group in groups
        for case in group
    ]


ALL = cases(RING_SHIFT, REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, MATMUL)


def explicit_mesh(shape: dict[str, int]) -> Mesh:
    """A mesh with explicit axes over the first devices."""
    needed = math.prod(shape.values())
    if jax.device_count() < needed:
        pytest.fail(f"the mesh {shape} needs {needed} devices and there are {jax.device_count()}")
    return jax.make_mesh(
        tuple(shape.values()), tuple(shape), (AxisType.Explicit,) * len(shape), devices=jax.devices()[:needed]
    )


def place(case: Program, mesh: Mesh) -> list[jax.Array]:
    """The inputs on the mesh: an explicit mesh takes only what is laid out as `in_specs` says."""
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(case.inputs, case.in_specs, strict=True)]


@lru_cache
def run(case: Published) -> tuple[jax.Array, Any]:
    """The global result of an example, and the type of its block."""
    mesh = explicit_mesh(case.mesh)
    blocks = []

    def body(*inputs: Any) -> Any:
        result = case.body(*inputs)
        blocks.append(jax.typeof(result))
        return result

    program = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=case.in_specs, out_specs=case.out_specs))
    return program(*place(case, mesh)), blocks[-1]


@pytest.mark.parametrize("case", ALL)
def test_values_are_as_published(case: Published) -> None:
    """The global result is the published one, element by element."""
    result, _ = run(case)
    np.testing.assert_array_equal(np.asarray(result), case.expected, strict=True)


@pytest.mark.parametrize("case", ALL)
def test_block_types_are_as_published(case: Published) -> None:
    """The device-local result has the published dtype and shape, and varies along the published axes only."""
    _, block = run(case)
    assert f"{block.dtype}[{','.join(map(str, block.shape))}]" == case.block
    assert block.manual_axis_type.varying == case.varying


@pytest.mark.parametrize("case", ALL)
def test_result_types_are_as_published(case: Published) -> None:
    """The global result has the published type, and its shards are where `out_specs` puts them."""
    result, _ = run(case)
    assert str(jax.typeof(result)) == case.result
    assert result.sharding.is_equivalent_to(NamedSharding(explicit_mesh(case.mesh), case.out_specs), result.ndim)


MISTAKES = (
    Program(
        name="all-gather-as-replicated",
        mesh=GUIDE,
        inputs=(iota(4),),
        in_specs=(P("tp"),),
        body=partial(all_gather, axis_name="tp", axis=0, tiled=True),
        out_specs=P(),
    ),
    Program(
        name="all-gather-of-rows-as-replicated",
        mesh=SQUARE,
        inputs=(A, B),
        in_specs=(P("x", "y"), P("y", None)),
        body=lambda a, b: all_gather(matmul_rows_and_columns(a, b), "x", tiled=True),
        out_specs=P(None, "y"),
    ),
    Program(
        name="partial-sum-as-replicated",
        mesh=SQUARE,
        inputs=(A, B),
        in_specs=(P("x", "y"), P("y", None)),
        body=lambda a, b: a @ b,
        out_specs=P("x", None),
    ),
)


@pytest.mark.parametrize("mistake", cases(MISTAKES))
def test_varying_results_are_not_replicated(mistake: Program) -> None:
    """An `out_specs` that leaves out an axis along which the result varies is refused when the program is traced."""
    mesh = explicit_mesh(mistake.mesh)
    program = jax.shard_map(mistake.body, mesh=mesh, in_specs=mistake.in_specs, out_specs=mistake.out_specs)
    with pytest.raises(ValueError, match=r"out_specs.*replicat"):
        jax.eval_shape(program, *place(mistake, mesh))


def test_vmap_is_a_loop() -> None:
    """`vmap` of x -> x x^T over a stack of matrices is the stack of its results."""
    stack = iota(4, 3, 1)
    outer = jax.vmap(lambda x: x @ x.T)(jnp.asarray(stack))
    expected = ints(
        [[0, 0, 0], [0, 1, 2], [0, 2, 4]],
        [[9, 12, 15], [12, 16, 20], [15, 20, 25]],
        [[36, 42, 48], [42, 49, 56], [48, 56, 64]],
        [[81, 90, 99], [90, 100, 110], [99, 110, 121]],
    )
    np.testing.assert_array_equal(np.asarray(outer), expected, strict=True)
