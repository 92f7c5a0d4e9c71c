"""The data of a failure and the right answers for it, computed again as the laws compute them."""

from dataclasses import dataclass

import numpy as np

from properties.cases import Case, Placement
from properties.contracts import CONTRACTS
from properties.data import Data
from properties.engines import XlaEngine
from properties.failures.scene import TANGENT_SEED
from properties.implementations import Implementation
from properties.laws.comparison import bound_of_sum, is_exact, magnitude
from properties.laws.gradient import cotangents, expected_gradients, pulled_terms
from properties.laws.running import Ready, is_batched, oracle_blocks, trace
from properties.programs import Seen, derivatives, forward

Bounds = list[np.ndarray] | None


@dataclass(frozen=True)
class Values:
    """Global operands, and the right result blocks `[*mesh.sizes, *block]` with how far off they may be."""

    operands: list[np.ndarray]
    expected: list[np.ndarray]
    bounds: Bounds


@dataclass(frozen=True)
class Gradients:
    """What both modes of differentiation take and give, as global arrays that leave by type.

    Arguments:
        primal: where the derivative is taken.
        tangents: what forward mode takes, and `pushed` the right blocks and their bounds.
        cotangents: what reverse mode takes, and `pulled` the right gradients and their bounds.
        placements: how each result leaves.
    """

    primal: list[np.ndarray]
    tangents: Values
    cotangents: list[np.ndarray]
    pulled: list[np.ndarray]
    pulled_bounds: Bounds
    placements: list[Placement]


def data_of(case: Case, data: Data | None) -> Data:
    """The data set that shows the failure, or the first where none is named."""
    return data or (case.data[0] if case.data else Data("exact", 0))


def values(case: Case, data: Data, terms: int, *, moved: bool) -> Values:
    """The right results for a data set."""
    batched, divides = is_batched(case), CONTRACTS[case.contract].divides(case)
    arrays = [case.global_array(i, data, terms=terms, batched=batched) for i in range(len(case.operands))]
    blocks = [case.blocks(i, array, batched=batched) for i, array in enumerate(arrays)]
    expected = oracle_blocks(case, blocks)
    if moved or is_exact(arrays, terms, divides):
        return Values(arrays, expected, None)
    sums = oracle_blocks(case, [magnitude(b) for b in blocks])
    return Values(
        arrays, expected, [bound_of_sum(s, terms, e.dtype, divides) for s, e in zip(sums, expected, strict=True)]
    )


def result_values(case: Case, data: Data) -> Values:
    """What the law of values expects."""
    terms = CONTRACTS[case.contract].terms(case)
    return values(case, data, terms, moved=terms == 1)


def gradient_values(implementation: Implementation, case: Case, data: Data) -> Gradients:
    """What the law of gradients expects; the implementation is traced, because its result's type decides.

    Raises:
        Exception: whatever tracing raises.
    """
    seen = Seen()
    trace(forward(case, implementation, seen), case, XlaEngine())
    placements = tuple(derivatives(case, implementation, seen)[1])
    contract, terms = CONTRACTS[case.contract], case.mesh.size
    divides, batched = contract.divides(case), is_batched(case)
    cts = cotangents(case, Ready(lambda arrays: [], seen, placements), data)
    pulled = expected_gradients(case, placements, cts)
    bounds: Bounds = None
    if not is_exact(cts, pulled_terms(case), divides):
        sums = expected_gradients(case, placements, [magnitude(c) for c in cts])
        bounds = [bound_of_sum(s, pulled_terms(case), p.dtype, divides) for s, p in zip(sums, pulled, strict=True)]
    pushed = Data(data.kind, data.seed + TANGENT_SEED)
    return Gradients(
        primal=[case.global_array(i, data, terms=terms, batched=batched) for i in range(len(case.operands))],
        tangents=values(case, pushed, terms, moved=contract.terms(case) == 1 and not divides),
        cotangents=cts,
        pulled=pulled,
        pulled_bounds=bounds,
        placements=list(placements),
    )
