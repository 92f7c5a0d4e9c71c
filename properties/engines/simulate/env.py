"""Where an equation is evaluated: in global view, or on the blocks of a mesh, by all devices or some of them.

A value is one ndarray `[*lead, *block]`. In global view there are no leading dimensions. Inside
`shard_map` there is one per manual mesh axis, in mesh order, and its size is that of the axis, or 1
where the value is the same on all devices along it. So a value that no device-dependent
computation has touched is held once, however many devices there are, and NumPy's broadcasting
does the rest.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.record import Recorder
from shardproof.properties.engines.simulate.undetermined import Choice, Found, Left

SETS = "_data_sets"
"""The axis along which data sets are run at once, as if each were on devices of its own; no program names it."""


@dataclass(frozen=True)
class Elsewhere:
    """Devices that are not where the others are: in another branch of a cond, or past the end of a loop.

    Arguments:
        devices: bool `[*mesh.sizes]`, True for the devices meant.
        jaxpr: what they execute in the meantime; None if nothing.
        name: where that is, for messages: `branch 1 of the cond`.
        equation: the equation that made them part.
    """

    devices: np.ndarray
    jaxpr: Any
    name: str
    equation: Any

    @property
    def place(self) -> str:
        """Where that is, with its line in the program."""
        return f"{self.name} ({location(self.equation)})"


@runtime_checkable
class Arithmetic(Protocol):
    """Numbers that are not held as the program holds them."""

    @property
    def repeats(self) -> bool:
        """Whether the same equation gives the same results again, so that they may be kept."""

    def held(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the elements that hold numbers of a traced one."""

    def constant(self, value: np.ndarray) -> np.ndarray:
        """A constant of the program, behind a leading dimension of size 1, or of that of the first one."""

    def replica(self, x: np.ndarray, dimension: int) -> np.ndarray:
        """One of the replicas along a leading dimension, of size 1 there."""

    def decided(self, env: "Env", holds: np.ndarray, equation: Any) -> np.ndarray:
        """A loop's predicate `[*lead]`, as booleans."""

    def run(self, env: "Env", rule: Any, equation: Any, operands: list[np.ndarray]) -> Any:
        """The results of an equation, of which `rule` is the rule in the program's own arithmetic."""


@dataclass(frozen=True)
class Env:
    """What is around an equation.

    Arguments:
        mesh: the manual axes in mesh order; no axes in global view.
        lead: the number of leading dimensions of every value. More than the mesh has axes
            while a scalar computation is mapped over an array.
        active: bool `[*mesh.sizes]`: the devices that execute the equation; None if all do. The
            others' values are computed too, and nobody looks at them.
        elsewhere: where the inactive devices are, outermost divergence first.
        recorder: what the executed collectives are written to.
        left: what the blocks that `shard_map`s leave are written to.
        found: what the equations that leave something open are written to.
        other: what is decided the other way of what JAX leaves open.
        arithmetic: how numbers are held and computed; None: as the program does.
    """

    mesh: MeshCase = MeshCase((), ())
    lead: int = 0
    active: np.ndarray | None = None
    elsewhere: tuple[Elsewhere, ...] = ()
    recorder: Recorder | None = None
    left: Left | None = None
    found: Found | None = None
    other: Choice | None = None
    arithmetic: Arithmetic | None = None

    @property
    def operand_rounds(self) -> list[int] | None:
        """The rounds after which each operand of the equation under way is known, if they are recorded."""
        return None if self.recorder is None else self.recorder.operands

    def exact(self, dtype: np.dtype) -> np.dtype:
        """In what sums of a dtype lose nothing that matters: doubles that stand for shorter floats have room enough."""
        return wide(dtype) if self.arithmetic is None else np.dtype(dtype)

    def anywhere(self, mask: np.ndarray) -> np.ndarray:
        """Whether a mask `[*lead, *block]` holds anywhere in a data set: `[*lead]`, broadcast."""
        apart = int(self.mesh.axis_names[:1] == (SETS,))
        found = np.asarray(mask.any(axis=tuple(range(apart, mask.ndim))))
        return found.reshape((-1,) * apart + (1,) * (self.lead - apart))

    def mapped(self, dimensions: int) -> "Env":
        """For scalar computations over an array: that many leading dimensions more."""
        return dataclasses.replace(self, lead=self.lead + dimensions)

    def diverged(self, active: np.ndarray, elsewhere: Elsewhere) -> "Env":
        """For the devices in `active` only."""
        return dataclasses.replace(self, active=active, elsewhere=(*self.elsewhere, elsewhere))

    def everywhere(self, value: np.ndarray) -> np.ndarray:
        """A view of `value` with every leading mesh dimension at its full size."""
        return np.broadcast_to(value, (*self.mesh.sizes, *value.shape[len(self.mesh.sizes) :]))


def common_lead(env: Env, *values: np.ndarray) -> tuple[int, ...]:
    """The leading dimensions that the values have together: 1 where none of them varies."""
    shapes = {value.shape[: env.lead] for value in values}
    return shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)


def spread(env: Env, lead: tuple[int, ...], value: np.ndarray) -> np.ndarray:
    """A view of a value with these leading dimensions."""
    shape = lead + value.shape[env.lead :]
    return value if value.shape == shape else np.broadcast_to(value, shape)


def lead_index(env: Env, lead: tuple[int, ...], value: np.ndarray, trailing: int) -> list[np.ndarray]:
    """Index arrays that pick every device's own block of `value`: each `[*lead, *(1,) * trailing]`, broadcast.

    Where `value` is held once for all devices along an axis, they all pick that one.
    """
    result = []
    for dimension, size in enumerate(lead):
        shape = [1] * (len(lead) + trailing)
        shape[dimension] = size
        index = np.arange(size) if value.shape[dimension] != 1 else np.zeros(size, int)
        result.append(index.reshape(shape))
    return result
