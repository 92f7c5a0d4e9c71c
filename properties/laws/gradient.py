"""The law of gradients: forward mode is the oracle's linear map, reverse mode its transpose."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np

from shardproof.oracles.dtypes import finest, is_float, wide
from shardproof.oracles.layout import enter, leave
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts.numbers import degree_of, operands, terms_of
from shardproof.properties.engines import Engine
from shardproof.properties.engines.engine import MODES, Ready, in_some_mode, placed_blocks, ready, shared
from shardproof.properties.laws.law import LARGE, Law, Verdict, held_on, whole_case
from shardproof.properties.precision.comparison import Reference, compare, magnitude
from shardproof.properties.precision.judge import (
    check_mathematics,
    derivative_references,
    is_a_number,
    slightly_off,
)
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import with_derivative
from shardproof.properties.programs.transformations import (
    pulled_over_batch,
    pushed_over_batch,
    reference_blocks,
    widened,
    widened_operands,
)
from shardproof.properties.programs.violation import Broken

TANGENT_SEED = 104729
"""The seed of the tangents less that of the operands."""

SOME = 2
"""The most data sets that derivatives are compared at: each is run in both modes."""


def check_gradient(implementation: Implementation, case: Case, engine: Engine) -> Verdict:
    """J d and J^T c equal the oracle's, and where sums are exact <J d, c> = <d, J^T c>.

    The inner products are those of the global arrays: what is invariant along an axis, or replicated, counts once.
    """
    chosen = [data for data in case.data if derives_at(case, data)]

    def check(kind: str) -> tuple[list[bool], int]:
        return _check(kind, implementation, case, ready(kind, implementation, case, engine), chosen)

    decided, undecided = in_some_mode(check)
    return held_on(decided, case, undecided=undecided)


def differentiable(case: Case) -> bool:
    """True if the program of a case has derivatives: by its operands' dtypes, its contract, and its chain."""
    contract = case.contract
    moving = contract.call.moving(case) if contract.has_derivative(case) else ()
    floating = bool(moving) and all(is_float(case.operands[i].numpy_dtype) for i in moving)
    return floating and all(link.differentiable for link in case.links)


def at_some_data(case: Case) -> Case | None:
    """A differentiable case on some of the data at which it has derivatives; on one data set if it is slow.

    A reference that JAX differentiates has whole numbers too, at which derivatives need only be numbers.
    """
    whole = whole_case(case)
    if whole is None or not differentiable(whole):
        return None
    possible = [data for data in whole.data if derives_at(whole, data)]
    start = whole.data[0].seed % max(len(possible), 1)  # others in every case
    chosen = [*possible[start:], *possible[:start]]
    slow = whole.mesh.size > LARGE or not all(link.compiled for link in whole.links)
    count, oracle = 1 if slow else SOME, whole.contract.oracle
    if oracle.generic:
        real, exact = ([data for data in chosen if (data.kind == "exact") is kind] for kind in (False, True))
        more = [] if slow or oracle.differences else exact[:1]
        chosen = [*real[:count], *more] if real else exact[:count]
    else:
        chosen = chosen[:count]
    return dataclasses.replace(whole, data=tuple(chosen)) if chosen else None


def derives_at(case: Case, data: Data) -> bool:
    """True if derivatives at such data are defined.

    Products of infinity and zero have none, unlike what is only moved or added up; nor has a root at zero, nor, by the
    rule for quotients, what is not finite.
    """
    contract = case.contract
    if contract.linear or data.kind in ("real", "exact"):
        return True
    if contract.oracle.generic or data.kind == "zeros":
        return False
    if data.kind not in ("special", "nan", "large"):
        return True
    if len(contract.call.moving(case)) > 1:
        return False
    blocks = [case.blocks(i, array) for i, array in enumerate(operands(case, data))]
    return all(np.isfinite(exact).all() for exact in reference_blocks(case, blocks))


def kind_along(case: Case, data: Data) -> str:
    """The kind of data of tangents and cotangents: that of the operands, or finite where these are multiplied."""
    return data.kind if case.contract.linear or data.kind not in ("special", "nan", "large") else "exact"


