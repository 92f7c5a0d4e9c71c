"""What holds of results that are right only up to a relation, as signs, noise and orders are: a predicate of them."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.layout import ReplicaMismatch, block_shape, unshard
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.contracts.contract import Blocks, Kept, Oracle, refilled
from shardproof.properties.contracts.described import Signature, described_dtypes, sizes_in
from shardproof.properties.contracts.roles import axes_of

Arrays = Sequence[np.ndarray]


def relation_oracle(
    holds: Callable[..., Any],
    signature: Signature,
    placed: Callable[[Case], Sequence[Placement]],
    kept: Callable[[Case], Sequence[Kept]],
) -> Oracle:
    """The oracle that a predicate is: it knows shapes and dtypes of results as they are described, and no derivatives.

    Devices that hold the same part of a result must hold the same bits: nothing says by how much they may differ.
    Called as `holds(results, *arguments, **options)` with whole arrays in their own dtypes, as trees, it returns
    whether the results are right, or raises AssertionError with what is wrong.
    """
    name = getattr(holds, "__name__", type(holds).__name__)

    def shapes_alone(case: Case, *_: Any) -> list[Blocks]:
        participants = {role: case.mesh.axis_size(axes) for role, axes in axes_of(case.roles).items()}
        sizes, found = sizes_in(signature, case), []
        for array, placement in zip(signature.results, placed(case), strict=True):
            block = block_shape(array.shape(sizes, participants), case.mesh, placement.spec)
            found.append(np.zeros((*case.mesh.sizes, *block)))
        return found

    def no_derivative(case: Case, *_: Any) -> list[Blocks]:
        raise NotImplementedError(f"{name} says nothing of derivatives")

    def result_dtypes(case: Case, given: Sequence[np.dtype]) -> list[np.dtype]:
        floats = [d for d, array in zip(given, signature.arrays, strict=True) if array.dtype == "float"]
        drawn = np.dtype(jax.numpy.result_type(*floats)) if floats else np.dtype("float32")
        return described_dtypes(signature, case, [drawn] * len(signature.results))

    def wrong(case: Case, blocks: Arrays, results: Arrays) -> str:
        wholes = [unshard(b, case.mesh, o.placement.spec) for b, o in zip(blocks, case.operands, strict=True)]
        found = []
        for leaf, (y, placement, only) in enumerate(zip(results, placed(case), kept(case), strict=True)):
            try:
                found.append(unshard(_of_one(y, case, only), case.mesh, placement.spec))
            except ReplicaMismatch as error:
                return f"{case.contract.call.leaf(case, leaf)}: {error}"
        try:
            held = holds(refilled(signature.result_tree, found), *refilled(signature.tree, wholes), **case.keywords)
        except AssertionError as error:
            line = traceback.extract_tb(error.__traceback__)[-1].line
            return f"{name} does not hold: {str(error).partition(chr(10))[0] or line}"
        if np.ndim(held) or np.asarray(held).dtype != bool:
            raise TypeError(f"{name} returns {held!r}: expected True or False")
        return "" if held else f"{name} does not hold of the results"

    return Oracle(shapes_alone, no_derivative, no_derivative, result_dtypes, holds=wrong)


def _of_one(blocks: Blocks, case: Case, only: Kept) -> Blocks:
    """Blocks as if all participants of some axis tuples held what one of them does."""
    for axes, number in only:
        first = dict(zip(case.mesh.axis_names, np.argwhere(axis_index(case.mesh, axes) == number)[0], strict=True))
        one = tuple(slice(at, at + 1) if name in axes else slice(None) for name, at in first.items())
        blocks = np.broadcast_to(blocks[one], blocks.shape)
    return blocks
