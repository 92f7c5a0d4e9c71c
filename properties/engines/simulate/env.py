"""The environment of an equation, the record of executed collectives, and the table of rules.

A value is one ndarray `[*lead, *block]`. In global view there are no leading dimensions. Inside `shard_map` there is
one per manual mesh axis, in mesh order, of the size of the axis, or 1 where the value is the same on all devices along
it. So a value that does not depend on the device is held once, and NumPy broadcasts it. A rule, one small function per
primitive, takes the environment, the equation and the operands, and returns the result or results in the same form.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardproof.oracles.dtypes import NARROW, wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.exchange import process_groups

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Collective:
    """One execution of a collective of the program.

    Arguments:
        kind: the operation: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `permute`, `broadcast`
            or `ragged_all_to_all`.
        axes: the mesh axes, as the program gave them.
        mesh: the manual axes of the mesh that it ran on.
        groups: lists of indices over `axes` that it ran within; None if there was one group.
        perm: the pairs (source, destination) of indices over `axes` of a permute; None otherwise.
        operand_bytes: bytes of the operand, on each device.
        devices: how many devices executed it.
        round: its place, from 1, in the longest chain of collectives that need one another. Those of one round may run
            at the same time.
    """

    kind: str
    axes: tuple[str, ...]
    mesh: MeshCase
    groups: tuple[tuple[int, ...], ...] | None
    perm: Pairs | None
    operand_bytes: int
    devices: int
    round: int

    @property
    def participants(self) -> int:
        """The number of devices in each process group."""
        return len(self.groups[0]) if self.groups else self.mesh.axis_size(self.axes)

    @property
    def links(self) -> list[tuple[int, int]]:
        """The (source, destination) devices of a permute, by their position in the mesh; none of anything else."""
        (devices,) = process_groups(self.mesh, self.axes)
        ends = [(devices[:, source], devices[:, target]) for source, target in self.perm or ()]
        return [pair for sources, targets in ends for pair in zip(sources.tolist(), targets.tolist(), strict=True)]


@dataclass(frozen=True)
class Record:
    """The communication of one run.

    Arguments:
        collectives: every execution of a collective, in order.
        equations: the number of evaluated equations, those of a loop in every iteration.
    """

    collectives: tuple[Collective, ...]
    equations: int

    @property
    def rounds(self) -> int:
        """The length of the longest chain of collectives that need one another."""
        return max((c.round for c in self.collectives), default=0)


class Recorder:
    """Collects a `Record` while a program is interpreted.

    Arguments:
        operands: the rounds after which each operand of the current equation is known.
        results: those of its results, if its rule distinguishes them; otherwise empty.
        round: the round after which all of its operands, or results, are known.
    """

    def __init__(self) -> None:
        self.operands: list[int] = []
        self.results: list[int] = []
        self.round = 0
        self._executed: list[Collective] = []
        self._equations = 0

    def executed(self, **collective: Any) -> None:
        """Records one execution of a collective, a round after its operands."""
        self.round += 1
        self._executed.append(Collective(**collective, round=self.round))

    def begin(self, operands: list[int], start: int) -> None:
        """Begins an equation, after `start` if it has no operands."""
        self._equations += 1
        self.operands, self.results, self.round = operands, [], max(operands, default=start)

    def end(self, results: int) -> list[int]:
        """Ends an equation: the rounds after which each of its results is known."""
        return self.results if len(self.results) == results else [self.round] * results

    @property
    def record(self) -> Record:
        """The record so far."""
        return Record(tuple(self._executed), self._equations)


def bytes_of(aval: object) -> int:
    """The bytes of a block, from its traced type; sub-byte dtypes are counted packed."""
    elements, dtype = math.prod(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
    if str(dtype) in NARROW:
        return math.ceil(elements * NARROW[str(dtype)] / 8)
    return elements * int(getattr(dtype, "itemsize", 0))  # of a random key as well, which is no dtype of NumPy's


ALLOCATES = ("empty", "empty2")

Choice = Literal["contents", "order", "sorting"]
"""What is undetermined: the contents of memory, the order of updates, or the meaning of unsorted indices."""

Found = dict[tuple[Choice, int], Any]
"""The equations with something undetermined, by what that is and their identity."""

Left = list[tuple[MeshCase, np.ndarray]]
"""The blocks on the devices at the end of each `shard_map` of a program."""


SETS = "_data_sets"
"""The axis of data sets that are run at once, as if each were on its own devices; no program has that name."""


@dataclass(frozen=True)
class Elsewhere:
    """Devices in another branch of a cond, or past the end of a loop.

    Arguments:
        devices: bool `[*mesh.sizes]`, True for these devices.
        jaxpr: what they execute meanwhile; None if nothing.
        name: where that is, for messages: `branch 1 of the cond`.
        equation: the cond or loop.
    """

    devices: np.ndarray
    jaxpr: Any
    name: str
    equation: Any


@dataclass(frozen=True)
class Env:
    """The environment of an equation.

    Arguments:
        mesh: the manual axes in mesh order; no axes in global view.
        lead: the number of leading dimensions of every value: more than the mesh has axes while a scalar computation is
            mapped over an array.
        active: bool `[*mesh.sizes]`: the devices that execute the equation; None: all. The others' values are computed
            and ignored.
        elsewhere: where the inactive devices are, outermost divergence first.
        recorder: collects the executed collectives.
        left: collects the blocks that `shard_map`s leave.
        found: collects the equations with something undetermined.
        other: what is decided the other way of what is undetermined.
        choices: collects the sides of choices that are taken.
        caller: the call of a function of JAX's own that the equation is in; None if it is in none.
        arithmetic: how numbers are held and computed (see `shardproof.properties.precision.arithmetic`); None: as the
            program does.
    """

    mesh: MeshCase = MeshCase((), ())
    lead: int = 0
    active: np.ndarray | None = None
    elsewhere: tuple[Elsewhere, ...] = ()
    recorder: Recorder | None = None
    left: Left | None = None
    found: Found | None = None
    other: Choice | None = None
    choices: Any = None
    caller: Any = None
    arithmetic: Any = None

    @property
    def operand_rounds(self) -> list[int] | None:
        """The rounds after which each operand of the equation under way is known, if they are recorded."""
        return None if self.recorder is None else self.recorder.operands

    def exact(self, dtype: np.dtype) -> np.dtype:
        """The dtype of sums that lose nothing that matters: its own where doubles stand for shorter floats."""
        return wide(dtype) if self.arithmetic is None else np.dtype(dtype)

    def mapped(self, dimensions: int) -> "Env":
        """With more leading dimensions, for a scalar computation over an array."""
        return dataclasses.replace(self, lead=self.lead + dimensions)

    def everywhere(self, value: np.ndarray) -> np.ndarray:
        """A view of `value` with every leading mesh dimension at its full size."""
        return np.broadcast_to(value, (*self.mesh.sizes, *value.shape[len(self.mesh.sizes) :]))


def mask_active(env: Env, mask: np.ndarray) -> np.ndarray:
    """`mask` on the active devices, False on the others."""
    if env.active is None:
        return mask
    return np.asarray(mask & env.active.reshape(env.active.shape + (1,) * (mask.ndim - env.active.ndim)))


def common_lead(env: Env, *values: np.ndarray) -> tuple[int, ...]:
    """The leading dimensions of the values broadcast together: 1 where none of them varies."""
    shapes = {value.shape[: env.lead] for value in values}
    return shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)


def broadcast_lead(env: Env, lead: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    """A view of a value with these leading dimensions."""
    shape = lead + value.shape[env.lead :]
    return value if value.shape == shape else np.broadcast_to(value, shape)


def broadcast_leads(env: Env, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Views of the values with equal leading dimensions."""
    lead = common_lead(env, *values)
    return [broadcast_lead(env, lead, value) for value in values]


