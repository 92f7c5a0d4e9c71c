"""Contracts of operations on whole arrays: any layer, loss or step, by its meaning without a mesh."""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from shardproof.oracles.collectives import axis_index
from shardproof.oracles.dtypes import is_float, wide
from shardproof.oracles.layout import ReplicaMismatch, block_shape, enter, leave, shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import COMPOSE, DERIVING, UNCHECKED
from shardproof.properties.cases.strategies import chains
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Blocks, Call, Contract, Kept, Option, Oracle, Scope, replace_leaves
from shardproof.properties.contracts.described import Signature, described_dtypes, indices, sizes_in, with_zeros
from shardproof.properties.contracts.drawing import complete
from shardproof.properties.contracts.roles import Conditions, axes_of, meshes_and_roles, sizes_of_dimensions

Arrays = Sequence[np.ndarray]

MOST_ELEMENTS = 2**14
"""The most elements of one global array on a large mesh: the reference takes it whole."""

MOST_ON_ALL = 2**16
"""The most elements of one array on all devices of a large mesh: if a dimension is sharded in one array and whole in
another, as that of experts in a router, all devices together hold the square, and intermediates are larger still."""

MOST_STATED = 2**24
"""The most elements of one global array: seventy copies in doubles, in 9 GiB, are needed to sample roundings."""

Dtypes = Callable[[Scope], st.SearchStrategy[str]]


