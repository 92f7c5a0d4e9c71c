"""The equations of a traced program: all of them, where their numbers go, and which sides of choices runs take.

A choice that a function of JAX makes on its own, as `jnp.take` does of an index, is not counted.
"""

import ast
import functools
import linecache
import math
import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.extend import core

from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import Env, mask_active
from shardproof.properties.engines.simulate.errors import UNKNOWN, location

ELEMENTS = 250
"""As many numbers count as one more equation, where each is rounded in many samples."""

MULTIPLIED = 64
"""As many products that a matrix product adds up count as one more number."""

STEPS = 5_000
"""The most equations, as `steps_of` counts them, of all data sets of a case."""


def open_jaxpr(jaxpr: Any) -> tuple[Any, list[Any]]:
    """An open jaxpr and its constants, from a closed or an open one."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, closed or open."""
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def location_in(jaxpr: Any, equation: Any) -> str:
    """The line of an equation of a jaxpr, or where none of it is the user's, that of the innermost call around it."""
    for outer in open_jaxpr(jaxpr)[0].eqns:
        if outer is equation:
            return location(equation)
        for inner in subjaxprs(outer):
            if any(one is equation for one in equations(inner)):
                found = location_in(inner, equation)
                return location(outer) if found == UNKNOWN else found
    return UNKNOWN


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr in program order, each followed by those of its inner jaxprs."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        yield equation
        for inner in subjaxprs(equation):
            yield from equations(inner)


def scan_counts(equation: Any) -> tuple[int, int]:
    """The numbers of a scan's operands that are constants, and that are carried."""
    if "num_consts" in equation.params:
        return equation.params["num_consts"], equation.params["num_carry"]
    constants, carried, _ = equation.params["ft_in"].unpack()
    return len(list(constants)), len(list(carried))


