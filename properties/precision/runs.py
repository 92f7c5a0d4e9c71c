"""What holds of an operation that is no sum of products, such as a norm: two things, and neither takes a guess.

- Its mathematics: run in double precision, the implementation equals the contract's reference, but for roundings of
  doubles.
- Its roundings: what it computes in its own dtypes is as near to that as it must be, if it computes in the contract's
  accumulator and rounds its results once. What a derivative casts and adds up in the operands' dtype is written by JAX.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from shardproof.oracles.dtypes import half_spacing, is_float, largest_finite, real_of, unit_roundoff
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Contract
from shardproof.properties.engines import Sets, SimulateEngine
from shardproof.properties.engines.running import all_blocks, placed_blocks, ready
from shardproof.properties.engines.simulate import InterpreterLimit
from shardproof.properties.engines.simulated import Interpreted
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.doubles import in_doubles
from shardproof.properties.precision.expected import Reference, references
from shardproof.properties.precision.numbers import magnitude
from shardproof.properties.precision.wide import DOUBLES, OWN, WAYS, Rounding, Wide
from shardproof.properties.precision.wide.run import run_prepared, run_prepared_together
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Of

INTERPRETER = SimulateEngine()

ACCUMULATED_BY_JAX = frozenset(
    {"convert_element_type", "reduce_precision", "add_any", "reduce_sum", "scatter-add", "dot_general"}
    | {"psum", "psum_invariant", "unreduced_psum", "reduce_scatter", "unreduced_reduce_scatter"}
)
"""What JAX's derivatives do in the operands' own dtype: the cotangents of several uses, and of replicas, add up."""

ANY_FINITE = float(np.finfo(np.float64).max) / 4
"""How far off a result may be of which nothing is known, but that it is finite."""

VACUOUS = 0.125
"""What a number may be off by, relative to the largest one of an array, before it tells too little."""

MORE = 4.0
"""By how much more a result may be off than constants move it that are off by as much, but each its own way."""

LARGE = 1e30
"""What a dtype must reach so that small numbers do not overflow on their way."""

SMALLEST = float(np.finfo(np.float64).tiny) * 2.0**64
"""What the oracle may be off by itself: what is below the range of normal doubles, by factors of 2^64 at most."""

Both = tuple[Wide, Wide, np.ndarray]
"""A result in double precision: with what the program's own may be off by, and what the doubles may be; and where it
must be finite if the doubles are."""


def both(kind: str, implementation: Implementation, case: Case, sets: Sets) -> Iterator[list[Both]]:
    """The results of a program, made ready as `kind`, in double precision; global arrays, as the program returns them.

    One list for each data set.

    Raises:
        InterpreterLimit: if the interpreter cannot run it so.
        NotImplementedError: if the implementation is not differentiable in a mode that `kind` asks for.
    """
    decided = CONTRACTS[case.contract].decided
    rounding = dataclasses.replace(permitted(implementation, case, derivative=kind != "value"), decided=decided)
    doubles = dataclasses.replace(DOUBLES, decided=decided)
    added_up = dataclasses.replace(doubles, own=rounding.own)
    asked = CONTRACTS[case.contract].finite and "narrow_accumulation" not in implementation.features
    run = _Runs(kind, implementation, case, sets)
    for i, arrays in enumerate(sets):
        try:
            own, double = run.of(i, rounding), run.in_doubles(i, doubles)
            finite = [np.full(wide.error.shape, asked) for wide in own]
            if rounding.own and any(np.isinf(wide.error).any() for wide in own):
                finite = [
                    np.asarray(one & np.isfinite(wide.error))
                    for one, wide in zip(finite, run.of(i, added_up), strict=True)
                ]
        except InterpreterLimit as limit:
            own, double = map(list, zip(*in_doubles(kind, implementation, case, arrays, limit), strict=True))
            finite = [np.zeros(wide.error.shape, bool) for wide in own]
        yield list(zip(own, double, finite, strict=True))


class _Runs:
    """The wide runs of a program on several data sets, on all of them at once if the interpreter can.

    Arguments:
        kind: as what it is made ready.
        implementation: the implementation.
        case: the case.
        sets: the data sets.
    """

    def __init__(self, kind: str, implementation: Implementation, case: Case, sets: Sets) -> None:
        self.kind, self.implementation, self.case, self.sets = kind, implementation, case, sets
        self.known: dict[Rounding, list[list[Wide]] | None] = {}

    def of(self, index: int, rounding: Rounding) -> list[Wide]:
        """The run on one data set.

        Raises:
            InterpreterLimit: if the interpreter cannot run it so.
        """
        prepared = ready(self.kind, self.implementation, self.case, INTERPRETER).prepared
        assert isinstance(prepared, Interpreted)
        if rounding not in self.known:
            self.known[rounding] = run_prepared_together(prepared, self.sets, rounding)
        together = self.known[rounding]
        return run_prepared(prepared, self.sets[index], rounding) if together is None else together[index]

    def in_doubles(self, index: int, doubles: Rounding) -> list[Wide]:
        """That with what its constants may be off by, which counts apart wherever nothing else would be known.

        Each counts as if it was off by itself, so that nothing is known of a difference of a large one and itself. Then
        all are moved, equal ones together.

        Raises:
            InterpreterLimit: if the interpreter cannot run it so.
        """
        every = self.of(index, doubles)
        if all(_tells(wide).all() for wide in every):
            return every
        certain = dataclasses.replace(doubles, literals=False)
        alone = self.of(index, certain)
        ways = [self.of(index, dataclasses.replace(certain, moved=way)) for way in WAYS]
        return [
            _moved(wide, one, [way[leaf].value for way in ways])
            for leaf, (wide, one) in enumerate(zip(every, alone, strict=True))
        ]


def _tells(wide: Wide) -> np.ndarray:
    """Where something is known: a number is off by less than a part of the largest one."""
    return np.asarray(wide.error <= VACUOUS * float(magnitude(np.asarray(wide.value)).max(initial=0)))


def _moved(wide: Wide, alone: Wide, ways: Sequence[np.ndarray]) -> Wide:
    """What constants are off by where that tells nothing, given the results without it and with constants moved."""
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.max([np.abs(value - alone.value) for value in ways], axis=0) if is_float(wide.value.dtype) else np.inf
        error = np.where(np.isnan(off), np.inf, alone.error + MORE * off)
    return Wide(wide.value, np.where(_tells(wide), wide.error, np.minimum(wide.error, error)))


def permitted(implementation: Implementation, case: Case, *, derivative: bool) -> Rounding:
    """By which dtype the operations of an implementation are charged."""
    if "narrow_accumulation" in implementation.features:
        return OWN
    contract, whole = CONTRACTS[case.contract], implementation.whole
    given, moving = [operand.numpy_dtype for operand in case.operands], contract.moving(case)
    met = [dtype for dtype in (*given, *contract.result_dtypes(case, given), *contract.casts) if is_float(dtype)]
    if not moving:  # of integers alone nothing is rounded to 16 bits but what the program rounds
        return Rounding("" if any(dtype.itemsize < 4 for dtype in met) else "float32", split=whole)
    floats = given if contract.generic else [given[moving[0]]]
    held = max(filter(is_float, floats), key=unit_roundoff)
    # of a user's own, the narrowest; of global arrays a compiler may send parts of sums in their dtype
    held = max([held if whole else contract.accumulator(held), *contract.casts], key=unit_roundoff)
    between_calls = frozenset({"optimization_barrier"} if case.calls > 1 else ())
    if not derivative:
        return Rounding(held.name, between_calls, split=whole)
    # JAX adds up in dtypes of the case: what is narrower was written
    floor = max(map(real_of, met), key=unit_roundoff)
    return Rounding(held.name, between_calls | ACCUMULATED_BY_JAX, floor.name, split=whole)


def value_references(implementation: Implementation, case: Case, sets: Sets) -> Iterator[list[Reference]]:
    """What the oracle says of the results on each data set, as blocks, and how far off an implementation's may be.

    Raises:
        InterpreterLimit: if that takes a wide run, and the interpreter cannot.
    """
    contract = CONTRACTS[case.contract]
    runs = both("value", implementation, case, sets) if contract.nonlinear else repeat(())
    for arrays, results in zip(sets, runs, strict=False):
        right = references(case, arrays, implementation.features, split=implementation.whole)
        yield (
            [
                held_to(contract, r, *_map(run, partial(all_blocks, case)), of_derivative=False)
                for r, run in zip(right, results, strict=True)
            ]
            if contract.nonlinear
            else right
        )


def tangents_held(
    case: Case, right: Sequence[Reference], runs: Sequence[Both], placements: Sequence[Placement]
) -> list[Reference]:
    """The references of tangents, as blocks, held to those of wide runs, which are global arrays."""
    return [
        held_to(
            CONTRACTS[case.contract],
            r,
            *_map(run, partial(placed_blocks, case, placement=at)),
            of_derivative=True,
        )
        for (r, run), at in zip(zip(right, runs, strict=True), placements, strict=True)
    ]


def gradients_held(case: Case, right: Sequence[Reference], runs: Sequence[Both]) -> list[Reference]:
    """The references of gradients, as global arrays, held to those of wide runs."""
    return [held_to(CONTRACTS[case.contract], r, *run, of_derivative=True) for r, run in zip(right, runs, strict=True)]


def held_to(
    contract: Contract, right: Reference, own: Wide, double: Wide, finite: np.ndarray, *, of_derivative: bool
) -> Reference:
    """A reference with the bound that an implementation's wide run derives, which has the reference's shape.

    A result that is too near to the end of its dtype, or past it, may be infinite, or NaN if something on its way may
    overflow. One that is not, and that a run in doubles knows, must be finite even where something on its way may
    overflow in the program's dtypes, so that nothing else is known: unless that is what JAX adds up in the operands'
    dtype. So must one of fewer bits than a double's that the oracle knows, if the doubles themselves overflow. Of what
    the oracle itself does not know, nothing is asked.
    """
    if own.value.shape != right.exact.shape:  # the comparison of shapes says so
        return right
    exact, doubt = right.exact, contract.doubt[of_derivative]
    leeway = double.error + DOUBLES.leeway * np.finfo(np.float64).eps * magnitude(double.value)
    leeway = leeway + doubt * max(1.0, float(magnitude(exact).max(initial=0))) + SMALLEST
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
    overflows = (
        np.isfinite(exact) & ~np.isfinite(double.value) & (not of_derivative and real_of(right.dtype).itemsize < 8)
    )
    within = size + half_spacing(size, right.dtype) <= largest_finite(right.dtype)
    bound = np.where(finite & within & (np.isinf(reach) & np.isfinite(leeway) | overflows), ANY_FINITE, bound)
    return Reference(exact, right.dtype, bound, double.value, leeway)


def is_a_number(right: Reference) -> Reference:
    """A reference of which only that is asked, where it is one itself, and far from the end of its dtype.

    At a kink there may be several derivatives, and programs add up theirs from different ones; but none is NaN. Where
    nothing is known of one that is a number in doubles, as of a root of what is too small for the dtype, none is asked.
    """
    finite, largest = np.isfinite(right.exact), largest_finite(right.dtype)
    if right.bound is not None and right.double is not None:
        finite &= ~(np.isinf(right.bound) & np.isfinite(right.double))
    far = largest > LARGE and magnitude(right.exact).max(initial=0, where=finite) < largest**0.5
    return Reference(np.where(finite, right.exact, 0), right.dtype, np.where(finite & far, ANY_FINITE, -np.inf))


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
        arrays = [case.blocks(operand, array) for array in arrays]
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


def _map(run: Both, blocks: Callable[[np.ndarray], np.ndarray]) -> Both:
    own, double, finite = run
    return Wide(blocks(own.value), blocks(own.error)), Wide(blocks(double.value), blocks(double.error)), blocks(finite)