class Reference(Protocol):
    """The meaning of an operation on whole arrays, each in a dtype that loses nothing that matters.

    `dtypes` are those of the arguments' leaves in the case at hand, `options` its keyword arguments, and `doubt` says
    how far off values and derivatives may be (see `Contract`).
    """

    doubt: tuple[float, float]

    def value(self, arrays: Arrays, dtypes: Sequence[np.dtype], options: Mapping[str, Any]) -> list[np.ndarray]:
        """The results."""

    def pushforward(
        self, arrays: Arrays, tangents: Mapping[int, np.ndarray], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Their tangents, given those of some of the leaves."""

    def pullback(
        self,
        arrays: Arrays,
        cotangents: Arrays,
        moving: Sequence[int],
        dtypes: Sequence[np.dtype],
        options: Mapping[str, Any],
    ) -> list[np.ndarray]:
        """The cotangents of some of the leaves, given those of the results."""

    def result_dtypes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype], options: Mapping[str, Any]
    ) -> list[np.dtype]:
        """The dtypes of the results, given shapes and dtypes of the leaves."""


@st.composite
def whole_cases(
    draw: st.DrawFn,
    contract: Contract,
    scope: Scope,
    signatures: Sequence[Signature],
    conditions: Conditions,
    dtypes: Dtypes | None,
    kinds: Sequence[str],
) -> Case:
    """Cases of global arrays. Shrinks to one device, the first signature, the smallest sizes, and the first dtype."""
    possible_ones = scope.layouts or signatures
    signature = possible_ones[0] if len(possible_ones) == 1 else draw(st.sampled_from(possible_ones), label="signature")
    excluded = UNCHECKED if conditions.differentiates or not conditions.check_vma else ()
    if not conditions.check_vma:  # inside of shard_map JAX knows no replicas then, of which it must add up gradients
        excluded = (*excluded, *DERIVING)
    if contract.oracle.holds is not None:  # a second call would depend on which results the first one chose
        excluded = (*excluded, COMPOSE)
    chain = draw(chains(scope.chains.without(excluded)), label="chain")
    mesh, roles = meshes_and_roles.within(draw, scope, chain, signature.roles, conditions)
    axes = axes_of(roles)
    participants = {role: mesh.axis_size(a) for role, a in axes.items()}
    sizes = sizes_of_dimensions.within(draw, signature, conditions, participants, scope)
    dtype = draw(sampled(conditions.dtypes) if dtypes is None else dtypes(scope), label="dtype")
    operands = []
    for array in signature.arrays:
        placement, shape = array.placement(axes), array.shape(sizes, participants)
        block = tuple(n // mesh.axis_size(entry) for n, entry in zip(shape, placement.spec, strict=True))
        many = math.prod(shape) > MOST_ELEMENTS or math.prod(block) * mesh.size > MOST_ON_ALL
        if (many and scope.large) or math.prod(shape) > MOST_STATED:
            reject()
        operands.append(Operand(block, dtype if array.dtype == "float" else array.dtype, placement))
    every = tuple(dict.fromkeys(axis for role in axes.values() for axis in role))
    params = tuple(
        (option, draw(st.sampled_from(values), label=option)) for option, values in sorted(conditions.options.items())
    )
    case = Case(contract, mesh, every, tuple(operands), params, chain=chain, roles=roles)
    return complete(draw, scope, case, kinds)


def reference_oracle(
    name: str,
    reference: Reference,
    signatures: Mapping[int, Signature],
    placed: Callable[[Case], Sequence[Placement]],
    kept: Callable[[Case], Sequence[Kept]],
    *,
    generic: bool,
    casts: tuple[np.dtype, ...],
) -> Oracle:
    """The oracle of a reference on whole arrays, given signatures by the number of leaves of their arguments.

    `placed` has the layouts of the results of a case, `kept` the participants that have each.
    """
    signature = next(iter(signatures.values()))

    def moving_in(case: Case) -> list[int]:
        return [i for i, array in enumerate(signatures[len(case.operands)].arrays) if array.gradient]

    def alone(case: Case, results: Arrays) -> list[np.ndarray]:
        return [at_participants(y, case.mesh, k) for y, k in zip(results, kept(case), strict=True)]

    def dtypes_of(case: Case) -> list[np.dtype]:
        return [operand.numpy_dtype for operand in case.operands]

    def wholes(case: Case, blocks: Arrays, places: Sequence[int]) -> list[np.ndarray]:
        specs = [case.operands[i].placement.spec for i in places]
        # floats in which nothing is lost, those that have no gradient as well
        full = [b.astype(wide(b.dtype)) if is_float(b.dtype) and b.dtype.char not in "dDgG" else b for b in blocks]
        return [unshard(first_replicas(b, case.mesh, s), case.mesh, s) for b, s in zip(full, specs, strict=True)]

    def to_blocks(case: Case, results: Arrays) -> list[np.ndarray]:
        expected = placed(case)
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
        cts = [leave(ct, case.mesh, p.spec) for ct, p in zip(of_some, placed(case), strict=True)]
        xs, moving = wholes(case, blocks, range(len(blocks))), moving_in(case)
        pulled = reference.pullback(xs, cts, moving, dtypes_of(case), case.keywords)
        return [enter(ct, case.mesh, case.operands[i].placement.spec) for i, ct in zip(moving, pulled, strict=True)]

    def result_dtypes(case: Case, given: Sequence[np.dtype]) -> Sequence[np.dtype]:
        shapes = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
        found = reference.result_dtypes(shapes, dtypes_of(case), case.keywords)
        return described_dtypes(signature, case, found)

    near: Any = getattr(reference, "nearby", None)  # a user's reference may have it

    def nearby(case: Case, blocks: Arrays) -> list[np.ndarray]:
        return to_blocks(case, near(wholes(case, blocks, range(len(blocks))), dtypes_of(case), case.keywords))

    doubt = reference.doubt
    return Oracle(value, pushforward, pullback, result_dtypes, generic, doubt, near and nearby, casts)


def relation_oracle(
    holds: Callable[..., Any],
    signature: Signature,
    placed: Callable[[Case], Sequence[Placement]],
    kept: Callable[[Case], Sequence[Kept]],
) -> Oracle:
    """The oracle of a predicate, with shapes and dtypes of results as they are described, and no derivatives.

    Devices that hold the same part of a result must hold the same bits: no bound is known on their difference.
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


def whole_contract(
    name: str,
    signature: Signature | Sequence[Signature],
    reference: Reference | None,
    *,
    holds: Callable[..., Any] | None = None,
    conditions: Conditions | None = None,
    dtypes: Dtypes | None = None,
    kinds: Sequence[str] = ("real", "exact", "real"),
    options: Mapping[str, Option] | None = None,
    generic: bool = True,
    casts: tuple[np.dtype, ...] = (),
    **more: Any,
) -> Contract:
    """The contract of an operation whose reference takes whole arrays, and whose blocks are parts of these.

    Arguments:
        signature: its arguments and results; or several signatures, of different numbers of leaves, of which a case
            has one. They have the same results and roles.
        reference: its meaning; None: results are right only up to a relation.
        holds: the predicate of it, in place of a reference (see `relation_oracle`).
        conditions: of the cases; None: none.
        dtypes: the dtypes of a case, in place of those of the conditions.
        kinds: the sequence of the data sets of a case, which may have a kind twice; the first two on large meshes.
        options: its keyword arguments; None: those of the conditions, which may have the values that are drawn.
        generic: whether nothing is known but that it has derivatives (see `Oracle`).
        casts: the floats that its own words round to on the way.
        more: of `Contract`.
    """
    chosen = conditions or Conditions()
    signatures = (signature,) if isinstance(signature, Signature) else tuple(signature)
    signature = signatures[0]
    of_leaves = {len(one.arrays): one for one in signatures}

    def placed(case: Case) -> tuple[Placement, ...]:
        axes = axes_of(case.roles)
        return tuple(array.placement(axes) for array in signature.results)

    def kept(case: Case) -> list[Kept]:
        axes = axes_of(case.roles)
        return [
            [(axes[role], number % case.mesh.axis_size(axes[role])) for role, number in array.only]
            for array in signature.results
        ]

    def adapt(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
        own, data = of_leaves[len(case.operands)], case.data[0]
        found = with_zeros(data, arrays)
        sizes = sizes_in(own, case)
        for i, array in enumerate(own.arrays):
            if array.below:  # in one data set of three they are equal
                below = int(array.below) if array.below.isdigit() else sizes[array.below]
                found[i] = indices(found[i], below + array.last, array.also, equal=data.seed % 3 == 2)
        return found

    if options is None:
        options = {option: Option(partial(_among, chosen.options[option])) for option in sorted(chosen.options)}
    auxiliary = {name for one in signatures for name, a in zip(one.names, one.arrays, strict=True) if not a.gradient}
    moving = any(array.gradient for array in signature.arrays)
    has_gradient = chosen.gradients and moving and any(array.floating for array in signature.results)
    if reference is None:
        assert holds is not None
        oracle = relation_oracle(holds, signature, placed, kept)
    else:
        oracle = reference_oracle(name, reference, of_leaves, placed, kept, generic=generic, casts=casts)
    contract = Contract(
        name=name,
        cases=lambda scope: whole_cases(contract, scope, signatures, chosen, dtypes, kinds),
        call=Call(
            signature.names,
            frozenset(auxiliary),
            options=options,
            roles=signature.roles,
            tree=signature.tree,
            deeper=tuple(one.tree for one in signatures[1:]),
            results=None if isinstance(signature.result_tree, str) else signature.result_tree,
            placed=placed,
            kept=kept if any(array.only for array in signature.results) else None,
        ),
        oracle=oracle,
        differentiable=(lambda case: True) if has_gradient else None,
        adapt=adapt,
        **more,
    )
    return contract


def _among(values: tuple[Any, ...], value: Any) -> bool:
    """True if a value is one of `values`; True is not 1."""
    return any(type(value) is type(one) and value == one for one in values)


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
