"""The data of a failure and the right answers for it, computed again as the laws compute them."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import Prepared, XlaEngine
from shardproof.properties.engines.running import MODES, Ready, traced
from shardproof.properties.laws.gradient import cotangents, held, tangents_of
from shardproof.properties.precision.expected import Reference
from shardproof.properties.precision.numbers import operands, pulled_terms
from shardproof.properties.precision.runs import value_references
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.programs.violation import NotDifferentiable


@dataclass(frozen=True)
class Values:
    """Global operands, and the right result blocks `[*mesh.sizes, *block]` with how far off they may be."""

    operands: list[np.ndarray]
    right: list[Reference]

    @property
    def exact(self) -> bool:
        """Whether results must be right bit for bit."""
        return all(reference.bound is None for reference in self.right)

    @property
    def in_doubles(self) -> "Values":
        """The same for the function in double precision."""
        return Values([doubled(x) for x in self.operands], [reference_in_doubles(right) for right in self.right])


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

    @property
    def in_doubles(self) -> "Gradients":
        """The same for the function in double precision."""
        pulled = [reference_in_doubles(right) for right in self.pulled]
        primal, cts = [doubled(x) for x in self.primal], [doubled(c) for c in self.cotangents]
        return Gradients(primal, self.tangents.in_doubles, cts, pulled, self.placements)


def doubled(array: np.ndarray) -> np.ndarray:
    """Floats as doubles; all else as it is."""
    return array.astype(np.float64) if is_float(array.dtype) else array


def reference_in_doubles(right: Reference) -> Reference:
    """What a function in double precision is held to, which has been run so."""
    return Reference(right.exact, np.dtype(np.float64), right.leeway)


def data_of(case: Case, data: Data | None) -> Data:
    """The data set that shows the failure, or the first where none is named."""
    return data or (case.data[0] if case.data else Data("exact", 0))


def result_values(implementation: Implementation, case: Case, data: Data) -> Values:
    """What the law of values expects of an implementation."""
    arrays = operands(case, data)
    return Values(arrays, next(value_references(implementation, case, [arrays])))


def gradient_values(implementation: Implementation, case: Case, data: Data) -> Gradients:
    """What the law of gradients expects; the implementation is traced, because its result's type decides.

    Raises:
        Exception: whatever tracing raises.
    """
    seen = Seen()
    traced(forward(case, implementation, seen), case, XlaEngine())
    placements = tuple(derivatives(case, implementation, seen)[1])
    cts = cotangents(case, Ready(Prepared(lambda arrays: []), seen, placements), data)
    primal, tangents = operands(case, data, pulled_terms(case)), tangents_of(case, data)
    for kind in MODES:  # those that JAX has of the function
        with suppress(NotImplementedError):
            pushed, pulled = next(held(kind, implementation, case, placements, [(primal, tangents, cts)]))
            break
    else:
        raise NotDifferentiable("the function is differentiable in neither mode")
    return Gradients(
        primal=primal,
        tangents=Values(tangents, pushed),
        cotangents=cts,
        pulled=pulled,
        placements=list(placements),
    )
