"""The sides of data-dependent choices that runs of a program took, by the call in the user's source that makes them.

A choice that a function of JAX makes on its own, as `jnp.take` does of an index, is not counted.
"""

import ast
import functools
import linecache
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.extend import core

from shardproof.properties.engines.simulate.env import Env, mask_active
from shardproof.properties.engines.simulate.liveness import equations, open_jaxpr, subjaxprs

JAX, SUITE = (f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(__file__).parents[3]))
"""The folders of JAX and of this suite, whose lines are not the user's."""

Sides = dict[str, dict[str, bool]]
"""For each call with its place, whether each of its sides was taken: `{"jnp.where(…) at f.py:3": {"…": True}}`."""

CONDITIONAL, SWITCHED = ("select_n",), ("cond", "select_n")
MADE_BY = {
    "where": CONDITIONAL, "select": CONDITIONAL, "select_n": CONDITIONAL, "fmin": CONDITIONAL, "fmax": CONDITIONAL,
    "cond": SWITCHED, "switch": SWITCHED, "piecewise": SWITCHED, "while_loop": ("while",), "fori_loop": ("while",),
    "maximum": ("max",), "minimum": ("min",), "max": ("max",), "min": ("min",), "clip": ("max", "min", "clamp"),
    "clamp": ("clamp",), "": ("mul",), "multiply": ("mul",),
}  # fmt: skip
"""The functions of JAX that choose, and their primitives: a `cond` under `vmap` is a `select_n`; none: an operator.

They go by name, since the equations of `jnp.take`, which wraps an index, are those of a user's own `jnp.where`.
"""

