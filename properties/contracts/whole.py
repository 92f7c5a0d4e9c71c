"""Oracles of cases, made of what an operation means on whole arrays, or on the blocks of all devices."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.layout import ReplicaMismatch, block_shape, enter, leave, shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.whole import Arrays, OfWholes
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.contracts.contract import Blocks, Kept, Oracle, replace_leaves
from shardproof.properties.contracts.described import (
    Signature,
    at_least,
    described_dtypes,
    indices,
    sizes_in,
    with_zeros,
)
from shardproof.properties.contracts.roles import axes_of


def reference_oracle(name: str, reference: OfWholes, signatures: Sequence[Signature]) -> Oracle:
    """The oracle of a reference on whole arrays, given signatures of different numbers of leaves."""
    signature = signatures[0]

    def moving_in(case: Case) -> list[int]:
        return [i for i, array in enumerate(of_leaves(signatures, case).arrays) if array.gradient]

    def alone(case: Case, results: Arrays) -> list[np.ndarray]:
        return [at_participants(y, case.mesh, k) for y, k in zip(results, kept_by(signature, case), strict=True)]

    def dtypes_of(case: Case) -> list[np.dtype]:
        return [operand.numpy_dtype for operand in case.operands]

    def wholes(case: Case, blocks: Arrays, places: Sequence[int]) -> list[np.ndarray]:
        specs = [case.operands[i].placement.spec for i in places]
        # floats in which nothing is lost, those that have no gradient as well
        full = [b.astype(wide(b.dtype)) if is_float(b.dtype) and b.dtype.char not in "dDgG" else b for b in blocks]
        return [unshard(first_replicas(b, case.mesh, s), case.mesh, s) for b, s in zip(full, specs, strict=True)]

    def to_blocks(case: Case, results: Arrays) -> list[np.ndarray]:
        expected = placed_by(signature, case)
        if len(results) != len(expected) or any(y.ndim != len(p.spec) for y, p in zip(results, expected, strict=True)):
            shapes = ", ".join(str(y.shape) for y in results)
            raise ValueError(
                f"the reference of {name} returns {shapes}: expected {', '.join(map(str, signature.results))}"
            )
        return alone(case, [shard(y, case.mesh, p.spec) for y, p in zip(results, expected, strict=True)])

    def value(case: Case, blocks: Arrays) -> list[np.ndarray]:
        every = range(len(blocks))
        return to_blocks(case, reference.value(wholes(case, blocks, every), dtypes_of(case), case.keywords))

    def pushforward(case: Case, blocks: Arrays, tangents: Arrays) -> list[np.ndarray]:
        moving = moving_in(case)
        along = dict(zip(moving, wholes(case, tangents, moving), strict=True))
        xs = wholes(case, blocks, range(len(blocks)))
        return to_blocks(case, reference.pushforward(xs, along, dtypes_of(case), case.keywords))

    def pullback(case: Case, blocks: Arrays, cotangents: Arrays) -> list[np.ndarray]:
        of_some = alone(case, cotangents)
        cts = [leave(ct, case.mesh, p.spec) for ct, p in zip(of_some, placed_by(signature, case), strict=True)]
        xs, moving = wholes(case, blocks, range(len(blocks))), moving_in(case)
        pulled = reference.pullback(xs, cts, moving, dtypes_of(case), case.keywords)
        return [enter(ct, case.mesh, case.operands[i].placement.spec) for i, ct in zip(moving, pulled, strict=True)]

    def result_dtypes(case: Case, given: Sequence[np.dtype]) -> Sequence[np.dtype]:
        shapes = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
        found = reference.result_dtypes(shapes, dtypes_of(case), case.keywords)
        return described_dtypes(signature, case, found)

    near = reference.nearby

    def nearby(case: Case, blocks: Arrays) -> list[np.ndarray]:
        assert near is not None
        return to_blocks(case, near(wholes(case, blocks, range(len(blocks))), dtypes_of(case), case.keywords))

    known = reference.generic, reference.differences, reference.doubt, nearby if near else None, reference.casts
    return Oracle(value, pushforward, pullback, result_dtypes, *known)


def relation_oracle(holds: Callable[..., Any], signature: Signature) -> Oracle:
    """The oracle of a predicate, with shapes and dtypes of results as they are described, and no derivatives.

    Devices that hold the same part of a result must hold the same bits: no bound is known on their difference.
    Called as `holds(results, *arguments, **options)` with whole arrays in their own dtypes, as trees, it returns
    whether the results are right, or raises AssertionError with what is wrong.
    """
    name = getattr(holds, "__name__", type(holds).__name__)

    def shapes_alone(case: Case, *_: Any) -> list[Blocks]:
        participants = {role: case.mesh.axis_size(axes) for role, axes in axes_of(case.roles).items()}
        sizes, found = sizes_in(signature, case), []
        for array, placement in zip(signature.results, placed_by(signature, case), strict=True):
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
        for leaf, (y, placement, only) in enumerate(
            zip(results, placed_by(signature, case), kept_by(signature, case), strict=True)
        ):
            try:
                found.append(unshard(_of_one(y, case, only), case.mesh, placement.spec))
            except ReplicaMismatch as error:
                return f"{case.contract.call.leaf(case, leaf)}: {error}"
        try:
            held = holds(
                replace_leaves(signature.result_tree, found), *replace_leaves(signature.tree, wholes), **case.keywords
            )
        except AssertionError as error:
            line = traceback.extract_tb(error.__traceback__)[-1].line
            return f"{name} does not hold: {str(error).partition(chr(10))[0] or line}"
        if np.ndim(held) or np.asarray(held).dtype != bool:
            raise TypeError(f"{name} returns {held!r}: expected True or False, as of `return np.allclose(y, x)`")
        return "" if held else f"{name} does not hold of the results"

    return Oracle(shapes_alone, no_derivative, no_derivative, result_dtypes, holds=wrong)


def _of_one(blocks: Blocks, case: Case, only: Kept) -> Blocks:
    """Blocks as if all participants of some axis tuples held what one of them does."""
    for axes, number in only:
        first = dict(zip(case.mesh.axis_names, np.argwhere(axis_index(case.mesh, axes) == number)[0], strict=True))
        one = tuple(slice(at, at + 1) if name in axes else slice(None) for name, at in first.items())
        blocks = np.broadcast_to(blocks[one], blocks.shape)
    return blocks


def placed_by(signature: Signature, case: Case) -> tuple[Placement, ...]:
    """The layouts of the results of a case."""
    axes = axes_of(case.roles)
    return tuple(array.placement(axes) for array in signature.results)


def kept_by(signature: Signature, case: Case) -> list[Kept]:
    """The participants that have each of the results."""
    axes = axes_of(case.roles)
    return [
        [(axes[role], number % case.mesh.axis_size(axes[role])) for role, number in array.only]
        for array in signature.results
    ]


def fitting(signatures: Sequence[Signature]) -> Callable[[Case, list[np.ndarray]], list[np.ndarray]]:
    """Makes arrays fit what is described of them; norms of some have no slope."""

    def fit(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
        own, data = of_leaves(signatures, case), case.data[0]
        found = with_zeros(data, arrays)
        sizes = sizes_in(own, case)
        for i, array in enumerate(own.arrays):
            if array.below:  # in one data set of three they are equal
                below = int(array.below) if array.below.isdigit() else sizes[array.below]
                found[i] = indices(found[i], below + array.last, array.also, equal=data.seed % 3 == 2)
            if array.least is not None:
                found[i] = at_least(found[i], array.least)
        return found

    return fit


def of_leaves(signatures: Sequence[Signature], case: Case) -> Signature:
    """The one of several signatures with as many leaves as a case has operands."""
    return next(one for one in signatures if len(one.arrays) == len(case.operands))


def at_participants(blocks: np.ndarray, mesh: MeshCase, kept: Kept) -> np.ndarray:
    """Blocks `[*mesh.sizes, *block]` of these participants of axis tuples, and zeros of all others."""
    mine = np.ones(mesh.sizes, bool)
    for axes, number in kept:
        mine &= axis_index(mesh, axes) == number
    chosen = mine.reshape(*mesh.sizes, *[1] * (blocks.ndim - len(mesh.sizes)))
    return np.where(chosen, blocks, np.zeros((), blocks.dtype))


def first_replicas(blocks: np.ndarray, mesh: MeshCase, spec: Sequence[Sequence[str]]) -> np.ndarray:
    """Blocks `[*mesh.sizes, *block]` as if all replicas held what the first one does."""
    varying = {name for entry in spec for name in entry}
    first = blocks[tuple(slice(None) if name in varying else slice(1) for name in mesh.axis_names)]
    return np.broadcast_to(first, blocks.shape)
