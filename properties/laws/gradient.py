"""The law of gradients: forward mode is the oracle's linear map, reverse mode its transpose."""

import math
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from shardproof.oracles.dtypes import finest
from shardproof.oracles.transposes import enter, leave
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import Engine
from shardproof.properties.engines.batches import pulled_over_batch, pushed_over_batch, widened
from shardproof.properties.engines.running import MODES, Ready, placed_blocks, ready
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.expected import Reference, derivative, references
from shardproof.properties.precision.numbers import (
    Sums,
    checked_sets,
    exact_inner,
    inner,
    is_exact,
    is_moved,
    magnitude,
    magnitudes_of,
    operands,
    parts_of,
    pulled_terms,
    pushed_terms,
)
from shardproof.properties.precision.runs import both, check_mathematics, gradients_held, is_a_number, tangents_held
from shardproof.properties.programs.derivatives import with_derivative
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken

TANGENT_SEED = 104729
"""What is added to the seed of the operands for that of the tangents."""


def check_gradient(implementation: Implementation, case: Case, engine: Engine) -> int:
    """J d and J^T c equal the oracle's, and where sums are exact <J d, c> = <d, J^T c>; returns the data sets checked.

    The inner products are those of the global arrays: what is invariant along an axis, or replicated, counts once.

    Raises:
        Broken: if one does not hold.
        NotImplementedError: if the implementation is differentiable in neither mode.
        WrongResult: if the result has another tree, shape or dtype than it should.
    """
    first: NotImplementedError | None = None
    for kind in MODES:  # a custom_vjp has no forward mode, a while_loop no reverse mode: the other is checked alone
        try:
            program = ready(kind, implementation, case, engine)
            chosen = [data for data in case.data if derives_at(case, data)]
            told = _check(kind, implementation, case, program, chosen)
        except NotImplementedError as error:
            first = first or error
        else:
            return checked_sets(told, case)
    assert first is not None
    raise first


def derives_at(case: Case, data: Data) -> bool:
    """Whether derivatives at such data are defined.

    A product of infinity and zero is not, but whatever is only moved or added up may be infinite; nor is that of a root
    at zero, nor that of a quotient, by the rule for quotients, where it is NaN.
    """
    contract = CONTRACTS[case.contract]
    if contract.generic:
        return data.kind in ("real", "exact")
    if contract.quotient and data.kind in ("special", "nan"):
        results = references(case, operands(case, data))
        return all(np.isfinite(result.exact).all() for result in results)
    return CONTRACTS[case.contract].degree == 1 or data.kind not in ("special", "nan", "zeros")


def along(case: Case, data: Data) -> str:
    """The kind of data of tangents and cotangents: that of the operands, or finite where terms are weighed."""
    return "exact" if CONTRACTS[case.contract].weighs and data.kind in ("special", "nan") else data.kind


def cotangents(case: Case, program: Ready, data: Data) -> list[np.ndarray]:
    """One global cotangent per result leaf, of the same kind of data as the operands."""
    return [
        generate(
            Data(along(case, data), data.seed + 7919 * (i + 1)),
            (*(case.mesh.shape[n] for n in placement.stacked), *shape),
            np.dtype(with_derivative(dtype)),
            terms=pulled_terms(case),
            degree=CONTRACTS[case.contract].degree,
        )
        for i, (placement, shape, dtype) in enumerate(
            zip(program.placements, program.seen.shapes, program.seen.dtypes, strict=True)
        )
    ]


def gradient_references(
    case: Case, placements: Sequence[Placement], primal: Sequence[np.ndarray], cts: Sequence[np.ndarray]
) -> list[Reference]:
    """The oracle's J^T c as global arrays, and how far off an implementation's may be."""
    contract = CONTRACTS[case.contract]
    exact = _pulled(case, placements, primal, cts)
    moving = [primal[i] for i in contract.moving(case)]
    if contract.nonlinear:
        return [Reference(e, x.dtype, None) for e, x in zip(exact, moving, strict=True)]
    if is_exact(case, primal, pulled_terms(case), cts):
        return [Reference(e, x.dtype, None) for e, x in zip(exact, moving, strict=True)]
    sums = _pulled(case, placements, magnitudes_of(case, primal), [magnitude(c) for c in cts])
    counts = _pulled(case, placements, ones_for(case, primal), [np.ones(c.shape) for c in cts])
    units = [finest(x) for x in moving]
    unit, degree = min((finest(c) for c in cts), default=1.0), CONTRACTS[case.contract].degree
    divided = parts_of(case)
    return [
        derivative(
            case,
            exact[i],
            Sums(np.asarray(sums[i] * divided), unit * (math.prod(units[:i] + units[i + 1 :]) if degree > 1 else 1)),
            np.asarray(np.rint(counts[i] * divided)),
            x.dtype,
        )
        for i, x in enumerate(moving)
    ]


