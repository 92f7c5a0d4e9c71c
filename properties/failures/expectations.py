"""The data of a failure and the right answers for it, computed again as the laws compute them."""

from dataclasses import dataclass

import numpy as np

from shardproof.properties.cases import Case, Placement
from shardproof.properties.data import Data
from shardproof.properties.engines import XlaEngine
from shardproof.properties.implementations import Implementation
from shardproof.properties.laws.gradient import (
    cotangents,
    gradient_references,
    pulled_terms,
    tangent_references,
    tangents_of,
)
from shardproof.properties.laws.numbers import Reference, operands, references
from shardproof.properties.laws.running import Ready, traced
from shardproof.properties.programs import Seen, derivatives, forward


@dataclass(frozen=True)
class Values:
    """Global operands, and the right result blocks `[*mesh.sizes, *block]` with how far off they may be."""

    operands: list[np.ndarray]
    right: list[Reference]

    @property
    def exact(self) -> bool:
        """Whether results must be right bit for bit."""
        return all(reference.bound is None for reference in self.right)


@dataclass(frozen=True)
class Gradients:
    """What both modes of differentiation take and give, as global arrays that leave by type.

    Arguments:
        primal: where the derivative is taken.
        tangents: what forward mode takes, and the right blocks.
        cotangents: what reverse mode takes.
        pulled: the right gradients.
        placements: how each result leaves.
    """

    primal: list[np.ndarray]
    tangents: Values
    cotangents: list[np.ndarray]
    pulled: list[Reference]
    placements: list[Placement]


def data_of(case: Case, data: Data | None) -> Data:
    """The data set that shows the failure, or the first where none is named."""
    return data or (case.data[0] if case.data else Data("exact", 0))


def result_values(case: Case, data: Data, features: frozenset[str] = frozenset()) -> Values:
    """What the law of values expects of an implementation with these features."""
    arrays = operands(case, data)
    return Values(arrays, references(case, arrays, features))


def gradient_values(implementation: Implementation, case: Case, data: Data) -> Gradients:
    """What the law of gradients expects; the implementation is traced, because its result's type decides.

    Raises:
        Exception: whatever tracing raises.
    """
    seen = Seen()
    traced(forward(case, implementation, seen), case, XlaEngine())
    placements = tuple(derivatives(case, implementation, seen)[1])
    cts = cotangents(case, Ready(lambda arrays: [], seen, placements), data)
    primal, tangents = operands(case, data, pulled_terms(case)), tangents_of(case, data)
    return Gradients(
        primal=primal,
        tangents=Values(tangents, tangent_references(case, primal, tangents)),
        cotangents=cts,
        pulled=gradient_references(case, placements, primal, cts),
        placements=list(placements),
    )
