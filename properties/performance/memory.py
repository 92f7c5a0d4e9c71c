"""The bytes that a device holds at one time, if a compiler arranges a traced program well.

Four things make that less than all values from the equation that makes them to the last that reads them:

- a value with only another type stays where it is (`RENAMED`);
- a part of a block, or a block in another order, is read in place (`VIEWS`);
- a product whose only use is an addition, or a write into a larger block, is made there (`INTO`);
- a result takes the place of an operand of the same size that nothing reads later (`IN_PLACE`).

Arguments stay: they are not donated. A loop holds one copy of its carry. Scalars, mostly indices, count nothing:
registers hold them.
"""

import weakref
from collections.abc import Callable
from typing import Any

from jax.extend import core

from shardproof.properties.engines.simulate.env import bytes_of
from shardproof.properties.engines.simulate.jaxprs import CALLS, open_jaxpr, scan_counts, subjaxprs, variables


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
