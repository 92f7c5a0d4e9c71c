"""The data of a failure and the right answers for it, computed again as the laws compute them."""

from dataclasses import dataclass

import numpy as np

from properties.cases import Case, Placement
from properties.contracts import CONTRACTS
from properties.data import Data
from properties.engines import XlaEngine
from properties.implementations import Implementation
from properties.laws.gradient import (
    cotangents,
    expected_gradients,
    expected_tangents,
    gradient_bounds,
    pulled_terms,
    pushed,
    pushed_terms,
    tangent_bounds,
)
from properties.laws.numbers import bound_of_sum, is_exact, is_moved, magnitude, operands
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


def result_values(case: Case, data: Data) -> Values:
    """What the law of values expects."""
    terms, arrays = CONTRACTS[case.contract].terms(case), operands(case, data)
    blocks = [case.blocks(i, array, batched=is_batched(case)) for i, array in enumerate(arrays)]
    expected = oracle_blocks(case, blocks)
    if is_moved(case) or is_exact(case, arrays, terms):
        return Values(arrays, expected, None)
    sums = oracle_blocks(case, [magnitude(b) for b in blocks])
    return Values(
        arrays, expected, [bound_of_sum(case, s, terms, e.dtype) for s, e in zip(sums, expected, strict=True)]
    )


def gradient_values(implementation: Implementation, case: Case, data: Data) -> Gradients:
    """What the law of gradients expects; the implementation is traced, because its result's type decides.

    Raises:
        Exception: whatever tracing raises.
    """
    seen = Seen()
    trace(forward(case, implementation, seen), case, XlaEngine())
    placements = tuple(derivatives(case, implementation, seen)[1])
    cts = cotangents(case, Ready(lambda arrays: [], seen, placements), data)
    primal, tangents = operands(case, data, pulled_terms(case)), operands(case, pushed(data), pushed_terms(case))
    return Gradients(
        primal=primal,
        tangents=Values(tangents, expected_tangents(case, primal, tangents), tangent_bounds(case, primal, tangents)),
        cotangents=cts,
        pulled=expected_gradients(case, placements, primal, cts),
        pulled_bounds=gradient_bounds(case, placements, primal, cts),
        placements=list(placements),
    )
