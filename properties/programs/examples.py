"""One fixed case of each contract, and products of given sides: for pictures, tables and tests of formulas."""

import math
from fractions import Fraction
from typing import Any

from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts import CONTRACTS

SHARDED: dict[str, tuple[int, ...]] = {
    "all_gather_matmul_lhs_contracting": (1, 1),
    "all_gather_matmul_lhs": (0, 1),
    "all_gather_matmul_rhs": (0, 0),
    "matmul_reduce_scatter": (1, 0),
    "matmul_all_reduce": (1, 0),
    "transformer_block": (1, 1, 0),
}
"""The dimension in which each operand is sharded over the axis tuple, such that none is replicated."""

SHAPES: dict[str, tuple[int, int, int]] = {
    "book": (1024, 2048, 8192),
    "large": (8192, 8192, 8192),
    "wide": (8192, 8192, 16384),
}
"""Rows, contracted size and columns of whole products that are measured. The first is the scaling book's (part 10)."""

REDUCED = ("matmul_reduce_scatter", "matmul_all_reduce")


def whole_sides(contract: str, shape: str | tuple[int, int, int]) -> tuple[int, int, int]:
    """Rows, contracted size and columns of a whole product, of a name of `SHAPES` or as they are given.

    Of what is reduced the last two are the other way round, so that it is the second product of a block.
    """
    rows, contracted, columns = SHAPES[shape] if isinstance(shape, str) else shape
    return (rows, columns, contracted) if contract in REDUCED else (rows, contracted, columns)


def product_case(
    contract: str,
    mesh: MeshCase,
    axis_name: str | tuple[str, ...],
    m_k_n: tuple[int, int, int],
    *,
    batch: tuple[int, ...] = (),
    dtype: str = "float32",
    dimension: int = 0,
) -> Case:
    """A case whose blocks of the operand that is gathered, or pieces of the sum that is scattered, have these sides.

    They are rows, contracted size and columns on one device, before anything is gathered. The left operand has `batch`
    dimensions in front; `dimension` is the one that is scattered, if any is.
    """
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    (m, k, n), p = m_k_n, mesh.axis_size(axes)
    params: tuple[tuple[str, Any], ...] = ()
    if contract == "matmul_reduce_scatter":
        params = (("scatter_dimension", dimension),)
        m, n = (m * p, n) if dimension == 0 else (m, n * p)
    shapes = {
        "all_gather_matmul_lhs_contracting": ((m, k), (k * p, n)),
        "all_gather_matmul_rhs": ((m, k * p), (k, n)),
        "transformer_block": ((m, k), (k * p, n), (n, k * p)),
    }.get(contract, ((m, k), (k, n)))
    operands = []
    for i, (shape, at) in enumerate(zip(shapes, SHARDED[contract], strict=True)):
        lead = batch if i == 0 else ()
        spec = (*[()] * len(lead), *(axes if j == at else () for j in range(2)))
        operands.append(Operand((*lead, *shape), dtype, Placement(spec)))
    return Case(CONTRACTS[contract], mesh, axis_name, tuple(operands), params)


def received(case: Case) -> Fraction:
    """The bytes that each device must get at least, in the dtype of the operands: those of a collective beside it.

    A device gathers all but its own of p blocks; of a sum that is scattered, all but one of p pieces pass it, and twice
    if all devices get the sum (Chan et al. 2007, section 3).
    """
    p, operands = case.participants, case.operands
    blocks = [Fraction(math.prod(o.block) * width(o.numpy_dtype), 8) for o in operands]
    rows, columns = math.prod(operands[0].block[:-1]), operands[-1].block[-1]
    whole = Fraction(rows * columns * width(operands[0].numpy_dtype), 8)
    if case.contract.name in ("all_gather_matmul_lhs", "all_gather_matmul_lhs_contracting"):
        return (p - 1) * blocks[0]
    if case.contract.name == "all_gather_matmul_rhs":
        return (p - 1) * blocks[1]
    scattered = Fraction(p - 1, p) * whole
    return {"matmul_all_reduce": 2 * scattered, "transformer_block": (p - 1) * blocks[0] + scattered}.get(
        case.contract.name, scattered
    )


ROWS, COLUMNS = 2, 4
"""A block's rows (for what is cut into parts: rows of each part) and columns; of float32."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "all_reduce": {"op": "sum"},
    "all_gather": {"axis": 0, "tiled": True},
    "all_gather_invariant": {"axis": 0, "tiled": True},
    "reduce_scatter": {"scatter_dimension": 0, "tiled": True},
    "all_to_all": {"split_axis": 0, "concat_axis": 0, "tiled": True},
    "permute": {},
    "ring_shift": {"offset": 1},
    "broadcast": {"root": 0},
}
EXAMPLES = (*PARAMETERS, *SHARDED)
"""The contracts that have one."""

WHOLE = ("all_reduce", "reduce_scatter", "all_to_all")
"""Whose operand is the full vector."""


def example(contract: str, mesh: MeshCase, axis_name: str | tuple[str, ...]) -> Case:
    """The example of a contract over an axis tuple; raises RequestError if it has none, or no such axis."""
    if contract not in EXAMPLES:
        raise RequestError(f"contract={contract!r}: expected one of {', '.join(EXAMPLES)}")
    if contract in SHARDED:
        return product_case(contract, mesh, axis_name, (ROWS, COLUMNS, COLUMNS))
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    p = mesh.axis_size(axes)
    params = dict(PARAMETERS[contract])
    if contract == "permute":
        params["perm"] = tuple((i, p - 1 - i) for i in range(p))
    block = (ROWS * p if contract in WHOLE else ROWS, COLUMNS)
    operand = Operand(block, "float32", Placement((axes, ())))
    return Case(CONTRACTS[contract], mesh, axis_name, (operand,), tuple(params.items()))
