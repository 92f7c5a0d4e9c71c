"""What a diagnosis looks at: the blocks of all devices, right and wrong, in one row."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import device_name, nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.programs.violation import Difference, Of

Oracle = Callable[[Case, list[np.ndarray]], np.ndarray]
"""The right blocks `[*mesh.sizes, *block]` of a case, given the blocks that go in."""

CLEAR = 4.0
"""How many times the tolerance two values differ by, at least, where one explains what the other does not."""


@dataclass(frozen=True)
class Scene:
    """The blocks of one run on one data set, devices in mesh order.

    Arguments:
        case: the case.
        expected: the right blocks `[devices, *block]`.
        actual: the implementation's.
        wrong: elementwise, where they differ.
        tolerance: how far values may be apart and still count as the same.
        inputs: the blocks `[*mesh.sizes, (batch,) *block]` that went in: operands, tangents or cotangents;
            empty where they are not known.
        oracle: what the right blocks of such inputs are.
        leaf: which of several results this is.
        went_in: what the inputs are: `block`, `tangent` or `cotangent`.
        additive: whether what several inputs give is added up, as of tangents; of operands it is multiplied.
        boxes: for each device the part of its block that is looked at, as indices along every dimension;
            the whole block where there is none.
        mistakes: what the blocks would be if something were mistaken, by what that is.
        memory: what was computed of the inputs for all devices at once.
    """

    case: Case
    expected: np.ndarray
    actual: np.ndarray
    wrong: np.ndarray
    tolerance: float
    inputs: list[np.ndarray]
    oracle: Oracle
    leaf: int = 0
    went_in: str = "block"
    additive: bool = False
    boxes: Mapping[int, tuple[np.ndarray, ...]] = field(default_factory=dict)
    mistakes: Mapping[str, Oracle] = field(default_factory=dict)
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        case: Case,
        difference: Difference,
        inputs: list[np.ndarray],
        oracle: Oracle,
        leaf: int,
        mistakes: Mapping[str, Oracle],
    ) -> "Scene":
        """The scene of blocks that were compared, and of what they were computed from."""
        lead = len(case.mesh.sizes)
        expected, actual, wrong = (
            a.reshape(-1, *a.shape[lead:]) for a in (difference.expected, difference.actual, difference.wrong)
        )
        finite = np.array([]) if difference.bound is None else np.abs(difference.bound[np.isfinite(difference.bound)])
        kinds: dict[Of, str] = {"gradient": "cotangent", "tangent": "tangent"}
        went_in = kinds.get(difference.of, "block")
        tolerance = float(finite.max(initial=0))
        return cls(
            case, expected, actual, wrong, tolerance, inputs, oracle, leaf, went_in,
            additive=went_in == "tangent", mistakes=mistakes,
        )  # fmt: skip

    @cached_property
    def devices(self) -> list[int]:
        """The devices whose block is wrong."""
        return [int(d) for d in np.flatnonzero(self.wrong.reshape(len(self.wrong), -1).any(axis=1))]

    @cached_property
    def own(self) -> np.ndarray | None:
        """What each device put in: `[devices, *block]` of the operand that the result belongs to, if it does to one."""
        if self.leaf >= len(self.inputs):
            return None
        chosen = self.inputs[self.leaf]
        return chosen.reshape(-1, *chosen.shape[len(self.case.mesh.sizes) :])

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Where a device is on the mesh."""
        return tuple(int(i) for i in np.unravel_index(device, self.case.mesh.sizes))

    def name(self, device: int) -> str:
        """A device by its coordinates: `(dp=0, tp=1)`."""
        return device_name(self.case.mesh, self.coordinates(device))

    def dimension(self, index: int) -> str:
        """A dimension of the blocks by its number, the leading ones of a batch as such."""
        return f"dimension {index}{' (the batch)' if index < len(self.case.batch) else ''}"

    def within(self, boxes: Mapping[int, tuple[np.ndarray, ...]]) -> "Scene":
        """The same scene, of which these parts are looked at."""
        return dataclasses.replace(self, boxes=boxes)

    def part(self, device: int, block: np.ndarray) -> np.ndarray:
        """The part of a block `[..., *block]` that is looked at on a device."""
        if device not in self.boxes:
            return block
        box = self.boxes[device]
        lead = block.ndim - len(box)
        return np.asarray(block[(slice(None),) * lead + np.ix_(*box)] if box else block)

    def right(self, device: int) -> np.ndarray:
        """What a device should hold, where it is looked at."""
        return self.part(device, self.expected[device])

    def held(self, device: int) -> np.ndarray:
        """What a device holds, where it is looked at."""
        return self.part(device, self.actual[device])

    def wrongly(self, device: int) -> np.ndarray:
        """Elementwise, whether a device is wrong, where it is looked at."""
        return self.part(device, self.wrong[device])

    def same(self, left: np.ndarray, right: np.ndarray, tolerance: float | None = None) -> np.ndarray:
        """Elementwise, whether values count as the same."""
        tolerance = self.tolerance if tolerance is None else tolerance
        equal = nan_equal(left, right)
        if tolerance:
            with np.errstate(invalid="ignore", over="ignore"):
                equal |= np.abs(left.astype(wide(left.dtype)) - right.astype(wide(right.dtype))) <= tolerance
        return equal

    def explains(self, device: int, blocks: np.ndarray) -> np.ndarray:
        """For each of `blocks` (`[n, *part]`), whether a device holds it, and the right one is clearly another.

        A block that equals the right one within the tolerance explains nothing where the device is wrong.
        """
        held, right, wrong = self.held(device), self.right(device), self.wrongly(device)
        if blocks.shape[1:] != held.shape or blocks.dtype != held.dtype:
            return np.zeros(len(blocks), bool)
        count = len(blocks)
        fits = self.same(np.broadcast_to(held, blocks.shape), blocks).reshape(count, -1).all(axis=1)
        if wrong.any():
            alike = self.same(np.broadcast_to(right, blocks.shape), blocks, CLEAR * self.tolerance)
            fits &= ~alike.reshape(count, -1).all(axis=1)
        return np.asarray(fits)

    def holds(self, device: int, block: np.ndarray) -> bool:
        """Whether a device holds this block (which has the shape of the part that is looked at)."""
        return bool(self.explains(device, block[None])[0])

    def holders(self, device: int, blocks: np.ndarray) -> list[int]:
        """The devices of `blocks` (`[devices, *block]`) that have the block which `device` holds."""
        if blocks.shape[1:] != self.actual.shape[1:]:
            return []
        return [int(d) for d in np.flatnonzero(self.explains(device, self.part(device, blocks)))]