def cotangents(case: Case, program: Ready, data: Data) -> list[np.ndarray]:
    """One global cotangent per result leaf, of the same kind of data as the operands."""
    return [
        generate(
            Data(kind_along(case, data), data.seed + 7919 * (i + 1)),
            (*(case.mesh.shape[n] for n in placement.stacked), *shape),
            np.dtype(with_derivative(dtype)),
            terms=terms_of(case),
            degree=degree_of(case),
        )
        for i, (placement, shape, dtype) in enumerate(
            zip(program.placements, program.seen.shapes, program.seen.dtypes, strict=True)
        )
    ]


def exact_gradients(
    case: Case,
    placements: Sequence[Placement],
    primal: Sequence[np.ndarray],
    cts: Sequence[np.ndarray],
    widen: Callable[[np.ndarray], np.ndarray] = widened,
) -> list[np.ndarray]:
    """J^T c, not rounded: into the results' blocks, through the pullback, out of the operands'."""
    mesh, moving = case.mesh, case.contract.call.moving(case)
    blocks = []
    for ct, placement in zip(cts, placements, strict=True):
        held = enter(widen(ct), mesh, placement.partition())
        blocks.append(held.reshape(*mesh.sizes, *held.shape[len(mesh.sizes) + len(placement.stacked) :]))
    held_primal = [case.blocks(i, array) for i, array in enumerate(widened_operands(case, primal))]
    pulled = pulled_over_batch(case, held_primal, blocks)
    return [
        leave(
            t.reshape(*mesh.sizes, *(1 for _ in case.operands[i].placement.stacked), *t.shape[len(mesh.sizes) :]),
            mesh,
            case.partition(i),
        )
        for t, i in zip(pulled, moving, strict=True)
    ]


def exact_tangents(
    case: Case,
    primal: Sequence[np.ndarray],
    tangents: Sequence[np.ndarray],
    widen: Callable[[np.ndarray], np.ndarray] = widened,
) -> list[np.ndarray]:
    """J d, not rounded."""
    blocks = [case.blocks(i, array) for i, array in enumerate(widened_operands(case, primal))]
    along = [case.blocks(i, widen(d)) for i, d in zip(case.contract.call.moving(case), tangents, strict=True)]
    return pushed_over_batch(case, blocks, along)


Arrays = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]
"""Operands, tangents and cotangents, as global arrays."""


