"""The contracts of collective matrix products, from gathered operands to the transformer block.

An element of a result is the sum of its own terms, NaN and infinite ones included: it is NaN where a term is, or where
infinities of both signs meet, and no other row or column notices. Where it is infinite NaN is right as well: a form
that multiplies its blocks by the zeros of a mask or of padding has a term more, zero times infinity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from hypothesis import strategies as st

from shardproof.oracles import collective_matmul as values
from shardproof.oracles.dtypes import is_float
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies import chains, specs
from shardproof.properties.cases.strategies.dtypes import WIDE_IN, as_dtype
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.call import Call
from shardproof.properties.contracts.contract import Contract, Oracle, Scope, Violation
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.drawing import BATCHES, made_manual, meshes_and_axes, sides_of_products
from shardproof.properties.contracts.floats import FLOATS
from shardproof.properties.contracts.forbidden import AXES, changed
from shardproof.properties.contracts.options import OPTIONS

OTHERS = ("complex64", "int32", "int8")
"""Of which only complex numbers have a gradient."""

FEATURES = frozenset({"batch_dimensions", "empty_blocks", "explained_errors", "narrow_accumulation", "x64"})

MOST_MEMBERS = 512
"""The largest mesh for products: a gathered operand has as many copies as it has parts."""

Spec = tuple[str, ...]
Sizes = tuple[int, int, int]
Layout = Callable[[int, Sizes, Spec, Spec, Spec], list[tuple[tuple[int, int], tuple[Spec, Spec]]]]
"""Given p, the sides (m, k, n) and the axes of Y, of other rows and of Z: each operand's block and spec."""


class Operation(Protocol):
    """An oracle: values and both derivatives, blocks to blocks."""

    def value(self, operands: Sequence[np.ndarray], mesh: MeshCase, axes: Any) -> np.ndarray:
        """The result's blocks."""

    def pushforward(
        self, operands: Sequence[np.ndarray], tangents: Sequence[np.ndarray], mesh: MeshCase, axes: Any
    ) -> np.ndarray:
        """The result's tangent blocks."""

    def pullback(self, operands: Sequence[np.ndarray], ct: np.ndarray, mesh: MeshCase, axes: Any) -> list[np.ndarray]:
        """The operands' cotangent blocks."""


def _gathered_columns(p: int, sizes: Sizes, y: Spec, rows: Spec, z: Spec) -> Any:
    m, k, n = sizes
    return [((m, k), (rows, y)), ((k * p, n), ((), z))]


def _gathered_rows(p: int, sizes: Sizes, y: Spec, rows: Spec, z: Spec) -> Any:
    m, k, n = sizes
    return [((m, k), (y, ())), ((k, n), ((), z))]


def _gathered_weights(p: int, sizes: Sizes, y: Spec, rows: Spec, z: Spec) -> Any:
    m, k, n = sizes
    return [((m, k * p), (z, ())), ((k, n), (y, ()))]


def _reduced(p: int, sizes: Sizes, y: Spec, rows: Spec, z: Spec) -> Any:
    m, k, n = sizes
    free = tuple(name for name in z if name not in y)
    return [((m, k), (rows, y)), ((k, n), (y, free))]


def _block(p: int, sizes: Sizes, y: Spec, rows: Spec, z: Spec) -> Any:
    b, d, f = sizes
    return [((b, d), (rows, y)), ((d * p, f), ((), y)), ((f, d * p), (y, ()))]