def lead_index(env: Env, lead: tuple[int, ...], value: np.ndarray, trailing: int) -> list[np.ndarray]:
    """Index arrays that pick every device's own block of `value`: each `[*lead, *(1,) * trailing]`, broadcast."""
    result = []
    for dimension, size in enumerate(lead):
        shape = [1] * (len(lead) + trailing)
        shape[dimension] = size
        index = np.arange(size) if value.shape[dimension] != 1 else np.zeros(size, int)
        result.append(index.reshape(shape))
    return result


Results = np.ndarray | Sequence[np.ndarray]
Rule = Callable[..., Results]
Dimensions = Sequence[int | np.integer]  # dimension numbers may come out of NumPy

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of the primitives called `names`.

    Example:
        @rule("double")
        def double(env, equation, x):
            return x + x
    """

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def block_rank(env: Env, value: np.ndarray) -> int:
    """The number of dimensions of every device's block."""
    return value.ndim - env.lead


def block_axes(env: Env, dimensions: Dimensions) -> tuple[int, ...]:
    """Dimensions of the block as dimensions of the value that holds all blocks."""
    return tuple(env.lead + int(dimension) for dimension in dimensions)


def result_dtype(equation: Any, index: int = 0) -> np.dtype:
    """The dtype in which the program holds a result."""
    return np.dtype(equation.outvars[index].aval.dtype)


def result_shape(env: Env, equation: Any, x: np.ndarray) -> tuple[int, ...]:
    """The shape of a result over the leading dimensions of an operand."""
    return x.shape[: env.lead] + tuple(equation.outvars[0].aval.shape)
