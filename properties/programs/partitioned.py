"""Products of global arrays that only their layouts divide, so that a compiler inserts all communication itself."""

import functools
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.programs.program import Argument, Global, Program, arguments

RESULT: dict[str, int | None] = {
    "all_gather_matmul_lhs_contracting": 1,
    "all_gather_matmul_lhs": 1,
    "all_gather_matmul_rhs": 0,
    "matmul_all_reduce": None,
    "transformer_block": 1,
}
"""The dimension in which each product's result is sharded, as `product_cases.SHARDED` has it of the operands."""


def product(*operands: jax.Array) -> jax.Array:
    """`lhs @ rhs`, or `relu(x @ w_in) @ w_out`, in the operands' dtype, as it is written for one device."""
    *first, last = operands
    return functools.reduce(lambda x, w: jax.nn.relu(x @ w), first) @ last


def partition(case: Case, *, backward: bool = False) -> Program:
    """The product under `jit`, with layouts of its operands and result, and nothing between; or its gradients alone.

    Sums are in the operands' dtype, in which a compiler may send them too. Raises ValueError for another contract.
    """
    if case.contract.name not in (*RESULT, "matmul_reduce_scatter"):
        raise ValueError(f"contract={case.contract.name!r}: expected one of {', '.join(RESULT)}, matmul_reduce_scatter")
    given = arguments(case)
    dimension = RESULT.get(case.contract.name, case.keywords.get("scatter_dimension"))
    shape = (*given[0].shape[:-1], given[-1].shape[-1])
    at = None if dimension is None else len(shape) - 2 + dimension
    spec: Entries = tuple(case.axes if i == at else () for i in range(len(shape)))
    result = Argument(shape, given[0].dtype, spec)

    def build(mesh: Any) -> Global:
        def forward(*arrays: jax.Array) -> jax.Array:
            return lax.with_sharding_constraint(product(*arrays), NamedSharding(mesh, result.partition_spec))

        def gradients(*arrays: jax.Array) -> list[jax.Array]:
            pull = jax.vjp(forward, *arrays[:-1])[1]
            layouts = [NamedSharding(mesh, a.partition_spec) for a in given]
            return [lax.with_sharding_constraint(g, s) for g, s in zip(pull(arrays[-1]), layouts, strict=True)]

        return gradients if backward else lambda *arrays: [forward(*arrays)]

    return Program(build, (*given, result) if backward else given)