@st.composite
def matmul_cases(draw: st.DrawFn, contract: Contract, scope: Scope, layout: Layout) -> Case:
    """Cases of one product. Shrinks to one device, the first axis, sides of one, float32."""
    name, chain = contract.name, draw(chains(scope.chains), label="chain")
    mesh, axis_name, axes = meshes_and_axes.within(draw, scope, chain, most=MOST_MEMBERS)
    p = mesh.axis_size(axes)
    kind, (m, k, n) = sides_of_products.within(draw, scope)
    params: dict[str, Any] = {}
    if name == "matmul_reduce_scatter":
        dimension = draw(sampled((0, 1)), label="scatter_dimension")
        params["scatter_dimension"] = dimension
        m, n = (m * p, n) if dimension == 0 else (m, n * p)
    free = [axis for axis in mesh.axis_names if axis not in axes]
    rows = specs.within(draw, mesh, 1, allowed=free)[0]
    z = specs.within(draw, mesh, 1)[0]
    # a relu goes by the sign, which complex numbers do not have, and sums that wrap around lose
    others = OTHERS[: 0 if name == "transformer_block" else 1 if scope.floating else 3]
    narrow = [one for one in FLOATS if as_dtype(one).itemsize < 4]  # twice, for these are added up in wider ones
    dtype = draw(sampled((*FLOATS, *others, *narrow)), label="dtype")
    if "x64" in scope.features and draw(st.integers(0, WIDE_IN - 1), label="64 bits") == WIDE_IN - 1:
        dtype = {"int32": "int64", "int8": "int64", "complex64": "complex128"}.get(dtype, "float64")
    batch: tuple[int, ...] = ()
    if "batch_dimensions" in scope.features:
        most = 0 if kind == "both long" else 2  # whose tiles one matrix tells of
        batch = draw(BATCHES, label="batch dimensions")[:most]
    operands = [
        Operand((*lead, *block), dtype, Placement((*[()] * len(lead), *spec)))
        for lead, (block, spec) in zip((batch, (), ()), layout(p, (m, k, n), axes, rows, z), strict=False)
    ]
    seed = draw(st.integers(0, 2**16), label="seed")
    kinds = _kinds(name, as_dtype(dtype), seed)
    data = tuple(Data(kinds[i % len(kinds)], seed + i) for i in range(2 if scope.large else 5))
    manual, placed = made_manual.within(draw, chain, mesh, axes, operands)
    return Case(
        contract=contract,
        mesh=mesh,
        axis_name=axis_name,
        operands=placed,
        params=tuple(params.items()),
        data=data,
        chain=chain,
        manual=manual,
    )


def _kinds(name: str, dtype: np.dtype, seed: int) -> tuple[str, ...]:
    """The kinds of data, the last of floats not finite: NaN, or infinite, which times a complex number is undefined."""
    if not is_float(dtype):
        return ("exact", "distinct", "special")
    last = "special" if seed % 2 and dtype.kind != "c" else "nan"
    if name == "transformer_block":  # its weights get signs that its relu can tell at one scale only
        return ("exact", "real", "exact", "real", last)
    return ("exact", "real", "scaled", "partial", last)


def _mismatched(case: Case) -> st.SearchStrategy[Case]:
    rows, *columns = case.operands[1].block
    return st.just(changed(case, 1, block=(rows + 1, *columns)))


