"""Where an equation is evaluated, by which rule, and what it may leave open.

A value is one ndarray `[*lead, *block]`. In global view there are no leading dimensions. Inside
`shard_map` there is one per manual mesh axis, in mesh order, and its size is that of the axis, or 1
where the value is the same on all devices along it. So a value that no device-dependent
computation has touched is held once, however many devices there are, and NumPy's broadcasting
does the rest. A rule, one small function per primitive, is called with the environment, the equation and the operands,
and returns the result or results in the same form.

What JAX leaves open no result may depend on, though the machine at hand always decides it the same way. `jnp.empty` and
`lax.empty` promise no contents: XLA:CPU happens to hand out zeros, an accelerator whatever the last program left. Of
two updates of one place a scatter may write either last (the documentation of `jax.lax.scatter`: "they may be applied
in any order"), or lose one of them, where `unique_indices` promised that there are no two. Where `indices_are_sorted`
promised what is not so, anything may be read or written: here, what sorted indices would name. So a program that meets
one of these runs twice, with two different contents, or orders: a result that differs between the two has read what
nothing determines. What is written over, or selected away, does not matter.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate.errors import OrderDependent, UnwrittenRead, location
from shardproof.properties.engines.simulate.exchange import device_name, nan_equal
from shardproof.properties.engines.simulate.record import Recorder

ALLOCATES = ("empty", "empty2")

Choice = Literal["contents", "order", "sorting"]
"""What is left open: the contents of memory, the order of updates, or what indices mean that are not sorted."""

Found = dict[tuple[Choice, int], Any]
"""The equations that leave something open, by what that is and their identity."""

Left = list[tuple[MeshCase, np.ndarray]]
"""The blocks that each `shard_map` of a program left on its devices."""


def first_difference(one: np.ndarray, other: np.ndarray) -> tuple[int, ...] | None:
    """The first place at which two arrays of the same shape differ, NaN for NaN."""
    differing = np.argwhere(~nan_equal(one, other))
    return tuple(int(i) for i in differing[0]) if len(differing) else None


def check_determined(
    choice: Choice,
    found: Sequence[Any],
    results: Sequence[np.ndarray],
    again: Sequence[np.ndarray],
    left: Callable[[Choice | None], Left],
) -> None:
    """The results do not depend on what is left open.

    Arguments:
        choice: what is left open.
        found: the equations that leave it open.
        results: what the program gives if it is decided one way.
        again: what it gives if it is decided the other way.
        left: what the `shard_map`s of the program leave, if something, or nothing, is decided the other way.

    Raises:
        UnwrittenRead: naming the first element that differs, its device, and what allocated the memory.
        OrderDependent: the same, and what scatters or gathers.
    """
    for number, (one, other) in enumerate(zip(results, again, strict=True)):
        at = first_difference(one, other)
        if at is None:
            continue
        places, device = ", ".join(dict.fromkeys(map(location, found))), first_device(left(None), left(choice))
        depends, values = f"result {number} depends on", f"element {list(at)} is {one[at]} or {other[at]}"
        if choice == "contents":
            told = f"memory that was never written: {values}, as that memory is{device}; allocated at {places}"
            raise UnwrittenRead(f"{depends} {told}")
        if choice == "sorting":
            told = f"indices that are not sorted, and indices_are_sorted promised it: {values}{device}"
            raise OrderDependent(f"{depends} {told}; used at {places}")
        promised = any(equation.params["unique_indices"] for equation in found)
        why = "and unique_indices promised that there are no two" if promised else "which may be either"
        told = f"which of two updates of one place a scatter applies last, {why}: {values}{device}"
        raise OrderDependent(f"{depends} {told}; scattered at {places}")


def first_device(one: Left, other: Left) -> str:
    """The first device whose block differs between the runs, for a message; nothing if no block does."""
    for (mesh, x), (_, y) in zip(one, other, strict=False):
        at = first_difference(*np.broadcast_arrays(x, y))
        if at is not None:
            rank = len(mesh.sizes)
            return f", first on device {device_name(mesh, at[:rank])} in element {list(at[rank:])} of its block"
    return ""


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


@runtime_checkable
class Arithmetic(Protocol):
    """Numbers that are not held as the program holds them."""

    @property
    def repeats(self) -> bool:
        """Whether the same equation gives the same results again, so that they may be kept."""

    @property
    def planned(self) -> str:
        """How the steps of a program are planned (see `plan_of`)."""

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

    def mapped(self, dimensions: int) -> "Env":
        """For scalar computations over an array: that many leading dimensions more."""
        return dataclasses.replace(self, lead=self.lead + dimensions)

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


def together(env: Env, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Views of the values with the leading dimensions that they have together."""
    lead = common_lead(env, *values)
    return [spread(env, lead, value) for value in values]


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


def shifted(env: Env, dimensions: Dimensions) -> tuple[int, ...]:
    """Dimensions of the block, as dimensions of the value that holds all blocks."""
    return tuple(env.lead + int(dimension) for dimension in dimensions)


def result_dtype(equation: Any, index: int = 0) -> np.dtype:
    """The dtype in which the program holds a result."""
    return np.dtype(equation.outvars[index].aval.dtype)


def result_shape(env: Env, equation: Any, x: np.ndarray) -> tuple[int, ...]:
    """The shape of a result over the leading dimensions of an operand."""
    return x.shape[: env.lead] + tuple(equation.outvars[0].aval.shape)
