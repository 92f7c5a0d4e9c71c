"""What holds of an operation that is no sum of products, such as a norm: two things, and neither takes a guess.

- Its mathematics: run in double precision, the implementation equals the contract's reference, but for roundings of
  doubles.
- Its roundings: what it computes in its own dtypes is as near to that as it must be, if it computes in the contract's
  accumulator and rounds its results once. What a derivative casts and adds up in the operands' dtype is written by JAX.
"""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import half_spacing, is_float, largest_finite
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Contract
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.simulate import DOUBLES, OWN, Rounding, Wide
from shardproof.properties.engines.simulated import Interpreted
from shardproof.properties.laws.comparison import compare
from shardproof.properties.laws.numbers import magnitude
from shardproof.properties.laws.references import Reference, references
from shardproof.properties.laws.running import all_blocks, is_batched, placed_blocks, ready
from shardproof.properties.laws.violation import Of
from shardproof.properties.programs.implementations import Implementation

INTERPRETER = SimulateEngine()

ACCUMULATED_BY_JAX = frozenset(
    {"convert_element_type", "reduce_precision", "add_any", "reduce_sum", "scatter-add", "dot_general"}
    | {"psum", "psum_invariant", "unreduced_psum", "reduce_scatter", "unreduced_reduce_scatter"}
)
"""What JAX's derivatives do in the operands' own dtype: the cotangents of several uses, and of replicas, add up."""

ANY_FINITE = float(np.finfo(np.float64).max) / 4
"""How far off a result may be of which nothing is known, but that it is finite."""

Both = tuple[Wide, Wide]
"""A result in double precision: with what the program's own may be off by, and what the doubles may be."""


def both(kind: str, implementation: Implementation, case: Case, arrays: Sequence[np.ndarray]) -> list[Both]:
    """The results of a program, made ready as `kind`, in double precision; global arrays, as the program returns them.

    Raises:
        InterpreterLimit: if the interpreter cannot run it so.
        NotImplementedError: if the implementation is not differentiable in a mode that `kind` asks for.
    """
    prepared = ready(kind, implementation, case, INTERPRETER).prepared
    assert isinstance(prepared, Interpreted)
    rounding = permitted(implementation, case, derivative=kind != "value")
    return list(zip(prepared.wide(arrays, rounding), prepared.wide(arrays, DOUBLES), strict=True))


def permitted(implementation: Implementation, case: Case, *, derivative: bool) -> Rounding:
    """By which dtype the operations of an implementation are charged."""
    if "narrow_accumulation" in implementation.features:
        return OWN
    if implementation.whole:
        return Rounding(split=True)
    contract = CONTRACTS[case.contract]
    moving = contract.moving(case)
    if not moving:
        return OWN
    held = contract.accumulator(case.operands[moving[0]].numpy_dtype)
    return Rounding(held.name, ACCUMULATED_BY_JAX if derivative else frozenset())


def value_references(implementation: Implementation, case: Case, arrays: Sequence[np.ndarray]) -> list[Reference]:
    """What the oracle says of the results, as blocks, and how far off an implementation's may be.

    Raises:
        InterpreterLimit: if that takes a wide run, and the interpreter cannot.
    """
    right = references(case, arrays, implementation.features)
    if not CONTRACTS[case.contract].nonlinear:
        return right
    runs = both("value", implementation, case, arrays)
    contract = CONTRACTS[case.contract]
    return [
        held_to(contract, r, *(_map(wide, lambda x: all_blocks(case, x)) for wide in run), of_derivative=False)
        for r, run in _pairs(right, runs)
    ]


def tangents_held(
    case: Case, right: Sequence[Reference], runs: Sequence[Both], placements: Sequence[Placement]
) -> list[Reference]:
    """The references of tangents, as blocks, held to those of wide runs, which are global arrays."""
    return [
        held_to(
            CONTRACTS[case.contract],
            r,
            *(_map(wide, lambda x, at=at: placed_blocks(case, x, at)) for wide in run),
            of_derivative=True,
        )
        for (r, run), at in zip(_pairs(right, runs), placements, strict=True)
    ]


def gradients_held(case: Case, right: Sequence[Reference], runs: Sequence[Both]) -> list[Reference]:
    """The references of gradients, as global arrays, held to those of wide runs."""
    return [held_to(CONTRACTS[case.contract], r, *run, of_derivative=True) for r, run in _pairs(right, runs)]


def held_to(contract: Contract, right: Reference, own: Wide, double: Wide, *, of_derivative: bool) -> Reference:
    """A reference with the bound that an implementation's wide run derives, which has the reference's shape.

    A result that is too near to the end of its dtype may be infinite. One that is not, and that a run in doubles knows,
    must be finite even where something on its way may overflow in the program's dtypes, so that nothing else is known.
    Of what the oracle itself does not know, nothing is asked.
    """
    if own.value.shape != right.exact.shape:  # the comparison of shapes says so
        return right
    exact, doubt = right.exact, contract.doubt[of_derivative]
    leeway = double.error + DOUBLES.leeway * np.finfo(np.float64).eps * magnitude(double.value)
    leeway = leeway + doubt * max(1.0, float(magnitude(exact).max(initial=0)))
    if doubt and of_derivative:
        unknown = np.isnan(exact)
        exact, leeway = np.where(unknown, double.value, exact), np.where(unknown, np.inf, leeway)
    if not is_float(right.dtype):  # it is what it is, unless that hangs on roundings
        unsure = (own.error > 0) | (double.error > 0)
        off = np.where(unsure, np.inf, 0.0)
        return Reference(exact, right.dtype, off, double.value, off)
    reach = own.error + leeway
    size = magnitude(exact).astype(np.float64)
    bound = reach + half_spacing(np.asarray(size + reach), right.dtype)
    bound = np.where(size + bound <= largest_finite(right.dtype), bound, -bound)
    if contract.finite:
        bound = np.where(np.isinf(reach) & np.isfinite(leeway), ANY_FINITE, bound)
    return Reference(exact, right.dtype, bound, double.value, leeway)


def check_mathematics(
    case: Case, data: Data, of: Of, what: str, right: Reference, *, leaf: int = 0, operand: int | None = None
) -> None:
    """In double precision the results equal the reference's, where they are known; nothing, without a wide run.

    Arguments:
        case: the case.
        data: the data set.
        of: what the blocks are.
        what: the same in words.
        right: the reference; of an operand's gradient a global array, and blocks otherwise.
        leaf: which of the results, or operands, it is.
        operand: the operand whose gradient it is.

    Raises:
        Broken: if they do not.
    """
    if right.double is None or right.leeway is None:
        return
    arrays = [right.exact.astype(right.double.dtype), right.double, -right.leeway, right.exact]
    if operand is not None:
        arrays = [case.blocks(operand, array, batched=is_batched(case)) for array in arrays]
    expected, actual, bound, exact = arrays
    bound = np.where(np.isinf(bound), bound, -bound)
    compare(
        case,
        data,
        of,
        f"{what} in double precision",
        expected=expected,
        actual=actual,
        bound=bound,
        exact=exact,
        leaf=leaf,
    )


def _pairs(right: Sequence[Reference], runs: Sequence[Both]) -> list[tuple[Reference, Both]]:
    return list(zip(right, runs, strict=True))


def _map(wide: Wide, blocks: object) -> Wide:
    assert callable(blocks)
    return Wide(blocks(wide.value), blocks(wide.error))
