"""The law of gradients, for linear operations: forward and reverse mode are the oracle's map and its transpose."""

from collections.abc import Sequence

import numpy as np

from oracles.transposes import enter, leave
from properties.cases import Case, Placement
from properties.contracts import CONTRACTS
from properties.data import Data, generate
from properties.engines import Engine
from properties.implementations import Implementation
from properties.laws.comparison import compare
from properties.laws.numbers import bound_of_sum, is_exact, is_moved, magnitude, operands
from properties.laws.running import Ready, gaps, is_batched, over_batch, placed_blocks, ready
from properties.laws.violation import Gap, LawViolation

TANGENT_SEED = 104729
"""What is added to the seed of the operands for that of the tangents."""


def check_gradient(implementation: Implementation, case: Case, engine: Engine, *, law: str = "gradient") -> int:
    """J d and J^T c equal the oracle's, and <J d, c> = <d, J^T c> exactly; returns the data sets checked.

    The inner products are those of the global arrays: a result that is invariant along an axis
    counts once, a varying one once per device; a replicated operand counts once.

    Raises:
        LawViolation: if one does not hold.
        Gap: if the implementation is differentiable in neither mode.
    """
    try:
        return _check_modes(implementation, case, engine, law, forward_mode=True)
    except Gap:  # a custom_vjp has no forward mode: its reverse mode is checked all the same
        return _check_modes(implementation, case, engine, law, forward_mode=False)


def _check_modes(implementation: Implementation, case: Case, engine: Engine, law: str, *, forward_mode: bool) -> int:
    with gaps():
        program = ready("gradient" if forward_mode else "reverse gradient", implementation, case, engine)
        chosen = [data for data in case.data if data.kind not in ("special", "nan")]
        for data in chosen:
            _check(implementation, case, program, data, law, forward_mode)
    return len(chosen)


def pushed_terms(case: Case) -> int:
    """How many terms a tangent adds up: each product gives one term per factor."""
    contract = CONTRACTS[case.contract]
    return contract.terms(case) * contract.degree


