"""The environment of an equation, and the table of rules.

A value is one ndarray `[*lead, *block]`. In global view there are no leading dimensions. Inside `shard_map` there is
one per manual mesh axis, in mesh order, of the size of the axis, or 1 where the value is the same on all devices along
it. So a value that does not depend on the device is held once, and NumPy broadcasts it. A rule, one small function per
primitive, takes the environment, the equation and the operands, and returns the result or results in the same form.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.record import Recorder

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
