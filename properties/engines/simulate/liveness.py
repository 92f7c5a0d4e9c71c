"""Programs inside of programs: all equations of a jaxpr, where its numbers go, and the bytes that it holds.

The bytes are those that a device holds at one time if a compiler arranges the program well. Four things make that less
than all values from the equation that makes them to the last that reads them:

- a value with only another type stays where it is (`RENAMED`);
- a part of a block, or a block in another order, is read in place (`VIEWS`);
- a product whose only use is an addition, or a write into a larger block, is made there (`INTO`);
- a result takes the place of an operand of the same size that nothing reads later (`IN_PLACE`).

Arguments stay: they are not donated. A loop holds one copy of its carry. Scalars, mostly indices, count nothing:
registers hold them.
"""

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from jax.extend import core

from shardproof.properties.engines.simulate.env import bytes_of

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


def array_bytes(variable: Any) -> int:
    """The bytes of an array; none of a scalar."""
    return bytes_of(variable.aval) if getattr(variable.aval, "shape", ()) else 0


def inline_calls(body: Any, is_call: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """The equations of a body with its calls inlined, in new variables but for the arguments, and its results.

    Arguments:
        is_call: whether an equation with a single inner jaxpr is a call of that.
    """
    inlined: list[Any] = []

    def inline(body: Any, names: dict[Any, Any]) -> list[Any]:
        def resolve(atoms: Any) -> list[Any]:
            return [atom if isinstance(atom, core.Literal) else names[atom] for atom in atoms]

        for equation in body.eqns:
            inner, operands = list(subjaxprs(equation)), resolve(equation.invars)
            if len(inner) == 1 and is_call(equation):
                callee, _ = open_jaxpr(inner[0])
                given = zip(callee.invars, operands[len(operands) - len(callee.invars) :], strict=True)
                results = inline(callee, {**{v: core.Var(v.aval) for v in callee.constvars}, **dict(given)})
            else:
                results = [core.Var(v.aval) for v in equation.outvars]
                inlined.append(equation.replace(invars=operands, outvars=results))
            names.update(zip(equation.outvars, results, strict=True))
        return resolve(body.outvars)

    results = inline(body, {v: v for v in (*body.invars, *body.constvars)})
    return inlined, results


RENAMED = frozenset({"pvary", "preduced", "reduced_vary_cast", "vary_unreduced_cast"})
"""Primitives that change only a type along mesh axes; nothing of them is left in a compiled program."""

SAME = RENAMED | {"squeeze", "expand_dims", "reshape", "convert_element_type"}
VIEWS = SAME | {"slice", "dynamic_slice", "split", "transpose", "broadcast_in_dim"}
INTO = frozenset({"add", "add_any", "sub", "dynamic_update_slice"})
IN_PLACE = INTO | SAME | {"mul", "max", "min", "select_n", "scatter", "scatter-add", "scan", "while"}
READS_VIEWS = VIEWS | INTO | {"dot_general", "concatenate", "mul", "div", "max", "min", "select_n", "reduce_sum"}
"""Primitives that read a part of a block without a copy of it."""

CALLS = frozenset({"jit", "eval_jaxpr", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"}) | {
    "composite", "linear_call", "closed_call",
}  # fmt: skip
"""Primitives that only call a jaxpr with their operands."""


_PEAKS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def peak_bytes(jaxpr: Any) -> int:
    """The most bytes that a body holds at one time: its arguments and the values that it makes."""
    body, _ = open_jaxpr(jaxpr)
    return sum(map(array_bytes, (*body.invars, *body.constvars))) + _besides_arguments(jaxpr, slice(0))


def _besides_arguments(jaxpr: Any, carried: slice) -> int:
    """The most bytes at one time besides the arguments, of which results may take the place of those `carried`."""
    if jaxpr not in _PEAKS:
        _PEAKS[jaxpr] = _Arrangement(jaxpr, carried).peak()
    return _PEAKS[jaxpr]


def _inside(equation: Any) -> int:
    """The most bytes at one time inside of an equation, besides its operands and results."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        constants, carried = scan_counts(equation)
        return _besides_arguments(params["jaxpr"], slice(constants, constants + carried))
    if name == "while":
        return _besides_arguments(params["body_jaxpr"], slice(params["body_nconsts"], None))
    return max((_besides_arguments(inner, slice(0)) for inner in subjaxprs(equation)), default=0)


class _Arrangement:
    """Which variables of a body have a place of their own, and until when."""

    def __init__(self, jaxpr: Any, carried: slice) -> None:
        body, _ = open_jaxpr(jaxpr)
        self.arguments, self.carried = {*body.invars, *body.constvars}, {*body.invars[carried]}
        self.equations, results = inline_calls(body, lambda equation: equation.primitive.name in CALLS)
        self.results = {*variables(results)} - self.arguments
        self.readers: dict[Any, list[Any]] = {}
        for equation in self.equations:
            for v in dict.fromkeys(variables(equation.invars)):
                self.readers.setdefault(v, []).append(equation)
        self.sources: dict[Any, list[Any]] = {}  # the variables in whose places others are
        for equation in self.equations:
            if all(self._is_elsewhere(equation.primitive.name, v) for v in equation.outvars):
                places = self._places(equation)
                self.sources.update((v, places) for v in equation.outvars)

    def _is_elsewhere(self, name: str, v: Any) -> bool:
        """True if a variable, the result of this primitive, needs no place of its own."""
        if name in RENAMED:
            return True
        if v in self.results:
            return False
        if name in VIEWS and all(r.primitive.name in READS_VIEWS for r in self.readers.get(v, [])):
            return True
        return name == "dot_general" and self._goes_into(v)

    def _goes_into(self, v: Any) -> bool:
        """True if a product is only added, or written into a larger block."""
        readers = self.readers.get(v, [])
        if v in self.results or len(readers) != 1:
            return False
        name = readers[0].primitive.name
        return name in INTO or (name in VIEWS and all(self._goes_into(w) for w in readers[0].outvars))

    def _places(self, equation: Any) -> list[Any]:
        """The variables with a place of their own that an equation reads."""
        return [place for v in variables(equation.invars) for place in self.sources.get(v, [v])]

    def peak(self) -> int:
        """The most bytes at one time, besides the arguments."""
        placed = [e for e in self.equations if any(v not in self.sources for v in e.outvars)]
        last: dict[Any, int] = {}
        for i, equation in enumerate(placed):
            last.update(dict.fromkeys([*self._places(equation), *equation.outvars], i))
        lasting = self.results.union(*(self.sources.get(v, ()) for v in self.results), self.arguments - self.carried)
        ending: list[list[Any]] = [[] for _ in placed]
        for v, i in last.items():
            if v not in lasting:
                ending[i].append(v)
        alive = most = 0
        for equation, ends in zip(placed, ending, strict=True):
            heirs = [v for v in ends if v in variables(equation.invars)] if equation.primitive.name in IN_PLACE else []
            for v in equation.outvars:
                old = next((old for old in heirs if array_bytes(old) == array_bytes(v)), None)
                if old is None:
                    alive += array_bytes(v)
                else:
                    heirs.remove(old)
                    ends.remove(old)
            most = max(most, alive + _inside(equation))
            alive -= sum(array_bytes(v) for v in ends if v not in self.carried)
        return most