def ones_for(case: Case, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays of all operands, with ones in those that have a gradient: what counts the terms of a sum."""
    moving = CONTRACTS[case.contract].moving(case)
    return [np.ones(a.shape) if i in moving else a for i, a in enumerate(arrays)]


def _pulled(
    case: Case,
    placements: Sequence[Placement],
    primal: Sequence[np.ndarray],
    cts: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """J^T c, not rounded: into the results' blocks, through the pullback, out of the operands'."""
    mesh, contract = case.mesh, CONTRACTS[case.contract]
    moving = contract.moving(case)
    blocks = []
    for ct, placement in zip(cts, placements, strict=True):
        held = enter(widened(ct), mesh, placement.partition())
        blocks.append(held.reshape(*mesh.sizes, *held.shape[len(mesh.sizes) + len(placement.stacked) :]))
    held_primal = [case.blocks(i, widened(array) if i in moving else array) for i, array in enumerate(primal)]
    pulled = pulled_over_batch(case, contract, held_primal, blocks)
    return [
        leave(
            t.reshape(*mesh.sizes, *(1 for _ in case.operands[i].placement.stacked), *t.shape[len(mesh.sizes) :]),
            mesh,
            case.partition(i),
        )
        for t, i in zip(pulled, moving, strict=True)
    ]


def tangent_references(case: Case, primal: Sequence[np.ndarray], tangents: Sequence[np.ndarray]) -> list[Reference]:
    """The oracle's J d as blocks of the results, given global arrays, and how far off an implementation's may be."""
    contract = CONTRACTS[case.contract]
    moving = [primal[i] for i in contract.moving(case)]
    exact = _pushed(case, primal, tangents)
    dtypes = [with_derivative(d) for d in contract.result_dtypes(case, [array.dtype for array in primal])[: len(exact)]]
    if contract.nonlinear:
        return [Reference(e, dtype, None) for e, dtype in zip(exact, dtypes, strict=True)]
    if is_moved(case) or is_exact(case, primal, pushed_terms(case), tangents):
        return [Reference(e, dtype, None) for e, dtype in zip(exact, dtypes, strict=True)]
    sums = _pushed(case, magnitudes_of(case, primal), [magnitude(d) for d in tangents])
    counts = _pushed(case, ones_for(case, primal), [np.ones(d.shape) for d in tangents])
    divided = parts_of(case)
    finer = [min(finest(x), finest(d)) for x, d in zip(moving, tangents, strict=True)]
    units = [math.prod(finer)] * len(exact) if contract.degree > 1 else [finest(d) for d in tangents]
    return [
        derivative(case, e, Sums(np.asarray(s * divided), unit), np.asarray(np.rint(c * divided)), dtype)
        for e, s, unit, c, dtype in zip(exact, sums, units, counts, dtypes, strict=True)
    ]


def _pushed(case: Case, primal: Sequence[np.ndarray], tangents: Sequence[np.ndarray]) -> list[np.ndarray]:
    """J d, not rounded."""
    contract = CONTRACTS[case.contract]
    moving = contract.moving(case)
    blocks = [case.blocks(i, widened(array) if i in moving else array) for i, array in enumerate(primal)]
    along = [case.blocks(i, widened(d)) for i, d in zip(moving, tangents, strict=True)]
    return pushed_over_batch(case, contract, blocks, along)


Arrays = tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]
"""What a derivative is taken of: operands, tangents and cotangents, as global arrays."""


def held(
    kind: str, implementation: Implementation, case: Case, placements: Sequence[Placement], given: Sequence[Arrays]
) -> Iterator[tuple[list[Reference], list[Reference]]]:
    """What the oracle says of tangents, as blocks, and of gradients, as global arrays; in modes that `kind` lacks, too.

    One pair for each of the `given` data sets.

    Raises:
        InterpreterLimit: if how far off they may be takes a wide run, and the interpreter cannot.
    """
    forward_mode, reverse_mode = MODES[kind]
    nonlinear = CONTRACTS[case.contract].nonlinear
    sets = [[*primal, *tangents, *cts] for primal, tangents, cts in given]
    runs = both(kind, implementation, case, sets) if nonlinear else repeat([])
    for (primal, tangents, cts), run in zip(given, runs, strict=False):
        pushed, pulled = tangent_references(case, primal, tangents), gradient_references(case, placements, primal, cts)
        if nonlinear and forward_mode:
            pushed = tangents_held(case, pushed, run[len(cts) : 2 * len(cts)], placements)
        if nonlinear and reverse_mode:
            pulled = gradients_held(case, pulled, run[-len(pulled) :])
        yield pushed, pulled


def _check(kind: str, implementation: Implementation, case: Case, program: Ready, chosen: Sequence[Data]) -> list[bool]:
    """Whether each of the data sets tells right from wrong."""
    terms = pulled_terms(case)
    given = [(operands(case, data, terms), tangents_of(case, data), cotangents(case, program, data)) for data in chosen]
    runs = program.prepared.each([[*primal, *tangents, *cts] for primal, tangents, cts in given])
    right = held(kind, implementation, case, program.placements, given)
    told = []
    for data, arrays, outputs, (pushed, pulled) in zip(chosen, given, runs, right, strict=True):
        if CONTRACTS[case.contract].generic and data.kind == "exact":
            pushed, pulled = list(map(is_a_number, pushed)), list(map(is_a_number, pulled))
        told.append(_check_one(kind, case, data, program.placements, arrays, outputs, pushed, pulled))
    return told


def _check_one(
    kind: str,
    case: Case,
    data: Data,
    placements: Sequence[Placement],
    arrays: Arrays,
    outputs: Sequence[np.ndarray],
    pushed_right: list[Reference],
    pulled_right: list[Reference],
) -> bool:
    forward_mode, reverse_mode = MODES[kind]
    moving = CONTRACTS[case.contract].moving(case)
    _, tangents, cts = arrays
    got_tangents = outputs[len(cts) : 2 * len(cts)] if forward_mode else []
    got_gradients = outputs[-len(moving) :] if reverse_mode else []
    for i, (tangent, placement) in enumerate(zip(got_tangents, placements, strict=False)):
        compare(
            case, data, "tangent", "tangent (forward mode)",
            expected=pushed_right[i].rounded, actual=placed_blocks(case, tangent, placement),
            bound=pushed_right[i].bound, exact=pushed_right[i].exact,
            off_in_doubles=pushed_right[i].off_in_doubles, leaf=i,
        )  # fmt: skip
        check_mathematics(case, data, "tangent", "tangent (forward mode)", pushed_right[i], leaf=i)

    for i, gradient, right in zip(moving, got_gradients, pulled_right, strict=False):
        if gradient.shape != right.exact.shape:
            told = f"gradient has shape {gradient.shape}: expected {right.exact.shape}"
            raise Broken("shape", told, of="gradient", data=data)
        compare(
            case, data, "gradient", named(case, i),
            expected=case.blocks(i, right.rounded),
            actual=case.blocks(i, gradient),
            bound=None if right.bound is None else case.blocks(i, right.bound),
            exact=case.blocks(i, right.exact),
            off_in_doubles=None if (off := right.off_in_doubles) is None else case.blocks(i, off),
            leaf=i,
        )  # fmt: skip
        check_mathematics(case, data, "gradient", named(case, i), right, leaf=i, operand=i)
    pairs = ((got_tangents, cts), (tangents, got_gradients))
    exact = all(right.bound is None for right in (*pushed_right, *pulled_right))
    if forward_mode and reverse_mode and exact and all(exact_inner(*pair) for pair in pairs):
        left, right_ = (inner(*pair) for pair in pairs)
        if left != right_:
            told = f"<J d, c> = {left} differs from <d, J^T c> = {right_}"
            raise Broken("adjoint", told, of="gradient", data=data)
    checked = [*pushed_right[: len(got_tangents)], *pulled_right[: len(got_gradients)]]
    return any(right.tells for right in checked)


def named(case: Case, index: int) -> str:
    """What the gradient of an operand is called, where there are several."""
    names = CONTRACTS[case.contract].names(case)
    return "gradient (reverse mode)" + (f" of {names[index]}" if len(names) > 1 else "")


def pushed(case: Case, data: Data) -> Data:
    """The data set of the tangents."""
    return Data(along(case, data), data.seed + TANGENT_SEED)


def tangents_of(case: Case, data: Data) -> list[np.ndarray]:
    """The global tangents of a data set, of the operands that have a gradient."""
    drawn = operands(case, pushed(case, data), pushed_terms(case))
    return [drawn[i] for i in CONTRACTS[case.contract].moving(case)]