def pulled_terms(case: Case) -> int:
    """How many terms a gradient may add up.

    Every device may read an element of a block, and every device that holds a replica of that block
    adds to the gradient of the one value behind them. A product is read once per row or column.
    """
    mesh = case.mesh
    replicas = (mesh.size // mesh.axis_size(mesh.in_mesh_order(o.placement.axes)) for o in case.operands)
    longest = max((side for operand in case.operands for side in operand.block), default=1)
    return mesh.size * max(replicas, default=1) * max(longest, 1) ** (CONTRACTS[case.contract].degree - 1)


def cotangents(case: Case, program: Ready, data: Data) -> list[np.ndarray]:
    """One global cotangent per result leaf, of the same kind of data as the operands."""
    return [
        generate(
            Data(data.kind, data.seed + 7919 * (i + 1)),
            (*(case.mesh.shape[n] for n in placement.stacked), *shape),
            np.dtype(dtype),
            terms=pulled_terms(case),
            degree=CONTRACTS[case.contract].degree,
        )
        for i, (placement, shape, dtype) in enumerate(
            zip(program.placements, program.seen.shapes, program.seen.dtypes, strict=True)
        )
    ]


def expected_gradients(
    case: Case, placements: Sequence[Placement], primal: Sequence[np.ndarray], cts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The oracle's J^T c as global arrays: into the results' blocks, through the pullback, out of the operands'."""
    mesh, batched = case.mesh, is_batched(case)
    blocks = []
    for ct, placement in zip(cts, placements, strict=True):
        held = enter(ct, mesh, placement.partition())
        blocks.append(held.reshape(*mesh.sizes, *held.shape[len(mesh.sizes) + len(placement.stacked) :]))
    count = len(primal)
    held_primal = [case.blocks(i, array, batched=batched) for i, array in enumerate(primal)]
    pulled = over_batch(
        case, [*held_primal, *blocks], lambda b: CONTRACTS[case.contract].pullback(case, b[:count], b[count:])
    )
    return [
        leave(
            t.reshape(*mesh.sizes, *(1 for _ in o.placement.stacked), *t.shape[len(mesh.sizes) :]),
            mesh,
            o.placement.partition(batched=batched),
        )
        for t, o in zip(pulled, case.operands, strict=True)
    ]


def expected_tangents(case: Case, primal: Sequence[np.ndarray], tangents: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The oracle's J d, as blocks of the results, given global arrays."""
    batched, count = is_batched(case), len(primal)
    blocks = [case.blocks(i % count, array, batched=batched) for i, array in enumerate([*primal, *tangents])]
    return over_batch(case, blocks, lambda b: CONTRACTS[case.contract].pushforward(case, b[:count], b[count:]))


def inner(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> complex:
    """The inner product of lists of global arrays, without conjugation, in double precision."""
    return complex(
        sum(np.sum(a.astype(np.complex128) * b.astype(np.complex128)) for a, b in zip(left, right, strict=True))
    )


def _check(
    implementation: Implementation, case: Case, program: Ready, data: Data, law: str, forward_mode: bool
) -> None:
    batched, count = is_batched(case), len(case.operands)
    tangents, primal = operands(case, pushed(data), pushed_terms(case)), operands(case, data, pulled_terms(case))
    cts = cotangents(case, program, data)
    outputs = program.prepared([*primal, *tangents, *cts])
    got_tangents = outputs[len(cts) : 2 * len(cts)] if forward_mode else []
    got_gradients = outputs[-count:]

    if forward_mode:
        expected = expected_tangents(case, primal, tangents)
        bounds = tangent_bounds(case, primal, tangents)
        for i, (tangent, placement) in enumerate(zip(got_tangents, program.placements, strict=True)):
            compare(
                implementation, law, case, data, "tangent (forward mode)",
                expected=expected[i], actual=placed_blocks(case, tangent, placement),
                bound=None if bounds is None else bounds[i],
            )  # fmt: skip

    gradients = expected_gradients(case, program.placements, primal, cts)
    pulled_bounds = gradient_bounds(case, program.placements, primal, cts)
    for i, gradient in enumerate(got_gradients):
        if gradient.shape != gradients[i].shape:
            raise LawViolation(
                implementation,
                law,
                case,
                f"gradient has shape {gradient.shape}: expected {gradients[i].shape}",
                data=data,
            )
        compare(
            implementation, law, case, data, named(case, i),
            expected=case.blocks(i, gradients[i], batched=batched),
            actual=case.blocks(i, gradient, batched=batched),
            bound=None if pulled_bounds is None else case.blocks(i, pulled_bounds[i], batched=batched),
        )  # fmt: skip
    if forward_mode and pulled_bounds is None and tangent_bounds(case, primal, tangents, moved=False) is None:
        left, right = inner(got_tangents, cts), inner(tangents, got_gradients)
        if left != right:
            raise LawViolation(
                implementation, law, case, f"<J d, c> = {left} differs from <d, J^T c> = {right}", data=data
            )


def named(case: Case, index: int) -> str:
    """What the gradient of an operand is called, where there are several."""
    names = CONTRACTS[case.contract].operands
    return "gradient (reverse mode)" + (f" of {names[index]}" if len(names) > 1 else "")


def pushed(data: Data) -> Data:
    """The data set of the tangents."""
    return Data(data.kind, data.seed + TANGENT_SEED)


def tangent_bounds(
    case: Case, primal: Sequence[np.ndarray], tangents: Sequence[np.ndarray], *, moved: bool = True
) -> list[np.ndarray] | None:
    """How far tangents may be off, as blocks; None: not at all. Data that is only `moved` is never off."""
    if moved and is_moved(case) and not CONTRACTS[case.contract].divides(case):
        return None
    terms = pushed_terms(case)
    if is_exact(case, primal, terms, tangents):
        return None
    sums = expected_tangents(case, [magnitude(x) for x in primal], [magnitude(d) for d in tangents])
    dtypes = [d.dtype for d in expected_tangents(case, primal, tangents)]
    return [bound_of_sum(case, s, terms, dtype, derivative=True) for s, dtype in zip(sums, dtypes, strict=True)]


def gradient_bounds(
    case: Case, placements: Sequence[Placement], primal: Sequence[np.ndarray], cts: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """How far gradients may be off, as global arrays; None: not at all."""
    terms = pulled_terms(case)
    if is_exact(case, primal, terms, cts):
        return None
    sums = expected_gradients(case, placements, [magnitude(x) for x in primal], [magnitude(c) for c in cts])
    return [bound_of_sum(case, s, terms, x.dtype, derivative=True) for s, x in zip(sums, primal, strict=True)]