def oracle_derivatives(
    kind: str, implementation: Implementation, case: Case, placements: Sequence[Placement], given: Sequence[Arrays]
) -> Iterator[tuple[list[Reference], list[Reference]]]:
    """The oracle's tangents, as blocks, and gradients, as global arrays, for each of the `given` data sets.

    They are empty in a mode that `kind` lacks. Raises NotDifferentiable if the reference is a program without such a
    mode, and InterpreterLimit if their errors are not known because the interpreter cannot run the program in doubles.
    """
    contract, (forward_mode, reverse_mode) = case.contract, MODES[kind]

    def both(arrays: Arrays, widen: Callable[[np.ndarray], np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        primal, tangents, cts = arrays
        pushed = exact_tangents(case, primal, tangents, widen) if forward_mode else []
        return pushed, exact_gradients(case, placements, primal, cts, widen) if reverse_mode else []

    right = [both(arrays, widened) for arrays in given]
    if not right:
        return
    primal = [array.dtype for array in given[0][0]]
    results = contract.oracle.result_dtypes(case, primal)[: len(placements)]
    dtypes = [with_derivative(dtype) for dtype in results], [primal[i] for i in contract.call.moving(case)]
    sets = [[*primal, *tangents, *cts] for primal, tangents, cts in given]

    @cache
    def nearby(index: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return both(given[index], slightly_off)

    yield from derivative_references(kind, implementation, case, sets, right, dtypes, placements, nearby)


def shared_derivatives(
    kind: str,
    implementation: Implementation,
    case: Case,
    placements: Sequence[Placement],
    chosen: Sequence[Data],
    given: Sequence[Arrays],
) -> Iterator[tuple[list[Reference], list[Reference]]]:
    """The oracle's tangents and gradients on the `chosen` data of a case, made once for all laws."""
    made = oracle_derivatives(kind, implementation, case, placements, given)
    return shared(kind, dataclasses.replace(case, data=tuple(chosen)), made)


def _check(
    kind: str, implementation: Implementation, case: Case, program: Ready, chosen: Sequence[Data]
) -> tuple[list[bool], int]:
    """Checks derivatives: of each data set, whether it distinguishes right from wrong; and how many numbers do not."""
    (forward_mode, reverse_mode), moving = MODES[kind], case.contract.call.moving(case)
    given = [(operands(case, data), tangents_of(case, data), cotangents(case, program, data)) for data in chosen]
    runs = map(program.prepared, [[*primal, *tangents, *cts] for primal, tangents, cts in given])
    rights = shared_derivatives(kind, implementation, case, program.placements, chosen, given)
    decided, undecided = [], 0
    for data, (_, tangents, cts), outputs, (pushed, pulled) in zip(chosen, given, runs, rights, strict=True):
        few = at_kinks(case, data)
        if few:
            pushed, pulled = list(map(is_a_number, pushed)), list(map(is_a_number, pulled))
        got_tangents = outputs[len(cts) : 2 * len(cts)] if forward_mode else []
        got_gradients = outputs[-len(moving) :] if reverse_mode else []
        for i, (tangent, placement) in enumerate(zip(got_tangents, program.placements, strict=False)):
            what, blocks = "tangent (forward mode)", placed_blocks(case, tangent, placement)
            compare(case, data, "tangent", what, actual=blocks, right=pushed[i], leaf=i)
            check_mathematics(case, data, "tangent", what, pushed[i], leaf=i)
        for i, gradient, right in zip(moving, got_gradients, pulled, strict=False):
            if gradient.shape != right.exact.shape:
                wrong = f"gradient has shape {gradient.shape}: expected {right.exact.shape}"
                raise Broken("shape", wrong, of="gradient", data=data)
            what, view = gradient_name(case, i), partial(case.blocks, i)
            compare(case, data, "gradient", what, actual=view(gradient), right=right, view=view, leaf=i)
            check_mathematics(case, data, "gradient", what, right, view=view, leaf=i)
        pairs = ((got_tangents, cts), (tangents, got_gradients))
        exact = all(right.is_exact and right.found is None for right in (*pushed, *pulled))
        exact &= not few or not any(map(np.iscomplexobj, (*cts, *tangents)))  # a conjugate is not linear in them
        if forward_mode and reverse_mode and exact and all(_exact_inner(*pair) for pair in pairs):
            left, other = (_inner(*pair) for pair in pairs)
            if left != other:
                wrong = f"<J d, c> = {left} differs from <d, J^T c> = {other}"
                raise Broken("adjoint", wrong, of="gradient", data=data)
        checked = [*pushed[: len(got_tangents)], *pulled[: len(got_gradients)]]
        decided.append(any(right.tells for right in checked))
        undecided += 0 if few else sum(int(right.undecided.sum()) for right in checked)
    return decided, undecided


def at_kinks(case: Case, data: Data) -> bool:
    """True if there may be kinks, as there are at small integers: a derivative need only be a number there."""
    return case.contract.oracle.generic and data.kind == "exact"


def gradient_name(case: Case, index: int) -> str:
    """The name of the gradient of an operand: that of the operand is in it if there are several."""
    names = case.contract.call.names(case)
    return "gradient (reverse mode)" + (f" of {names[index]}" if len(names) > 1 else "")


def tangents_of(case: Case, data: Data) -> list[np.ndarray]:
    """The global tangents of a data set, of the operands that have a gradient."""
    drawn = operands(case, Data(kind_along(case, data), data.seed + TANGENT_SEED))
    return [drawn[i] for i in case.contract.call.moving(case)]


def _inner(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> complex:
    """The inner product of lists of global arrays, without conjugation, in double precision."""
    return complex(
        sum(np.sum(a.astype(np.complex128) * b.astype(np.complex128)) for a, b in zip(left, right, strict=True))
    )


def _exact_inner(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    """True if an inner product is finite and exact in double precision, whatever is added first."""
    if not all(np.isfinite(a.astype(wide(a.dtype))).all() for a in (*left, *right)):
        return False
    with np.errstate(over="ignore"):
        total = _inner([magnitude(a) for a in left], [magnitude(b) for b in right]).real
    unit = min(finest(a) for a in left) * min(finest(b) for b in right)
    smallest = float(np.finfo(np.float64).tiny)
    return bool(total == 0 or (np.isfinite(total) and total <= 2.0**52 * unit and unit >= smallest))


GRADIENT = Law(
    "gradient",
    "Forward mode is the oracle's map, reverse mode its transpose, and where sums are exact they are adjoint.",
    check_gradient,
    at_some_data,
    lambda implementation, engine: implementation.contract.differentiable is not None,
    derives=True,
    partial=True,
    stands_alone=True,
)