CASTS = ("pvary", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze")
"""Operations of which the result is another type, or shape, of the operand."""

CONDITION = ("a false condition", "a true condition")
ABOVE, BELOW = "a number above its upper bound", "a number below its lower bound"

LONGEST = 60
"""The most characters of a call that are quoted."""


class Choices:
    """The sides that were taken in runs of one program, and its sums that wrapped."""

    def __init__(self, program: Any = None) -> None:
        self.sides: Sides = {}
        self.wraps: dict[str, None] = {}  # in words, with their places
        self._program = program
        # by the call around an equation, and itself: the name of what is called, and its sides; None: nothing is left
        self._known: dict[tuple[int, int], tuple[str, dict[str, bool]] | None] = {}

    @functools.cached_property
    def _made(self) -> dict[Any, Any]:
        """The equation that makes each variable."""
        return {v: e for e in equations(self._program) for v in e.outvars}

    def note(self, env: Env, equation: Any, operands: Sequence[np.ndarray]) -> None:
        """Adds the sides that one execution of an equation takes on the devices that execute it."""
        key = id(env.caller), id(equation)
        if key not in self._known:
            self._known[key] = self._find(env.caller or equation, equation)
        if (found := self._known[key]) is None:
            return
        name, taken = found
        if equation.primitive.name == "mul":
            operands = [operands[self._is_mask(equation.invars[1])]]
        for side, mask in SIDES[equation.primitive.name](name, equation, *operands):
            taken[side] = taken.get(side, False) or bool(mask_active(env, np.asarray(mask)).any())
        if all(taken.values()):
            self._known[key] = None

    def note_sum(self, env: Env, equation: Any, x: np.ndarray, *_: np.ndarray) -> None:
        """Adds a sum of signed whole numbers, over devices or dimensions of a block, that exceeds its dtype."""
        dtype, axes = equation.outvars[0].aval.dtype, equation.params["axes"]
        if dtype.kind != "i" or equation.params.get("axis_index_groups") is not None:
            return
        devices = [env.mesh.axis_names.index(name) for name in axes if isinstance(name, str)]
        places = (*devices, *(x.ndim - equation.invars[0].aval.ndim + i for i in axes if not isinstance(i, str)))
        total = (env.everywhere(x) if devices else x).sum(axis=places, dtype=np.float64)
        limits = ml_dtypes.iinfo(dtype)
        fits = limits.min <= total.min(initial=0) and total.max(initial=0) <= limits.max
        if not fits and (place := find_call((env.caller or equation).source_info.traceback)[1]):
            self.wraps[f"a sum of {dtype} wraps, and the results are right all the same: {place}"] = None

    def _find(self, called: Any, equation: Any) -> tuple[str, dict[str, bool]] | None:
        primitive = equation.primitive.name
        if primitive == "mul" and not (called is equation and any(map(self._is_mask, equation.invars))):
            return None
        name, place = find_call(called.source_info.traceback)
        if place and name not in MADE_BY and primitive != "mul":  # of another name, or called by `jax.tree.map`
            name = str(called.params.get("name", "")).lstrip("_")
        by_python = primitive in SWITCHED and self._is_constant(called, equation)
        if not place or primitive not in MADE_BY.get(name, ()) or by_python:
            return None
        return name, self.sides.setdefault(place, {})

    def _origin(self, x: Any) -> Any:
        """The variable, or literal, of which an operand is another type or shape."""
        made = None if isinstance(x, core.Literal) else self._made.get(x)
        return x if made is None or made.primitive.name not in CASTS else self._origin(made.invars[0])

    def _is_mask(self, x: Any) -> bool:
        """True if an operand is a condition in numbers."""
        return not isinstance(x, core.Literal) and x.aval.dtype != bool and self._origin(x).aval.dtype == bool

    def _is_constant(self, called: Any, equation: Any) -> bool:
        """True if a number of Python decides, as a keyword argument of the function."""
        x = self._origin(equation.invars[0])
        inner = [] if called is equation else open_jaxpr(next(subjaxprs(called)))[0].invars
        return isinstance(self._origin(called.invars[inner.index(x)]) if x in inner else x, core.Literal)


def is_jax(jaxpr: Any) -> bool:
    """True of the jaxpr of a function of JAX's own."""
    return (open_jaxpr(jaxpr)[0].debug_info.func_filename or "").startswith(JAX)


def find_call(traceback: Any) -> tuple[str, str]:
    """The name of the function that the innermost line of the user's calls, and the call with its place; else empty.

    A line of this suite is none, but in its tests.
    """
    for code, at in zip(*traceback.raw_frames(), strict=True) if traceback else ():
        if code.co_filename.startswith(JAX):
            continue
        if code.co_filename.startswith(SUITE) and not Path(code.co_filename).name.startswith("test_"):
            break
        first, start, last, end = traceback.code_addr2location(code, at)
        lines = [linecache.getline(code.co_filename, i).encode() for i in range(first, last + 1)]  # columns count bytes
        lines[-1] = lines[-1][:end]
        lines[0] = lines[0][start:]
        text = " ".join(b"".join(lines).decode(errors="replace").split())
        shown = text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"
        return _called(text), f"`{shown}` at {Path(code.co_filename).name}:{first} ({code.co_name})"
    return "", ""


def _called(text: str) -> str:
    """The last name of the function that an expression calls; empty if it is no call."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    function = call.func if isinstance(call, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


Taken = list[tuple[str, np.ndarray | np.bool_]]
"""Sides, with where they are taken."""


def _of_number(name: str, number: np.ndarray, of: int) -> Taken:
    if name in ("cond", "switch", "piecewise") and number.dtype == bool:  # under `vmap`, what each branch gets
        return []
    if name in ("fmin", "fmax"):
        word = "smaller" if name == "fmin" else "larger"
        return [(f"a {word} second operand", ~number), (f"a {word} first operand", number)]
    if name in ("select", "piecewise") and number.dtype != bool:
        which = ["all conditions false", *(f"condition {i} as the first true one" for i in range(1, of))]
        return [(side, number == i) for i, side in enumerate(which)]
    if of == 2 and name != "switch":
        return [(side, number == i) for i, side in enumerate(CONDITION)]
    return [(f"an index of {i}", number == i) for i in range(of)]


def _of_extreme(name: str, x: np.ndarray, y: np.ndarray, *, larger: bool) -> Taken:
    first, second = (x > y, y > x) if larger else (x < y, y < x)
    if name == "clip":  # whose bound comes first
        return [(BELOW if larger else ABOVE, first)]
    word = "larger" if larger else "smaller"
    return [(f"a {word} first operand", first), (f"a {word} second operand", second)]


def _of_branches(name: str, equation: Any, index: np.ndarray, *_: np.ndarray) -> Taken:
    count = len(equation.params["branches"])
    return _of_number(name, np.clip(index.astype(np.int64), 0, count - 1), count)


SIDES: dict[str, Callable[..., Taken]] = {
    "select_n": lambda name, equation, which, *cases: _of_number(name, which, len(cases)),
    "cond": _of_branches,
    "while": lambda name, equation, holds: _of_number(name, holds, 2),
    "max": lambda name, equation, x, y: _of_extreme(name, x, y, larger=True),
    "min": lambda name, equation, x, y: _of_extreme(name, x, y, larger=False),
    "clamp": lambda name, equation, low, x, high: [(BELOW, x < low), (ABOVE, x > high)],
    "mul": lambda name, equation, mask: [("a zero in its mask", mask == 0), ("a one in its mask", mask != 0)],
}
"""The sides of each primitive that chooses; of a `while`, by its predicate."""

CHOOSE = SIDES.keys() - {"while"}
"""The primitives that choose by their operands."""

ADD_UP = ("psum", "psum_invariant", "reduce_sum")
"""The primitives that may wrap."""
