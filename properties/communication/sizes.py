"""What an expectation may speak of: the participants of a case, and the bytes of what it is called with and gives."""

import math

import numpy as np

from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.communication.bounds import full_bytes
from shardproof.properties.contracts import CONTRACTS

OUT = "out"


def names_of(contract: str) -> tuple[str, ...]:
    """The names that an expectation of a contract knows: p, n, its operands, its roles, and `out`."""
    return ("p", "n", *CONTRACTS[contract].operands, *CONTRACTS[contract].roles, OUT)


def sizes_of(case: Case) -> dict[str, int]:
    """What those names stand for in a case: participants, also of a role, and bytes of the full vector and of blocks.

    Of a pytree, `x` and `out` are all leaves together.
    """
    names = CONTRACTS[case.contract].names(case)
    blocks = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    each = [_bytes(operand.block, operand.numpy_dtype) for operand in case.operands]
    results = CONTRACTS[case.contract].oracle(case, blocks)
    return {
        "p": case.group_size,
        "n": full_bytes(case),
        **({names[0]: sum(each)} if case.tree else dict(zip(names, each, strict=True))),
        **{role: case.mesh.axis_size(as_axes(axes)) for role, axes in case.roles},
        OUT: sum(_bytes(result.shape[len(case.mesh.sizes) :], result.dtype) for result in results),
    }


def _bytes(block: tuple[int, ...], dtype: np.dtype) -> int:
    return math.ceil(math.prod(block) * width(dtype) / 8)
