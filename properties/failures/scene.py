"""What a diagnosis looks at: the blocks of all devices, right and wrong, in one row."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from oracles.dtypes import wide
from oracles.layout import device_name, nan_equal
from properties.cases import Case
from properties.contracts import CONTRACTS
from properties.laws.gradient import pushed, pushed_terms
from properties.laws.numbers import operands
from properties.laws.running import is_batched
from properties.laws.violation import LawViolation


@dataclass(frozen=True)
class Scene:
    """The blocks of a violation, devices in mesh order.

    Arguments:
        case: the case.
        expected: the right blocks `[devices, *block]`.
        actual: the implementation's.
        wrong: elementwise, where they differ.
        tolerance: how far values may be apart and still count as the same.
        operands: the global arrays that the result was computed from; empty where they are not known.
        leaf: which of several results this is.
    """

    case: Case
    expected: np.ndarray
    actual: np.ndarray
    wrong: np.ndarray
    tolerance: float
    operands: tuple[np.ndarray, ...]
    leaf: int

    @cached_property
    def devices(self) -> list[int]:
        """The devices whose block is wrong."""
        return [int(d) for d in np.flatnonzero(self.wrong.reshape(len(self.wrong), -1).any(axis=1))]

    @cached_property
    def inputs(self) -> list[np.ndarray]:
        """Every operand's blocks `[*mesh.sizes, (batch,) *block]`."""
        batched = is_batched(self.case)
        return [self.case.blocks(i, array, batched=batched) for i, array in enumerate(self.operands)]

    @cached_property
    def own(self) -> np.ndarray | None:
        """What each device put in: `[devices, *block]` of the operand that the result belongs to."""
        if not self.inputs:
            return None
        chosen = self.inputs[self.leaf]
        return chosen.reshape(-1, *chosen.shape[len(self.case.mesh.sizes) :])

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Where a device is on the mesh."""
        return tuple(int(i) for i in np.unravel_index(device, self.case.mesh.sizes))

    def name(self, device: int) -> str:
        """A device by its coordinates: `(dp=0, tp=1)`."""
        return device_name(self.case.mesh, self.coordinates(device))

    def same(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Elementwise, whether values count as the same."""
        equal = nan_equal(left, right)
        if self.tolerance:
            with np.errstate(invalid="ignore", over="ignore"):
                equal |= np.abs(left.astype(wide(left.dtype)) - right.astype(wide(right.dtype))) <= self.tolerance
        return equal

    def holds(self, device: int, block: np.ndarray) -> bool:
        """Whether a device holds this block."""
        mine = self.actual[device]
        return mine.shape == block.shape and bool(self.same(mine, block).all())

    def holders(self, device: int, blocks: np.ndarray) -> list[int]:
        """The devices of `blocks` (`[devices, *block]`) that have the block which `device` holds."""
        if blocks.shape[1:] != self.actual.shape[1:] or blocks.dtype != self.actual.dtype:
            return []
        equal = self.same(np.broadcast_to(self.actual[device], blocks.shape), blocks)
        return [int(d) for d in np.flatnonzero(equal.reshape(len(blocks), -1).all(axis=1))]


def scene_of(violation: LawViolation) -> Scene | None:
    """The scene of a violation that compared blocks; None where there are none, or of the wrong shape."""
    difference, case = violation.difference, violation.case
    if difference is None or not difference.comparable:
        return None
    lead = len(case.mesh.sizes)
    expected, actual, wrong = (
        a.reshape(-1, *a.shape[lead:]) for a in (difference.expected, difference.actual, difference.wrong)
    )
    bound = difference.bound
    finite = np.array([]) if bound is None else bound[np.isfinite(bound)]
    leaf = int(difference.what.rpartition(" ")[2]) if difference.what.startswith("result leaf ") else 0
    return Scene(case, expected, actual, wrong, float(finite.max(initial=0)), _operands(violation), leaf)


def _operands(violation: LawViolation) -> tuple[np.ndarray, ...]:
    """The global arrays that a wrong result or tangent was computed from."""
    case, data, difference = violation.case, violation.data, violation.difference
    if data is None or difference is None or not difference.what.startswith(("result", "tangent")):
        return ()
    if "gradient" not in violation.law:
        return tuple(operands(case, data))
    if case.tree or CONTRACTS[case.contract].degree > 1:  # which operand a tangent belongs to is not said
        return ()
    return tuple(operands(case, pushed(data), pushed_terms(case)))