def steps_of(jaxpr: Any, devices: int) -> float:
    """The time to interpret a program, in equations of few numbers.

    A scan counts in every iteration; a `while` once, since the trace does not have its number of iterations.
    """
    total = 0.0
    for equation in open_jaxpr(jaxpr)[0].eqns:
        elements = sum(math.prod(getattr(one.aval, "shape", ())) for one in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            elements *= 1 + math.prod(equation.invars[0].aval.shape[d] for d in contracted) / MULTIPLIED
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += 1 + elements * devices / ELEMENTS + times * sum(steps_of(one, devices) for one in subjaxprs(equation))
    return total


def widest(jaxpr: Any) -> int:
    """The most numbers of one value of a program, on all devices together; at least 1."""
    most = 1
    for equation in open_jaxpr(jaxpr)[0].eqns:
        manual = equation.params.get("newly_manual_axes", ())
        devices = math.prod(equation.params["mesh"].shape[name] for name in manual)
        sizes = [math.prod(getattr(v.aval, "shape", ())) for v in (*equation.invars, *equation.outvars)]
        most = max([most, *sizes, *(devices * widest(inner) for inner in subjaxprs(equation))])
    return most


def variables(atoms: Any) -> list[Any]:
    """The atoms that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


class Flow:
    """Which variables' numbers go on in which, over the borders of inner programs.

    Arguments:
        goes_on: the primitives through which those of the operands go on in the first result, as they do where they are
            multiplied with a scalar; None: in all results, through every primitive.
    """

    def __init__(self, jaxpr: Any, goes_on: Container[str] | None = None) -> None:
        self.goes_on = goes_on
        self.onward: dict[Any, set[Any]] = defaultdict(set)
        self.back: dict[Any, set[Any]] = defaultdict(set)
        self.equations: list[Any] = []  # those that are no calls
        self._read(open_jaxpr(jaxpr)[0])

    def _read(self, body: Any) -> None:
        for equation in body.eqns:
            name, inner = equation.primitive.name, [open_jaxpr(one)[0] for one in subjaxprs(equation)]
            if inner and not name.startswith(("scatter", "reduce", "select_and")):
                for one in inner:
                    self._read(one)
                self._call(name, equation, inner)
                continue
            self.equations.append(equation)
            scaled = name in ("mul", "div") and any(not variables([v]) or not v.aval.shape for v in equation.invars)
            if self.goes_on is None or name in self.goes_on or scaled:
                for result in equation.outvars[: None if self.goes_on is None else 1]:
                    self._move(equation.invars, [result] * len(equation.invars))

    def _call(self, name: str, equation: Any, inner: list[Any]) -> None:
        given, params = equation.invars, equation.params
        if name == "while":
            first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            given, inner = given[first:], inner[-1:]
            self._move(inner[0].outvars, inner[0].invars[last - first :])
        if name == "scan":
            count, carry = scan_counts(equation)
            self._move(inner[0].outvars[:carry], inner[0].invars[count : count + carry])
        for one in inner:  # a branch's operands come behind the index
            self._move(given[len(given) - len(one.invars) :], one.invars)
            self._move(one.outvars, equation.outvars)

    def _move(self, sources: Iterable[Any], targets: Iterable[Any]) -> None:
        for source, target in zip(sources, targets, strict=False):
            if variables([source]):
                self.onward[source].add(target)
                self.back[target].add(source)


def reached(sources: Iterable[Any], edges: Mapping[Any, set[Any]]) -> set[Any]:
    """All variables that some lead to, themselves included."""
    found, left = set(), list(sources)
    while left:
        v = left.pop()
        if v not in found:
            found.add(v)
            left += edges.get(v, ())
    return found


CALLS = frozenset({"jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"}) | {
    "composite", "linear_call", "closed_call",
}  # fmt: skip
"""Primitives that only call a jaxpr with their operands."""


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
    "<": ("lt", "le", "gt", "ge"),
}  # fmt: skip
"""The functions of JAX that choose, and their primitives: a `cond` under `vmap` is a `select_n`; none: an operator.
"<" is a comparison.

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
        elif equation.primitive.name in BY_ELEMENT:
            operands = aligned(env, equation, tuple(operands))
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
        others = name not in MADE_BY and not hasattr(jax.numpy, name)  # the user's own name, or `jax.tree.map`
        if place and others and primitive != "mul":
            name = str(called.params.get("name", "")).lstrip("_")
        by_python = primitive in SWITCHED and self._is_constant(called, equation)
        if primitive in MADE_BY["<"]:  # of a whole number with one of Python
            constant = [self._is_constant(called, equation, i) for i in (0, 1)]
            by_python = constant[0] == constant[1] or equation.invars[0].aval.dtype.kind not in "iu"
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

    def _is_constant(self, called: Any, equation: Any, operand: int = 0) -> bool:
        """True if an operand is a number of Python, such as a keyword argument of the function."""
        x = self._origin(equation.invars[operand])
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
    """The last name of the function that an expression calls; "<" of a comparison; empty if it is neither."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(call, ast.Compare):
        return "<"
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
    return _of_number(name, np.asarray(np.clip(index.astype(np.int64), 0, count - 1)), count)


SIDES: dict[str, Callable[..., Taken]] = {
    "select_n": lambda name, equation, which, *cases: _of_number(name, which, len(cases)),
    "cond": _of_branches,
    "while": lambda name, equation, holds: _of_number(name, holds, 2),
    "max": lambda name, equation, x, y: _of_extreme(name, x, y, larger=True),
    "min": lambda name, equation, x, y: _of_extreme(name, x, y, larger=False),
    "clamp": lambda name, equation, low, x, high: [(BELOW, x < low), (ABOVE, x > high)],
    "mul": lambda name, equation, mask: [("a zero in its mask", mask == 0), ("a one in its mask", mask != 0)],
    **dict.fromkeys(MADE_BY["<"], lambda name, equation, x, y: [("equal sides", x == y)]),
}
"""The sides of each primitive that chooses; of a `while`, by its predicate."""

BY_ELEMENT = ("max", "min", "clamp", *MADE_BY["<"])
"""Those that choose, or compare, elements of their operands."""

CHOOSE = SIDES.keys() - {"while"}
"""The primitives that choose by their operands."""

ADD_UP = ("psum", "psum_invariant", "reduce_sum")
"""The primitives that may wrap."""
