"""One fixed case of each contract: what pictures and tables of communication are made of."""

from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.requests import RequestError
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.product_cases import SHARDED, product_case

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
    """The example of a contract over an axis tuple; a permute reverses the participants.

    Raises:
        RequestError: for a contract that has none, or a name that is no axis of the mesh.
    """
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
