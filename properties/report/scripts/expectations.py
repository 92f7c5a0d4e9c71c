"""The data of a failure and the right answers for it, computed again as the laws compute them."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Prepared, XlaEngine
from shardproof.properties.engines.running import MODES, Ready, traced
from shardproof.properties.laws.gradient import cotangents, held, tangents_of
from shardproof.properties.precision.comparison import Reference
from shardproof.properties.precision.judge import value_references
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import NotDifferentiable


@dataclass(frozen=True)
class Gradients:
    """What both modes of differentiation take and give, as global arrays that leave by type.

    Arguments:
        primal: where the derivative is taken.
        tangents: what forward mode takes.
        pushed: the right blocks `[*mesh.sizes, *block]` of forward mode.
        cotangents: what reverse mode takes.
        pulled: the right gradients.
        placements: how each result leaves.
    """

    primal: list[np.ndarray]
    tangents: list[np.ndarray]
    pushed: list[Reference]
    cotangents: list[np.ndarray]
    pulled: list[Reference]
    placements: list[Placement]


def result_values(implementation: Implementation, case: Case, data: Data) -> tuple[list[np.ndarray], list[Reference]]:
    """Global operands, and the right blocks `[*mesh.sizes, *block]` with how far off they may be, as the law has it."""
    arrays = operands(case, data)
    return arrays, next(value_references(implementation, case, [arrays]))


def gradient_values(implementation: Implementation, case: Case, data: Data) -> Gradients:
    """What the law of gradients expects; the implementation is traced, because its result's type decides.

    Raises:
        Exception: whatever tracing raises.
    """
    seen = Seen()
    traced(forward(case, implementation, seen), case, XlaEngine())
    placements = tuple(derivatives(case, implementation, seen)[1])
    cts = cotangents(case, Ready(Prepared(lambda arrays: []), seen, placements), data)
    primal, tangents = operands(case, data), tangents_of(case, data)
    for kind in MODES:  # those that JAX has of the function
        with suppress(NotImplementedError):
            pushed, pulled = next(held(kind, implementation, case, placements, [(primal, tangents, cts)]))
            _ = [right.bound for right in (*pushed, *pulled)]  # the program is made ready where that is asked for
            break
    else:
        raise NotDifferentiable("the function is differentiable in neither mode")
    return Gradients(primal, tangents, pushed, cts, pulled, list(placements))