def _out_of_range(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from((2, -1, 5)).map(lambda at: case.with_params(scatter_dimension=at))


def _indivisible(case: Case) -> st.SearchStrategy[Case]:
    if case.participants == 1:
        return st.nothing()
    at = case.keywords["scatter_dimension"]
    index, dimension = (0, len(case.operands[0].block) - 2) if at == 0 else (1, 1)
    block = list(case.operands[index].block)
    block[dimension] += 1
    return st.just(changed(case, index, block=tuple(block)))


def signed(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The block's input and first weights with signs such that nothing is near zero before the relu.

    At zero, relu has no derivative and implementations choose one. A row of X has one sign, a column of W_in
    another, so each product of them has the product of the two signs in all terms. Wherever the sums stay well
    away from zero, every other row of W_in has the opposite sign: partial sums differ in sign from whole ones.
    Both are finite, since implementations choose what relu makes of NaN; W_out need not be.
    """
    x, w_in, *rest = (a.copy() for a in arrays)
    for array, axis in ((x, -2), (w_in, -1)):
        sizes = np.abs(array.astype(np.float64))
        index = np.arange(array.shape[axis])
        signs = np.where(index % 3 == 1, -1.0, 1.0)
        shape = [1] * array.ndim
        shape[axis] = -1
        clear_of_zero = np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1)
        array[...] = (clear_of_zero * signs.reshape(shape)).astype(array.dtype)
    rows, columns = (case.aligned(i, array.astype(np.float64)) for i, array in enumerate((x, w_in)))
    own = len(case.batch)
    rows = rows.reshape(*rows.shape[:own], math.prod(rows.shape[own:-1]), rows.shape[-1])
    turned = columns * np.where(np.arange(columns.shape[-2]) % 2, -1.0, 1.0)[:, None]
    clear = (np.abs(rows @ turned) > np.abs(rows) @ np.abs(columns) / 4).all(axis=-2, keepdims=True)
    clear = clear.all(axis=case.shared_dimensions(1), keepdims=True)  # for all inputs that have these weights
    return [x, np.where(clear, turned, columns).reshape(w_in.shape).astype(w_in.dtype), *rest]


def _matmul(
    name: str,
    layout: Layout,
    operation: Callable[[Case], Operation],
    *,
    operands: tuple[str, ...] = ("lhs", "rhs"),
    parameters: tuple[str, ...] = (),
    invariant: bool = False,
    violations: tuple[Violation, ...] = (),
    accumulator: Literal["float32", "float32 on a device"] = "float32",
    adapt: Callable[[Case, list[np.ndarray]], list[np.ndarray]] = lambda case, arrays: arrays,
    least: Callable[[Case], int],
    sizes: Mapping[str, Callable[[Case], int]] | None = None,
) -> Contract:
    contract = Contract(
        name=name,
        cases=lambda scope: matmul_cases(contract, scope, layout),
        call=Call(operands, options={option: OPTIONS[option] for option in parameters}),
        oracle=Oracle(
            lambda case, xs: [operation(case).value(xs, case.mesh, case.axes)],
            lambda case, xs, tangents: [operation(case).pushforward(xs, tangents, case.mesh, case.axes)],
            lambda case, xs, cts: operation(case).pullback(xs, cts[0], case.mesh, case.axes),
        ),
        invariant=invariant,
        violations=(*AXES, Violation(operands[1], _mismatched), *violations),
        features=FEATURES,
        accumulator=accumulator,
        adapt=adapt,
        least=least,
        sizes=sizes or {},
    )
    return contract


def _rows(case: Case) -> int:
    """The sides of a scattered piece in the dimension that is scattered."""
    sides = case.operands[0].block[-2], case.operands[1].block[-1]
    return sides[case.keywords["scatter_dimension"]] // case.participants


def _scattered(case: Case) -> Operation:
    return values.matmul_reduce_scatter(case.keywords["scatter_dimension"])


CONTRACTS = (
    _matmul(
        "all_gather_matmul_lhs_contracting",
        _gathered_columns,
        lambda case: values.all_gather_matmul_lhs_contracting,
        least=something(0),
    ),
    _matmul("all_gather_matmul_lhs", _gathered_rows, lambda case: values.all_gather_matmul_lhs, least=something(0)),
    _matmul("all_gather_matmul_rhs", _gathered_weights, lambda case: values.all_gather_matmul_rhs, least=something(1)),
    _matmul(
        "matmul_reduce_scatter",
        _reduced,
        _scattered,
        parameters=("scatter_dimension",),
        accumulator="float32 on a device",
        least=something(0, 1),
        sizes={"rows": _rows},
        violations=(
            Violation("scatter_dimension", _out_of_range),
            Violation("scatter_dimension", _indivisible),
        ),
    ),
    _matmul(
        "matmul_all_reduce",
        _reduced,
        lambda case: values.matmul_all_reduce,
        invariant=True,
        accumulator="float32 on a device",
        least=something(0, 1),
    ),
    _matmul(
        "transformer_block",
        _block,
        lambda case: values.transformer_block,
        operands=("x", "w_in", "w_out"),
        accumulator="float32 on a device",
        adapt=signed,
        least=something(0, 1, 2),
    ),
)
