"""What an expectation may speak of: the participants of a case, and the bytes of what it is called with and gives."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import width
from shardproof.oracles.mesh import as_axes
from shardproof.properties.cases.case import Case, Operand
from shardproof.properties.communication.bounds import full_bytes
from shardproof.properties.contracts.numbers import float32_accumulator
from shardproof.properties.programs.expectation import Block, Stated, Terms, names_of

__all__ = ["OUT", "names_of", "sizes_of", "stated_of"]

OUT = "out"


def sizes_of(case: Case, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """What those names stand for in a case: participants, also of a role, and bytes of the full vector and of blocks.

    Of a pytree, `x` and `out` are all leaves together.

    Arguments:
        case: the case.
        wanted: the names that are wanted, where others need not be known; None: all.
    """
    contract = case.contract
    along = set(case.axes).union(*(operand.placement.axes for operand in case.operands))
    blocks = [_block(operand, bool(along - operand.placement.axes)) for operand in case.operands]
    names = contract.call.operands if case.tree else contract.call.names(case)
    own: dict[str, Any] = {
        "p": case.group_size,
        "n": full_bytes(case),
        **dict(zip(names, [sum(blocks)] if case.tree else blocks, strict=True)),
        **{role: case.mesh.axis_size(as_axes(axes)) for role, axes in case.roles},
    }
    if wanted is None or OUT in wanted:
        own[OUT] = _results(case)
    own["axes"] = Block(case.participants, tuple(case.mesh.shape[axis] for axis in case.axes))
    options = {name: one for name, one in case.keywords.items() if isinstance(one, int | float)}
    named = {name: size(case) for name, size in contract.sizes.items() if wanted is None or name in wanted}
    return {**own, **{name: one for name, one in options.items() if name not in own}, **named}


def stated_of(terms: Terms, case: Case) -> Stated:
    """What terms say of a case: of a tree, of each leaf by itself."""
    leaves = [dataclasses.replace(case, operands=(o,), tree=False) for o in case.operands] if case.tree else [case]
    first, *others = (terms.stated(sizes_of(leaf, terms.names())) for leaf in leaves)
    for other in others:
        first = first.beside(other)
    return first


def _block(operand: Operand, replicated: bool) -> Block:
    dtype = operand.numpy_dtype
    wide = width(float32_accumulator(dtype))
    return Block(_bytes(operand.block, dtype), operand.block, width(dtype), wide, replicated=replicated)


def _results(case: Case) -> int:
    """The block of the result, or the bytes of all of them."""
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    results = case.contract.oracle.value(case, zeros)
    shapes = [result.shape[len(case.mesh.sizes) :] for result in results]
    each = [
        Block(_bytes(shape, result.dtype), shape, width(result.dtype))
        for shape, result in zip(shapes, results, strict=True)
    ]
    return each[0] if len(each) == 1 else sum(each)


def _bytes(block: tuple[int, ...], dtype: np.dtype) -> int:
    return math.ceil(math.prod(block) * width(dtype) / 8)
