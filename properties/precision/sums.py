"""Which equations of a program round a sum of 16-bit floats before all of its terms are there.

A sum goes on where it is moved, cast, or scaled. What is added up over devices, what is added to something that another
device sent, and what a loop adds to what it had before, is the part of a sum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from shardproof.oracles.dtypes import is_float, real_of
from shardproof.properties.engines.simulate.liveness import equations, opened, scan_counts, subjaxprs
from shardproof.properties.precision.arithmetic import (
    ACROSS_DEVICES,
    ADDITIONS,
    MULTIPLIES,
    ONLY_MOVES,
    PRODUCTS,
    SUMS,
    is_product,
)

RECEIVES = ("ppermute", "all_to_all", "ragged_all_to_all", "all_gather", "all_gather_invariant")
"""Primitives whose results other devices sent."""

GOES_ON = (ONLY_MOVES | {"convert_element_type", "reduce_precision", "optimization_barrier"}) - {
    "abs", "max", "min", "clamp", "sign", "floor", "ceil", "round", "sort", "top_k", "reduce_max", "reduce_min",
    "pmax", "pmin", "cummax", "cummin", "reduce_window_max", "reduce_window_min",
}  # fmt: skip
"""Primitives behind which a sum is still the same sum."""


class Rounded(NamedTuple):
    """An equation that rounds the part of a sum.

    Arguments:
        equation: the equation.
        sent: whether that part is sent to other devices then.
    """

    equation: Any
    sent: bool


class _Flow:
    """Which variables' numbers go on in which, over the borders of inner programs."""

    def __init__(self, jaxpr: Any, goes_on: frozenset[str] = GOES_ON) -> None:
        self.goes_on = goes_on
        self.onward: dict[Any, set[Any]] = defaultdict(set)
        self.back: dict[Any, set[Any]] = defaultdict(set)
        self.added: dict[Any, set[Any]] = defaultdict(set)
        self.equations: list[Any] = []
        self._read(opened(jaxpr)[0])

    def _read(self, jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, [opened(one)[0] for one in subjaxprs(equation)]
            if inner and not name.startswith(("scatter", "reduce", "select_and")):
                for one in inner:
                    self._read(one)
                self._call(name, equation, inner)
                continue
            self.equations.append(equation)
            scaled = name in ("mul", "div") and any(not _variables([v]) or not v.aval.shape for v in equation.invars)
            if name in self.goes_on or name in RECEIVES or scaled:
                self._move(equation.invars, [equation.outvars[0]] * len(equation.invars))
            if name in ADDITIONS:
                for v in _variables(equation.invars):
                    self.added[v].add(equation.outvars[0])

    def _call(self, name: str, equation: Any, inner: list[Any]) -> None:
        given, results, params = equation.invars, equation.outvars, equation.params
        if name == "while":
            first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            given, inner = [*given[first:last], *given[last:]], inner[-1:]
            self._move(inner[0].outvars, inner[0].invars[last - first :])
        if name == "scan":
            count, carry = scan_counts(equation)
            self._move(inner[0].outvars[:carry], inner[0].invars[count : count + carry])
        for one in inner:  # a branch's operands come behind the index
            self._move(given[len(given) - len(one.invars) :], one.invars)
            self._move(one.outvars, results)

    def _move(self, sources: Iterable[Any], targets: Iterable[Any]) -> None:
        for source, target in zip(sources, targets, strict=False):
            if _variables([source]):
                self.onward[source].add(target)
                self.back[target].add(source)


def rounded_sums(jaxpr: Any) -> list[Rounded]:
    """The equations that round the part of a sum to 16 bits, in program order."""
    flow = _Flow(jaxpr)
    received = _reached([e.outvars[0] for e in flow.equations if e.primitive.name in RECEIVES], flow.onward)
    sums: list[Any] = []
    ends: list[Any] = []
    kept: list[Any] = []
    for e in flow.equations:
        name, own = e.primitive.name, _variables(e.invars)
        meets = name in ADDITIONS and not received.isdisjoint(own)
        repeats = name in ADDITIONS and _is_narrow(e) and _comes_back(flow, e)
        sums += e.outvars if name in SUMS or meets or repeats else ()
        ends += own if name in ACROSS_DEVICES or meets else ()
        kept += own if repeats else ()
    parts, sent, held = _reached(sums, flow.onward), _reached(ends, flow.back), _reached(kept, flow.back)
    return [
        Rounded(e, e.outvars[0] in sent)
        for e in flow.equations
        if _is_narrow(e) and e.primitive.name not in ONLY_MOVES and e.outvars[0] in parts & (sent | held)
    ]


def rounded_on_the_way(jaxpr: Any) -> frozenset[int]:
    """The equations, by their identities, that round to 16 bits what goes into a product, or a sum over devices.

    Not those in a loop that round what the loop had before.
    """
    flow = _Flow(jaxpr, GOES_ON | {"max"})  # a relu
    into = [e for e in flow.equations if e.primitive.name in (*ACROSS_DEVICES, *PRODUCTS)]
    reached = _reached([v for e in into for v in _variables(e.invars)], flow.back)
    return frozenset(
        id(e)
        for e in flow.equations
        if _is_narrow(e) and e.primitive.name not in ONLY_MOVES and e.outvars[0] in reached and not _comes_back(flow, e)
    )


def narrowed_constants(jaxpr: Any) -> frozenset[int]:
    """The casts of constants to floats, by their identities: JAX casts once it has made them vary over the devices."""
    made: set[Any] = set()
    casts = set()
    for e in equations(opened(jaxpr)[0]):
        if e.primitive.name in ("pvary", "broadcast_in_dim", "convert_element_type") and made.issuperset(
            _variables(e.invars)
        ):
            made.update(e.outvars)
            casts |= {id(e)} if e.primitive.name == "convert_element_type" else set()
    return frozenset(casts)


def fused_products(jaxpr: Any) -> dict[int, tuple[frozenset[int], ...]]:
    """Additions, by their identities, with the products among each of their terms: a compiler may leave one unrounded.

    It then computes both at once (`fma`), so that a product minus itself, rounded, is what was rounded off.
    """
    flow = _Flow(jaxpr)
    products = {e.outvars[0]: id(e) for e in flow.equations if e.primitive.name in MULTIPLIES and is_product(e)}
    found = {}
    for e in flow.equations:
        if e.primitive.name in ADDITIONS:
            each = [_reached(_variables([v]), flow.back) & products.keys() for v in e.invars]
            if any(each):
                found[id(e)] = tuple(frozenset(products[v] for v in one) for one in each)
    return found


def _comes_back(flow: _Flow, equation: Any) -> bool:
    """A loop adds to what it had before."""
    return not _reached(equation.outvars, flow.onward, flow.added).isdisjoint(_variables(equation.invars))


def _reached(sources: Iterable[Any], *edges: Mapping[Any, set[Any]]) -> set[Any]:
    """All variables that some lead to, themselves included."""
    found, left = set(), list(sources)
    while left:
        v = left.pop()
        if v not in found:
            found.add(v)
            left += [w for several in edges for w in several.get(v, ())]
    return found


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, core.Literal)]


def _is_narrow(equation: Any) -> bool:
    dtype = getattr(equation.outvars[0].aval, "dtype", None) if equation.outvars else None
    return isinstance(dtype, np.dtype) and is_float(dtype) and real_of(dtype).itemsize < 4
