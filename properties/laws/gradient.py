"""The law of gradients, for linear operations: forward and reverse mode are the oracle's map and its transpose."""

from collections.abc import Sequence

import numpy as np

from oracles.transposes import enter, leave
from properties.cases import Case, Placement
from properties.contracts import CONTRACTS
from properties.data import Data, generate
from properties.engines import Engine
from properties.implementations import Implementation
from properties.laws.comparison import bound_of_sum, compare, is_exact, magnitude
from properties.laws.running import Ready, gaps, is_batched, oracle_blocks, over_batch, placed_blocks, ready
from properties.laws.violation import Gap, LawViolation


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


def pulled_terms(case: Case) -> int:
    """How many cotangents a gradient may add up.

    Every device may read an element of a block, and every device that holds a replica of that block
    adds to the gradient of the one value behind them.
    """
    mesh = case.mesh
    replicas = (mesh.size // mesh.axis_size(mesh.in_mesh_order(o.placement.axes)) for o in case.operands)
    return mesh.size * max(replicas, default=1)


def cotangents(case: Case, program: Ready, data: Data) -> list[np.ndarray]:
    """One global cotangent per result leaf, of the same kind of data as the operands."""
    return [
        generate(
            Data(data.kind, data.seed + 7919 * (i + 1)),
            (*(case.mesh.shape[n] for n in placement.stacked), *shape),
            np.dtype(dtype),
            terms=pulled_terms(case),
        )
        for i, (placement, shape, dtype) in enumerate(
            zip(program.placements, program.seen.shapes, program.seen.dtypes, strict=True)
        )
    ]


def expected_gradients(case: Case, placements: Sequence[Placement], cts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The oracle's J^T c as global arrays: into the results' blocks, through the transpose, out of the operands'."""
    mesh = case.mesh
    blocks = []
    for ct, placement in zip(cts, placements, strict=True):
        held = enter(ct, mesh, placement.partition())
        blocks.append(held.reshape(*mesh.sizes, *held.shape[len(mesh.sizes) + len(placement.stacked) :]))
    transposed = over_batch(case, blocks, lambda b: CONTRACTS[case.contract].transpose(case, b))
    batched = is_batched(case)
    return [
        leave(
            t.reshape(*mesh.sizes, *(1 for _ in o.placement.stacked), *t.shape[len(mesh.sizes) :]),
            mesh,
            o.placement.partition(batched=batched),
        )
        for t, o in zip(transposed, case.operands, strict=True)
    ]


def inner(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> complex:
    """The inner product of lists of global arrays, without conjugation, in double precision."""
    return complex(
        sum(np.sum(a.astype(np.complex128) * b.astype(np.complex128)) for a, b in zip(left, right, strict=True))
    )


def _check(
    implementation: Implementation, case: Case, program: Ready, data: Data, law: str, forward_mode: bool
) -> None:
    contract = CONTRACTS[case.contract]
    terms, divides, batched = case.mesh.size, contract.divides(case), is_batched(case)
    count = len(case.operands)
    primal = [case.global_array(i, data, terms=terms, batched=batched) for i in range(count)]
    pushed = Data(data.kind, data.seed + 104729)
    tangents = [case.global_array(i, pushed, terms=terms, batched=batched) for i in range(count)]
    cts = cotangents(case, program, data)
    outputs = program.prepared([*primal, *tangents, *cts])
    results = len(cts)
    got_tangents = outputs[results : 2 * results] if forward_mode else []
    got_gradients = outputs[-count:]
    moved = contract.terms(case) == 1 and not divides

    if forward_mode:
        blocks = [case.blocks(i, t, batched=batched) for i, t in enumerate(tangents)]
        expected = oracle_blocks(case, blocks)
        exact = moved or is_exact(tangents, terms, divides)
        bounds = None if exact else oracle_blocks(case, [magnitude(b) for b in blocks])
        for i, (tangent, placement) in enumerate(zip(got_tangents, program.placements, strict=True)):
            bound = None if bounds is None else bound_of_sum(bounds[i], terms, expected[i].dtype, divides)
            compare(
                implementation, law, case, data, "tangent (forward mode)",
                expected=expected[i], actual=placed_blocks(case, tangent, placement), bound=bound,
            )  # fmt: skip

    terms = pulled_terms(case)
    exact = is_exact(cts, terms, divides)
    gradients = expected_gradients(case, program.placements, cts)
    bounds = None if exact else expected_gradients(case, program.placements, [magnitude(c) for c in cts])
    for i, gradient in enumerate(got_gradients):
        bound = None
        if bounds is not None:
            bound = case.blocks(i, bound_of_sum(bounds[i], terms, gradients[i].dtype, divides), batched=batched)
        if gradient.shape != gradients[i].shape:
            raise LawViolation(
                implementation,
                law,
                case,
                f"gradient has shape {gradient.shape}: expected {gradients[i].shape}",
                data=data,
            )
        compare(
            implementation, law, case, data, "gradient (reverse mode)",
            expected=case.blocks(i, gradients[i], batched=batched),
            actual=case.blocks(i, gradient, batched=batched), bound=bound,
        )  # fmt: skip
    if forward_mode and exact and is_exact(tangents, case.mesh.size, divides):
        left, right = inner(got_tangents, cts), inner(tangents, got_gradients)
        if left != right:
            raise LawViolation(
                implementation, law, case, f"<J d, c> = {left} differs from <d, J^T c> = {right}", data=data
            )
