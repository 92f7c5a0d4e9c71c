"""Draws arrays, layouts and sizes for the operations of a program."""

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, TypeVar

from hypothesis import strategies as st

from shardproof.properties.conformance.program import INEXACT, Input, Spec, Value

T = TypeVar("T")

KINDS = {
    "float": ("float32", "bfloat16", "float16"),
    "integer": ("int32", "int8", "uint8", "uint32", "int16", "int4", "uint4"),
    "complex": ("complex64",),
}
KINDS["number"] = (*KINDS["float"], *KINDS["integer"])
KINDS["any"] = (*KINDS["number"], "bool", "complex64", "float8_e4m3fn")
KINDS["bits"] = (*KINDS["integer"], "bool")
KINDS["ring"] = (*KINDS["number"], "complex64")
KINDS["ordered"] = (*KINDS["number"], "bool")
"""The dtypes of a kind."""

USUAL = ("float32", "int32")
"""The dtypes of most programs; one of these is drawn as often as one of the kind."""

MOST = 600
"""The most elements of an array."""


class Unsuited(Exception):
    """The drawn parameters make no program: others are drawn."""


class Drawing:
    """Draws the operands of an operation, from the values so far or as new inputs, and its parameters.

    Arguments:
        draw: draws from a strategy.
        mesh: the axes of the mesh with their sizes.
        axes: whether they are `auto` or `explicit`.
        lone: whether every operand is a new input.
    """

    def __init__(self, draw: Callable[[Any], Any], mesh: dict[str, int], axes: str, *, lone: bool) -> None:
        self.draw, self.mesh, self.axes, self.lone = draw, mesh, axes, lone
        self.inputs: list[Input] = []
        self.values: dict[str, Value] = {}
        self.inexact_allowed = True
        total = math.prod(mesh.values())
        n = total if total < 6 else next(iter(mesh.values()))
        even = sorted({size for size in (total, 2 * total, n, 2 * n, 3 * n, 4 * n) if size <= 16})
        self.sizes = st.sampled_from(even) | st.sampled_from((1, 2, 3, 4, 5, 6, 7, 9))

    def integer(self, least: int, most: int) -> int:
        """A whole number between two, inclusive."""
        if most < least:
            raise Unsuited
        return self.draw(st.integers(least, most))

    def one_of(self, choices: Sequence[T]) -> T:
        """One of some; the first is the simplest."""
        if not choices:
            raise Unsuited
        return choices[self.integer(0, len(choices) - 1)]

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.integer(1, one_in) == one_in

    def size(self) -> int:
        """A dimension, once in many times an empty one."""
        return 0 if self.chance(40) else self.draw(self.sizes)

    def shape(self, least: int = 1, most: int = 3) -> tuple[int, ...]:
        """A shape of `least` to `most` dimensions."""
        shape = [self.size() for _ in range(self.integer(least, most))]
        while math.prod(shape) > MOST:
            shape[max(range(len(shape)), key=shape.__getitem__)] = 2
        return tuple(shape)

    def permutation(self, count: int) -> list[int]:
        """A permutation of the first `count` whole numbers."""
        return list(self.draw(st.permutations(range(count))))

    def axis(self, name: str) -> int:
        """A dimension of a value."""
        return self.integer(0, len(self[name].shape) - 1)

    def subset(self, count: int, least: int = 1) -> list[int]:
        """Some of the first whole numbers, in ascending order."""
        chosen = [i for i in range(count) if self.chance(2)]
        return chosen if len(chosen) >= least else list(range(count))[: max(least, 1)]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def array(
        self,
        least: int = 1,
        most: int = 3,
        *,
        of: str = "any",
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        where: Callable[[tuple[int, ...]], bool] = lambda shape: True,
        data: tuple[int, int] | None = None,
    ) -> str:
        """The name of an operand of such a type: a value of the program, or a new input.

        Arguments:
            least: the fewest dimensions.
            most: the most dimensions.
            of: the kind of its dtype, if `dtype` is not given.
            dtype: its dtype.
            shape: its shape.
            where: what its shape must be like.
            data: the least and the greatest element: then it is a new input.
        """
        dtypes = KINDS[of] if dtype is None else (dtype,)
        fits = [
            value.name
            for value in self.values.values()
            if value.dtype in dtypes
            and (value.exact or self.inexact_allowed)
            and (value.shape == tuple(shape) if shape is not None else least <= len(value.shape) <= most)
            and where(value.shape)
        ]
        if fits and data is None and not self.lone and not self.chance(4):
            return self.one_of(fits[::-1])
        made = tuple(shape) if shape is not None else self.shape(least, most)
        if not where(made):
            raise Unsuited
        usual = [one for one in USUAL if one in dtypes]
        return self.new(made, self.one_of(usual if usual and self.chance(2) else dtypes), data)

    def new(
        self, shape: tuple[int, ...], dtype: str, data: tuple[int, int] | None = None, spec: Spec | None = None
    ) -> str:
        """The name of a new input, in a layout or any."""
        name = f"x{len(self.inputs)}"
        spec = self.layout(shape) if spec is None else spec
        elements: str | tuple[int, int] = data or ("distinct" if self.chance(2) else (-3, 4))
        if dtype.startswith("u") and not isinstance(elements, str):
            elements = max(elements[0], 0), elements[1]
        used = {axis for entry in spec for axis in entry or ()}
        free = [axis for axis in self.mesh if axis not in used]
        reduces = self.axes == "explicit" and free and dtype in INEXACT and self.chance(12)
        reduced = (self.one_of(free),) if reduces else ()
        self.inputs.append(Input(name, shape, dtype, spec, elements, self.integer(0, 3), reduced))
        self.values[name] = Value(name, shape, dtype)
        return name

    def layout(self, shape: Sequence[int], *, uneven: bool = False, choices: bool = False) -> Spec:
        """A layout of an array; `uneven` parts are allowed, or the compiler's `choices`."""
        left = list(self.mesh)
        spec: Spec = []
        for size in shape:
            tuples = [list(p) for count in (1, 2) for p in permutations(left, count)]
            fitting = [axes for axes in tuples if uneven or (size % math.prod(self.mesh[axis] for axis in axes) == 0)]
            taken = self.one_of(fitting) if fitting and not self.chance(3) else None
            if taken is None and choices and self.chance(3):
                spec.append("*")
                continue
            spec.append(taken)
            left = [axis for axis in left if axis not in (taken or ())]
        return spec

    def out(self, shape: Sequence[int]) -> Spec | None:
        """A value of `out_sharding` on explicit axes; None: the layout follows from those of operands."""
        return self.layout(shape) if self.axes == "explicit" and self.chance(3) else None
