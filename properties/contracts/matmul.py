"""The contracts of collective matrix products, from gathered operands to layers of two of them.

An element of a result is the sum of its own terms, NaN and infinite ones included: it is NaN where a term is, or where
infinities of both signs meet, and no other row or column notices. Where it is infinite NaN is right as well: a form
that multiplies its blocks by the zeros of a mask or of padding has a term more, zero times infinity.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import sequence_parallel
from shardproof.oracles import collective_matmul as values
from shardproof.oracles.dtypes import as_dtype, is_float
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import DIMENSION, Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import added_up, replicas
from shardproof.properties.contracts.drawing import FLOATS, Drawn, Given, draw_small_sizes, floats, sides
from shardproof.properties.contracts.forbidden import longer, longer_block, wrong_value
from shardproof.properties.contracts.operation import INDEPENDENT, Params, operation

MOST_MEMBERS = 512
"""The largest mesh for products: a gathered operand has as many copies as it has parts."""

MOST_SIDE = 9
"""The longest side of what can be cut into quarters, even or not, beside sides that are long."""

BOTH_LONG = (128, 129, 130, 136, 144, 160)
"""The sides of a matrix with two long ones, around the side of a tile, mostly beyond it, where parts get lost."""

TILE = 128
"""The side of a tile."""

TWO_LONG = st.one_of(st.none(), st.tuples(st.integers(0, 2), *[st.sampled_from(BOTH_LONG)] * 2))
BATCHES = st.lists(st.integers(1, 2), max_size=2).map(tuple)


def _dtypes(scope: Scope, devices: int, participants: int, params: Params) -> st.SearchStrategy[str]:
    usual = (*FLOATS, "complex64", *(() if scope.floating else ("int32", "int8")))
    wide = ("float64", "complex128", *(() if scope.floating else ("int64",)))
    return sampled((*usual, *(wide if "x64" in scope.features else ())))


def _kinds(scope: Scope, dtype: str, params: Params) -> tuple[str, ...]:
    """All but distinct data of floats; what is infinite, times a complex number, is undefined."""
    if not is_float(as_dtype(dtype)):
        return ("exact", "distinct", "special", "exact", "distinct")
    return ("exact", "real", "scaled", "partial", "nan", *(() if dtype.startswith("complex") else ("special",)))


def _indivisible(case: Case) -> st.SearchStrategy[Case]:
    if case.participants == 1:
        return st.nothing()
    place, dimension = ((0, -2), (1, -1))[case.keywords["scatter_dimension"]]
    return st.just(longer_block(case, place, dimension))


def signed(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The block's input and first weights with signs such that nothing is near zero before the relu.

    At zero, relu has no derivative and implementations choose one. A row of X has one sign, a column of W_in
    another, so each product of them has the product of the two signs in all terms. Wherever the sums stay well
    away from zero, every other row of W_in has the opposite sign: partial sums differ in sign from whole ones.
    Both are finite, since implementations choose what relu makes of NaN; W_out need not be.
    """
    x, w_in, *rest = arrays
    x, w_in = with_signs(x, -2), with_signs(w_in, -1)
    rows, columns = (case.aligned(i, array.astype(np.float64)) for i, array in enumerate((x, w_in)))
    own = len(case.batch)
    rows = rows.reshape(*rows.shape[:own], math.prod(rows.shape[own:-1]), rows.shape[-1])
    turned = columns * np.where(np.arange(columns.shape[-2]) % 2, -1.0, 1.0)[:, None]
    clear = (np.abs(rows @ turned) > np.abs(rows) @ np.abs(columns) / 4).all(axis=-2, keepdims=True)
    clear = clear.all(axis=case.shared_dimensions(1), keepdims=True)  # for all inputs that have these weights
    return [x, np.where(clear, turned, columns).reshape(w_in.shape).astype(w_in.dtype), *rest]


def with_signs(array: np.ndarray, axis: int) -> np.ndarray:
    """An array of finite numbers other than zero, every third of which along an axis are negative, and no others."""
    sizes = np.abs(array.astype(np.float64))
    shape = [1] * array.ndim
    shape[axis] = -1
    signs = np.where(np.arange(array.shape[axis]) % 3 == 1, -1.0, 1.0).reshape(shape)
    return np.asarray(np.where(np.isfinite(sizes) & (sizes > 0), sizes, 1) * signs).astype(array.dtype)


def _draw_sizes(draw: st.DrawFn, given: Given, *, scatters: bool) -> Drawn:
    """A batch, and m, k and n; with a side beyond a tile another one may be as long, without batch or gradient."""
    scope, options = given.scope, {}
    m_k_n = sides(draw, scope, 3, most=MOST_SIDE)
    batch = draw(BATCHES, label="batch dimensions") if "batch_dimensions" in scope.features else ()
    possible = not (batch or scope.large or scope.floating) and max(m_k_n) >= TILE
    if possible and (two := draw(TWO_LONG, label="two long sides")):
        at, *long = two
        m_k_n = (*long[:at], m_k_n[at], *long[at:])
    sizes: dict[str, Any] = {"batch": batch, **dict(zip("mkn", m_k_n, strict=True))}
    if scatters:
        at = options["scatter_dimension"] = draw(sampled((0, 1)), label="scatter_dimension")
        sizes["mn"[at]] *= given.participants
    return Drawn(sizes, options)


