"""The sides of data-dependent choices that runs of a program took, by the call in the user's source that makes them.

A choice that a function of JAX makes on its own, as `jnp.take` does of an index, is not counted.
"""

import ast
import linecache
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardproof.properties.engines.simulate.env import Env, mask_active
from shardproof.properties.engines.simulate.liveness import open_jaxpr

JAX, SUITE = (f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(__file__).parents[3]))
"""The folders of JAX and of this suite, whose lines are not the user's."""

Sides = dict[str, dict[str, bool]]
"""For each call with its place, whether each of its sides was taken: `{"jnp.where(…) at f.py:3": {"…": True}}`."""

MADE_BY = {
    "where": ("select_n",), "select": ("select_n",), "select_n": ("select_n",), "cond": ("cond", "select_n"),
    "switch": ("cond", "select_n"), "while_loop": ("while",), "fori_loop": ("while",), "maximum": ("max",),
    "minimum": ("min",), "max": ("max",), "min": ("min",), "clip": ("max", "min", "clamp"), "clamp": ("clamp",),
}  # fmt: skip
"""The functions of JAX that choose, and their primitives: a `cond` under `vmap` is a `select_n`."""

CONDITION = ("a false condition", "a true condition")
ABOVE, BELOW = "a number above its upper bound", "a number below its lower bound"

LONGEST = 60
"""The most characters of a call that are quoted."""


class Choices:
    """The sides that were taken in runs of one program."""

    def __init__(self) -> None:
        self.sides: Sides = {}
        # by the call around an equation, and itself: the name of what is called, and its sides; None: nothing is left
        self._known: dict[tuple[int, int], tuple[str, dict[str, bool]] | None] = {}

    def note(self, env: Env, equation: Any, operands: Sequence[np.ndarray]) -> None:
        """Adds the sides that one execution of an equation takes on the devices that execute it."""
        key = id(env.caller), id(equation)
        if key not in self._known:
            self._known[key] = self._find(env.caller or equation, equation.primitive.name)
        if (found := self._known[key]) is None:
            return
        name, taken = found
        for side, mask in SIDES[equation.primitive.name](name, equation, *operands):
            taken[side] = taken.get(side, False) or bool(mask_active(env, np.asarray(mask)).any())
        if all(taken.values()):
            self._known[key] = None

    def _find(self, called: Any, primitive: str) -> tuple[str, dict[str, bool]] | None:
        name, place = find_call(called.source_info.traceback)
        if place and name not in MADE_BY:  # of another name, or called by `jax.tree.map`
            name = str(called.params.get("name", "")).lstrip("_")
        return (name, self.sides.setdefault(place, {})) if primitive in MADE_BY.get(name, ()) else None


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
    if name in ("cond", "switch") and number.dtype == bool:  # under `vmap`, which of its operands each branch gets
        return []
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
}
"""The sides of each primitive that chooses; of a `while`, by its predicate."""

CHOOSE = SIDES.keys() - {"while"}
"""The primitives that choose by their operands."""
