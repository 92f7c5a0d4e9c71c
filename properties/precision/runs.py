"""Runs of a case's program in double precision, and with each result rounded at random.

A sum of 16-bit floats that is rounded before all of its terms are there is reported. It goes on where it is moved,
cast, or scaled. What is added up over devices, what is added to something that another device sent, and what a loop
adds to what it had before, is the part of a sum.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.extend import core

from shardproof.oracles.dtypes import is_float, real_of
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Sets, SimulateEngine
from shardproof.properties.engines.running import ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.interpreter import evaluate
from shardproof.properties.engines.simulate.liveness import (
    STEPS,
    equations,
    open_jaxpr,
    scan_counts,
    steps_of,
    subjaxprs,
    widest,
)
from shardproof.properties.engines.simulate.prepare import beside, failing_as_a_limit, of_set
from shardproof.properties.precision.arithmetic import (
    ACROSS_DEVICES,
    ADDITIONS,
    MULTIPLIES,
    ONLY_MOVES,
    PRODUCTS,
    SUMS,
    Doubles,
    EndlessLoop,
    Sampled,
    double,
    is_product,
)
from shardproof.properties.precision.formats import Charges
from shardproof.properties.programs.implementations import Implementation

RECEIVES = ("ppermute", "all_to_all", "ragged_all_to_all", "all_gather", "all_gather_invariant")
"""Primitives whose results other devices sent."""

GOES_ON = (ONLY_MOVES | {"convert_element_type", "reduce_precision", "optimization_barrier"}) - {
    "abs", "max", "min", "clamp", "sign", "floor", "ceil", "round", "sort", "top_k", "reduce_max", "reduce_min",
    "pmax", "pmin", "cummax", "cummin", "reduce_window_max", "reduce_window_min",
}  # fmt: skip
"""Primitives behind which a sum is still the same sum."""


class _Flow:
    """Which variables' numbers go on in which, over the borders of inner programs."""

    def __init__(self, jaxpr: Any, goes_on: frozenset[str] | None = GOES_ON) -> None:  # None: everything does
        self.goes_on = goes_on
        self.onward: dict[Any, set[Any]] = defaultdict(set)
        self.back: dict[Any, set[Any]] = defaultdict(set)
        self.added: dict[Any, set[Any]] = defaultdict(set)
        self.equations: list[Any] = []
        self._read(open_jaxpr(jaxpr)[0])

    def _read(self, jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            name, inner = equation.primitive.name, [open_jaxpr(one)[0] for one in subjaxprs(equation)]
            if inner and not name.startswith(("scatter", "reduce", "select_and")):
                for one in inner:
                    self._read(one)
                self._call(name, equation, inner)
                continue
            self.equations.append(equation)
            scaled = name in ("mul", "div") and any(not _variables([v]) or not v.aval.shape for v in equation.invars)
            if self.goes_on is None:
                for result in equation.outvars:
                    self._move(equation.invars, [result] * len(equation.invars))
            elif name in self.goes_on or name in RECEIVES or scaled:
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


def rounded_sums(jaxpr: Any) -> list[tuple[Any, bool]]:
    """The equations that round the part of a sum to 16 bits, in program order, and whether it is sent then."""
    flow = _Flow(jaxpr)
    received = _reached([e.outvars[0] for e in flow.equations if e.primitive.name in RECEIVES], flow.onward)
    made = {e.outvars[0]: e for e in flow.equations}
    sums: list[Any] = []
    ends: list[Any] = []
    kept: list[Any] = []
    for e in flow.equations:
        name, own = e.primitive.name, _variables(e.invars)
        meets = (name in ADDITIONS and not received.isdisjoint(own)) or _adds_up_what_was_gathered(e, made)
        repeats = name in ADDITIONS and _is_narrow(e) and _comes_back(flow, e)
        sums += e.outvars if name in SUMS or meets or repeats else ()
        ends += own if name in ACROSS_DEVICES or meets else ()
        kept += own if repeats else ()
    parts, sent, held = _reached(sums, flow.onward), _reached(ends, flow.back), _reached(kept, flow.back)
    return [
        (e, e.outvars[0] in sent)
        for e in flow.equations
        if _is_narrow(e) and e.primitive.name not in ONLY_MOVES and e.outvars[0] in parts & (sent | held)
    ]


def _adds_up_what_was_gathered(equation: Any, made: Mapping[Any, Any]) -> bool:
    """A sum over the dimension along which an `all_gather` put the parts of devices side by side."""
    if equation.primitive.name != "reduce_sum":
        return False
    found = made.get(equation.invars[0])
    while found is not None and found.primitive.name == "convert_element_type":
        found = made.get(found.invars[0])
    if found is None or found.primitive.name not in ("all_gather", "all_gather_invariant") or found.params["tiled"]:
        return False
    return found.params["all_gather_dimension"] in equation.params["axes"]


def narrowed(jaxpr: Any) -> list[Any]:
    """The casts to 16 bits of what comes from wider arguments and goes into wider results, in program order."""
    flow, program = _Flow(jaxpr, None), open_jaxpr(jaxpr)[0]
    given = _reached(filter(_is_wide, program.invars), flow.onward)
    wanted = _reached(filter(_is_wide, _variables(program.outvars)), flow.back)
    return [
        e
        for e in flow.equations
        if e.primitive.name == "convert_element_type"
        and _is_narrow(e)
        and all(_is_wide(v) and v in given for v in e.invars)
        and e.outvars[0] in wanted
    ]


def _is_wide(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and is_float(dtype) and real_of(dtype).itemsize >= 4


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
    for e in equations(open_jaxpr(jaxpr)[0]):
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


INTERPRETER = SimulateEngine()

SAMPLED = "/shardproof/samples"
"""The event of JAX's monitoring of samples that were run."""

SAMPLES = 16
"""The number of runs of a data set with each result rounded at random."""

MANY = 64
"""On a mesh of more devices half as many, and where one takes more than `STEPS`: there is nothing of roundings that a
smaller case does not show."""

MOST = 2**19
"""The most numbers of one value, of all data sets and samples, that are computed at once; more leave the caches."""


def interpret_doubles(closed_jaxpr: Any, sets: Sets) -> list[list[np.ndarray]]:
    """The results on several data sets, in double precision; raises InterpreterLimit if it cannot be run."""
    stacked = [np.stack(column) for column in zip(*sets, strict=True)]
    results = evaluated(beside(len(sets)), closed_jaxpr, stacked, Doubles())
    return [[np.array(of_set(x, i)) for x in results] for i in range(len(sets))]


def evaluated(env: Env, closed_jaxpr: Any, values: Sequence[np.ndarray], arithmetic: Doubles) -> list[np.ndarray]:
    """The results of a closed jaxpr in an arithmetic; raises InterpreterLimit if it cannot be run."""
    with np.errstate(all="ignore"), failing_as_a_limit():
        held = [x.astype(double(x.dtype), copy=False) for x in values]
        return evaluate(dataclasses.replace(env, arithmetic=arithmetic), closed_jaxpr, held)


def run_samples(
    program: Simulated, sets: Sets, arithmetic: Doubles, samples: int, chosen: range | None = None
) -> list[list[np.ndarray]]:
    """The results of a traced program on several data sets, `[samples, ...]` each, all of them run at once.

    Arguments:
        arithmetic: in what it is run.
        samples: how many there are of each data set.
        chosen: those that are run; None: all of them.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    chosen = range(samples) if chosen is None else chosen
    if isinstance(arithmetic, Sampled):
        new: dict[str, Any] = {"inexact": {}, "turns": {}, "marks": {}, "steps": {}}
        arithmetic = dataclasses.replace(arithmetic, samples=samples, chosen=chosen, sets=len(sets), **new)
    count = len(chosen)
    columns = zip(*map(program.typed, sets), strict=True)
    values = [np.repeat(np.stack(column), count, axis=0) for column in columns]
    results = evaluated(beside(len(sets) * count), program.closed_jaxpr, values, arithmetic)
    jax.monitoring.record_event(SAMPLED)
    return [
        [np.stack([np.array(of_set(x, i * count + k)) for k in range(count)]) for x in results]
        for i in range(len(sets))
    ]


class Runs:
    """The runs of a case's program, made ready as `kind`, on several data sets; each is made when it is asked for."""

    def __init__(self, kind: str, implementation: Implementation, case: Case, sets: Sets) -> None:
        self.kind, self.implementation, self.case, self.sets = kind, implementation, case, sets
        self._known: dict[Any, list[list[np.ndarray] | EndlessLoop]] = {}
        self._steps: dict[int, int] = {}

    @cached_property
    def program(self) -> Simulated:
        """The traced program."""
        prepared = ready(self.kind, self.implementation, self.case, INTERPRETER).prepared
        assert isinstance(prepared, Simulated)
        return prepared.live()

    def in_doubles(self, index: int) -> list[np.ndarray]:
        """The results on one data set; raises InterpreterLimit if the interpreter cannot run it."""
        return [np.asarray(x[0]) for x in self._samples("doubles", Doubles(), 1, index)]

    def nearly(self, index: int) -> list[np.ndarray]:
        """`[samples, ...]` of what doubles may give that round otherwise, of constants as the source may have them."""
        own = narrowed_constants(self.program.closed_jaxpr)
        sampled = Sampled(samples=SAMPLES // 2, known=self._steps, own=own, fused=self._fused)
        return self._samples("nearly", sampled, SAMPLES // 2, index)

    def rounded(self, index: int, charges: Charges) -> list[np.ndarray]:
        """`[samples, ...]` of the results with each operation rounded as it is charged."""
        sampled = Sampled(charges=charges, known=self._steps, fused=self._fused)
        if charges.sums:
            parts = frozenset(id(equation) for equation, _ in rounded_sums(self.program.closed_jaxpr))
            sampled = dataclasses.replace(sampled, parts=parts)
        if charges.on_the_way:
            sampled = dataclasses.replace(sampled, own=rounded_on_the_way(self.program.closed_jaxpr))
        return self._samples(charges, sampled, SAMPLES // 2 if self._is_large else SAMPLES, index)

    @cached_property
    def _is_large(self) -> bool:
        devices = self.case.mesh.size
        return devices > MANY or steps_of(self.program.closed_jaxpr, devices) > STEPS

    @cached_property
    def _fused(self) -> Mapping[int, tuple[frozenset[int], ...]]:
        return fused_products(self.program.closed_jaxpr)

    @cached_property
    def _at_once(self) -> int:
        """The number of samples that are run at once."""
        return max(1, MOST // widest(self.program.closed_jaxpr))

    def _samples(self, key: Any, arithmetic: Doubles, samples: int, index: int) -> list[np.ndarray]:
        if key not in self._known:
            together = max(1, self._at_once // samples)
            groups = [self.sets[i : i + together] for i in range(0, len(self.sets), together)]
            self._known[key] = [found for group in groups for found in self._group(group, arithmetic, samples)]
        found = self._known[key][index]
        if isinstance(found, EndlessLoop):
            raise found
        return found

    def _group(self, sets: Sets, arithmetic: Doubles, samples: int) -> list[list[np.ndarray] | EndlessLoop]:
        arithmetic = dataclasses.replace(arithmetic, steps={})
        at_once = math.gcd(samples, 1 << self._at_once.bit_length() - 1)
        try:
            each = [
                run_samples(self.program, sets, arithmetic, samples, range(k, k + at_once))
                for k in range(0, samples, at_once)
            ]
        except Exception as error:
            if len(sets) == 1 and isinstance(error, EndlessLoop):
                return [error]
            if len(sets) == 1:
                raise
            return [found for one in sets for found in self._group([one], arithmetic, samples)]
        if not isinstance(arithmetic, Sampled):
            for key, times in arithmetic.steps.items():
                self._steps[key] = max(times, self._steps.get(key, 0))
        return [[np.concatenate(x) for x in zip(*parts, strict=True)] for parts in zip(*each, strict=True)]