def _matmul(
    name: str, arguments: Mapping[str, str], *, violations: tuple[Violation, ...] = (), **more: Any
) -> Contract:
    """The contract of a product of operands that have the dimensions m, k and n, the first one behind a batch."""
    shared: dict[str, Any] = {
        "draw_sizes": partial(_draw_sizes, scatters="options" in more),
        "dtypes": _dtypes,
        "kinds": _kinds,
        "most": MOST_MEMBERS,
        "features": frozenset({"batch_dimensions", "empty_blocks", "explained_errors", "narrow_accumulation", "x64"}),
        "violations": (longer([*arguments][1], 1, 0), *violations),
    }
    return operation(name, getattr(values, name), arguments, **shared | more)


def _rows(case: Case) -> int:
    """The sides of a scattered piece in the dimension that is scattered."""
    sides = case.operands[0].block[-2], case.operands[1].block[-1]
    return sides[case.keywords["scatter_dimension"]] // case.participants


SUMMED = {"lhs": "batch m@others k@axis_name", "rhs": "k@axis_name n@others"}
ON_A_DEVICE = "float32 on a device"

MOST_POSITIONS = 128
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""

POSITIONS = {
    "x": "positions@axis_name batch@others features",
    "w_in": "features hidden@axis_name",
    "w_out": "hidden@axis_name features",
}


WIDE = "elements(x)*sum_itemsize(x)"
NAIVE = (
    f"all_gather=1,all_gather_bytes=x,reduce_scatter=1,reduce_scatter_bytes=p*{WIDE};"
    f"grad:all_gather=2,all_gather_bytes=x+{WIDE},reduce_scatter=1,reduce_scatter_bytes=p*x,{added_up(*POSITIONS)}"
)
"""The input is gathered, and a sum of as many elements scattered; backward the input is gathered again."""

HALVES = "(p-1)*(2 if size(x,0)*size(x,1)>1 else 1)"
BOTH_WAYS = (
    f"permute=2*{HALVES},bytes=(p-1)*(x+{WIDE}),steps=2*(p-1);"
    f"grad:permute=3*{HALVES},permute_bytes=(p-1)*(2*x+{WIDE}),"
    f"steps=3*(p-1)+{replicas(*POSITIONS)},{added_up(*POSITIONS)}"
)

CONTRACTS = (
    _matmul(
        "all_gather_matmul_lhs_contracting",
        {"lhs": "batch m@others k@axis_name", "rhs": "k n@any"},
        accumulator="float32",
    ),
    _matmul("all_gather_matmul_lhs", {"lhs": "batch m@axis_name k", "rhs": "k n@any"}, accumulator="float32"),
    _matmul("all_gather_matmul_rhs", {"lhs": "batch m@any k", "rhs": "k@axis_name n"}, accumulator="float32"),
    _matmul(
        "matmul_reduce_scatter",
        SUMMED,
        options={"scatter_dimension": DIMENSION},
        accumulator=ON_A_DEVICE,
        sizes={"rows": _rows},
        violations=(
            wrong_value("scatter_dimension", lambda case: (2, -1, 5)),
            Violation("scatter_dimension", _indivisible),
        ),
    ),
    _matmul("matmul_all_reduce", SUMMED, invariant=True, accumulator=ON_A_DEVICE),
    _matmul(
        "transformer_block",
        {"x": "batch m@others k@axis_name", "w_in": "k n@axis_name", "w_out": "n@axis_name k"},
        dtypes=floats,  # a relu goes by the sign, which complex numbers do not have, and sums that wrap around lose
        kinds=("exact", "real", "exact", "real", "nan", "special"),  # of weights whose signs show at one scale only
        accumulator=ON_A_DEVICE,
        adapt=signed,
    ),
    operation(
        "sequence_parallel_mlp",
        values.sequence_parallel_mlp,
        POSITIONS,
        draw_sizes=partial(draw_small_sizes, most=3),
        kinds=("exact", "real", "special", "nan"),
        features=frozenset({"empty_blocks", INDEPENDENT, "explained_errors", "narrow_accumulation", "x64"}),
        violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
        most=MOST_POSITIONS,
        adapt=signed,
        accumulator="float32 on a device",
        usual_sizes={"positions": 2048, "batch": 4, "features": 2048, "hidden": 8192},
        implementations={
            "naive": Claim(sequence_parallel.sequence_parallel_mlp, communication=NAIVE),
            "bidirectional": Claim(
                sequence_parallel.bidirectional_sequence_parallel_mlp,
                communication=BOTH_WAYS,
                # sums of 16-bit floats have twice the bytes of what is gathered, and products are as long
                overlap="exposed<=1/6,directions=2",
            ),
        },
    ),
)
