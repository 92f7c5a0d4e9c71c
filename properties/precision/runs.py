"""Runs of a case's program in double precision, and with each result rounded at random.

A sum of 16-bit floats that is rounded before all of its terms are there is reported. It goes on where it is moved,
cast, or scaled. What is added up over devices, what is added to something that another device sent, and what a loop
adds to what it had before, is the part of a sum.
"""

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.extend import core

from shardproof.oracles.dtypes import is_float, real_of
from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Sets, SimulateEngine
from shardproof.properties.engines.engine import ready
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.engines.simulate.interpreter import beside, evaluate, failing_as_a_limit, of_set
from shardproof.properties.engines.simulate.jaxprs import (
    STEPS,
    Flow,
    equations,
    open_jaxpr,
    reached,
    steps_of,
    subjaxprs,
    variables,
)
from shardproof.properties.precision.arithmetic import (
    ACROSS_DEVICES,
    ADDITIONS,
    MULTIPLIES,
    ONLY_MOVES,
    PRODUCTS,
    STRIDE,
    SUMS,
    Doubles,
    EndlessLoop,
    Sampled,
    double,
    is_product,
)
from shardproof.properties.precision.formats import Charges, charges_of
from shardproof.properties.programs.implementations import Implementation

RECEIVES = ("ppermute", "all_to_all", "ragged_all_to_all", "all_gather", "all_gather_invariant")
"""Primitives whose results other devices sent."""

GOES_ON = (ONLY_MOVES | {"convert_element_type", "reduce_precision", "optimization_barrier"}) - {
    "abs", "max", "min", "clamp", "sign", "floor", "ceil", "round", "sort", "top_k", "reduce_max", "reduce_min",
    "pmax", "pmin", "cummax", "cummin", "reduce_window_max", "reduce_window_min",
}  # fmt: skip
"""Primitives behind which a sum is still the same sum."""


def rounded_sums(jaxpr: Any) -> list[tuple[Any, bool]]:
    """The equations that round the part of a sum to 16 bits, in program order, and whether it is sent then."""
    flow, added = Flow(jaxpr, GOES_ON), Flow(jaxpr, GOES_ON.union(ADDITIONS))
    received = reached([e.outvars[0] for e in flow.equations if e.primitive.name in RECEIVES], flow.onward)
    made = {e.outvars[0]: e for e in flow.equations if e.outvars}
    sums, ends, kept = list[Any](), list[Any](), list[Any]()
    for e in flow.equations:
        name, own = e.primitive.name, variables(e.invars)
        meets = (name in ADDITIONS and not received.isdisjoint(own)) or _adds_up_what_was_gathered(e, made)
        repeats = name in ADDITIONS and _is_narrow(e.outvars[0]) and _comes_back(added, e)
        sums += e.outvars if name in SUMS or meets or repeats else ()
        ends += own if name in ACROSS_DEVICES or meets else ()
        kept += own if repeats else ()
    parts, sent, held = reached(sums, flow.onward), reached(ends, flow.back), reached(kept, flow.back)
    return [(e, e.outvars[0] in sent) for e in _rounding(flow, parts & (sent | held))]


def _rounding(flow: Flow, results: set[Any]) -> list[Any]:
    """The equations that round one of some results to 16 bits."""
    made = [e for e in flow.equations if e.outvars and e.outvars[0] in results]
    return [e for e in made if _is_narrow(e.outvars[0]) and e.primitive.name not in ONLY_MOVES]


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
    flow, program = Flow(jaxpr), open_jaxpr(jaxpr)[0]
    given = reached(filter(_is_wide, program.invars), flow.onward)
    wanted = reached(filter(_is_wide, variables(program.outvars)), flow.back)
    return [
        e
        for e in flow.equations
        if e.primitive.name == "convert_element_type"
        and _is_narrow(e.outvars[0])
        and all(_is_wide(v) and v in given for v in e.invars)
        and e.outvars[0] in wanted
    ]


def rounded_on_the_way(jaxpr: Any) -> frozenset[int]:
    """The equations, by their identities, that round to 16 bits what goes into a product, or a sum over devices.

    Not those in a loop that round what the loop had before.
    """
    goes_on = GOES_ON | {"max"}  # a relu
    flow, added = Flow(jaxpr, goes_on), Flow(jaxpr, goes_on.union(ADDITIONS))
    into = [e for e in flow.equations if e.primitive.name in (*ACROSS_DEVICES, *PRODUCTS)]
    on_the_way = reached([v for e in into for v in variables(e.invars)], flow.back)
    return frozenset(id(e) for e in _rounding(flow, on_the_way) if not _comes_back(added, e))


def narrowed_constants(jaxpr: Any) -> frozenset[int]:
    """The casts of constants to floats, by their identities: JAX casts once it has made them vary over the devices."""
    made: set[Any] = set()
    casts = set()
    for e in equations(jaxpr):
        name = e.primitive.name
        if name in ("pvary", "broadcast_in_dim", "convert_element_type") and made.issuperset(variables(e.invars)):
            made.update(e.outvars)
            casts |= {id(e)} if name == "convert_element_type" else set()
    return frozenset(casts)


def fused_products(jaxpr: Any) -> dict[int, list[list[int]]]:
    """Additions, by their identities, with the products among each of their terms: a compiler may leave one unrounded.

    It then computes both at once (`fma`), so that a product minus itself, rounded, is what was rounded off.
    """
    flow = Flow(jaxpr, GOES_ON)
    products = {e.outvars[0]: id(e) for e in flow.equations if e.primitive.name in MULTIPLIES and is_product(e)}
    found = {}
    for e in flow.equations:
        if e.primitive.name in ADDITIONS and _float_bytes(e.outvars[0]):
            terms = [reached(variables([v]), flow.back) for v in e.invars]
            each = [[number for v, number in products.items() if v in term] for term in terms]  # in program order
            if any(each):
                found[id(e)] = each
    return found


FUSED = (
    "mul",
    "div",
    "neg",
    "select_n",
    "pvary",
    "convert_element_type",
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "transpose",
)
"""Primitives that compilers compute again for each kernel that reads their results, since they take no time.

Divisions do not where they are products with inverses.
"""

LENGTH, ADDED = 4, 2
"""The most of them in a row that are computed again, from an addition on; and the most additions in a row.

More of these take time in each sample, as in iterations that are unrolled, though compilers may go on.
"""


def compute_for_each_reader(closed_jaxpr: Any) -> Any:
    """The program in which additions that leave a product unrounded are computed for each equation that they end in.

    Compilers do so where these equations become kernels of their own; what was rounded off then differs between them,
    and does not cancel: the tangents of a softmax's numerator and denominator, say.
    """
    seeds = fused_products(closed_jaxpr)
    return closed_jaxpr.replace(jaxpr=_for_each_reader(closed_jaxpr.jaxpr, seeds)) if seeds else closed_jaxpr


def _is_computed_again(equation: Any) -> bool:
    """True of what takes no time, or of a call of nothing else."""
    name = equation.primitive.name
    return (
        name in ADDITIONS
        or name in FUSED
        or (name == "jit" and all(map(_is_computed_again, equations(equation.params["jaxpr"]))))
    )


def _for_each_reader(body: Any, seeds: Container[int]) -> Any:
    found: list[Any] = []
    made: dict[Any, tuple[Any, int]] = {}  # of each variable that is computed again, its equation and place in a row

    def copy(v: Any, copies: dict[Any, Any], additions: int = ADDED) -> Any:
        if isinstance(v, core.Literal) or v not in made or not additions:
            return v
        if v not in copies:
            equation, _ = made[v]
            left = additions - (equation.primitive.name in ADDITIONS)
            operands = [copy(u, copies, left) for u in equation.invars]
            copies |= {u: core.Var(u.aval) for u in equation.outvars}
            found.append(equation.replace(invars=operands, outvars=[copies[u] for u in equation.outvars]))
        return copies[v]

    def inner(value: Any) -> Any:
        if isinstance(value, core.ClosedJaxpr):
            return value.replace(jaxpr=_for_each_reader(value.jaxpr, seeds))
        if isinstance(value, core.Jaxpr):
            return _for_each_reader(value, seeds)
        return tuple(map(inner, value)) if type(value) is tuple else value

    for equation in body.eqns:
        fused = [v for v in variables(equation.invars) if v in made]
        far = 0 if id(equation) in seeds else min((made[v][1] for v in fused), default=LENGTH)
        if far < LENGTH and _is_computed_again(equation):
            made.update(dict.fromkeys(equation.outvars, (equation, far + 1)))
        elif fused:
            copies: dict[Any, Any] = {}
            equation = equation.replace(invars=[copy(v, copies) for v in equation.invars])
        if any(True for _ in subjaxprs(equation)):
            equation = equation.replace(params={key: inner(value) for key, value in equation.params.items()})
        found.append(equation)
    return body.replace(eqns=found)


def _comes_back(flow: Flow, equation: Any) -> bool:
    """A loop adds to what it had before."""
    return not reached(equation.outvars, flow.onward).isdisjoint(variables(equation.invars))


def _float_bytes(variable: Any) -> int:
    """The bytes of a float, or of the parts of a complex one; 0 of anything else."""
    dtype = getattr(variable.aval, "dtype", None)
    return real_of(dtype).itemsize if isinstance(dtype, np.dtype) and is_float(dtype) else 0


def _is_wide(variable: Any) -> bool:
    return _float_bytes(variable) >= 4


def _is_narrow(variable: Any) -> bool:
    return 0 < _float_bytes(variable) < 4


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


def evaluated(
    env: Env, closed_jaxpr: Any, values: Sequence[np.ndarray], arithmetic: Doubles, **errors: Any
) -> list[np.ndarray]:
    """The results of a closed jaxpr in an arithmetic; raises InterpreterLimit if it cannot be run.

    Arguments:
        errors: what NumPy does about floating-point errors that are not ignored, as of `np.errstate`.
    """
    with np.errstate(**{"all": "ignore", **errors}), failing_as_a_limit():
        held = [x.astype(double(x.dtype), copy=False) for x in values]
        return evaluate(dataclasses.replace(env, arithmetic=arithmetic), closed_jaxpr, held)


def run_samples(program: Simulated, sets: Sets, arithmetic: Doubles, samples: int) -> list[list[np.ndarray]]:
    """The results of a traced program on several data sets, `[samples, ...]` of each, run at once or in parts.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    at_once = math.gcd(samples, 1 << _at_once(program).bit_length() - 1)
    each = [_run_part(program, sets, arithmetic, samples, range(k, k + at_once)) for k in range(0, samples, at_once)]
    return [[np.concatenate(x) for x in zip(*parts, strict=True)] for parts in zip(*each, strict=True)]


def _at_once(program: Simulated) -> int:
    """The number of samples that are run at once."""
    return max(1, MOST // program.width)


def _run_part(
    program: Simulated, sets: Sets, arithmetic: Doubles, samples: int, chosen: range
) -> list[list[np.ndarray]]:
    """The results of some of the samples of each data set."""
    if isinstance(arithmetic, Sampled):
        turns = {equation: [i * STRIDE] for equation, i in program.numbers.items()}
        new: dict[str, Any] = {"inexact": {}, "turns": turns, "marks": {}, "steps": {}}
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
    def charges(self) -> Charges:
        """The dtypes to which operations are rounded."""
        return charges_of(self.implementation, self.case, derivative=self.kind != "value")

    @cached_property
    def program(self) -> Simulated:
        """The traced program."""
        prepared = ready(self.kind, self.implementation, self.case, INTERPRETER).prepared
        assert isinstance(prepared, Simulated)
        return Simulated(compute_for_each_reader(prepared.live().closed_jaxpr)).live()

    def in_doubles(self, index: int) -> list[np.ndarray]:
        """The results on one data set; raises InterpreterLimit if the interpreter cannot run it."""
        return [np.asarray(x[0]) for x in self._samples("doubles", Doubles(), 1, index)]

    def leaves_range(self, index: int) -> bool:
        """True if a number of the run on a data set is too small or too large for double precision."""
        lost: list[str] = []
        values = [x[None] for x in self.program.typed(self.sets[index])]
        note = {"under": "call", "over": "call", "call": lambda error, flag: lost.append(error)}
        evaluated(beside(1), self.program.closed_jaxpr, values, Doubles(), **note)
        return bool(lost)

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
    def _fused(self) -> Mapping[int, list[list[int]]]:
        return fused_products(self.program.closed_jaxpr)

    def _samples(self, key: Any, arithmetic: Doubles, samples: int, index: int) -> list[np.ndarray]:
        if key not in self._known:
            together = max(1, _at_once(self.program) // samples)
            groups = [self.sets[i : i + together] for i in range(0, len(self.sets), together)]
            self._known[key] = [found for group in groups for found in self._group(group, arithmetic, samples)]
        found = self._known[key][index]
        if isinstance(found, EndlessLoop):
            raise found
        return found

    def _group(self, sets: Sets, arithmetic: Doubles, samples: int) -> list[list[np.ndarray] | EndlessLoop]:
        arithmetic = dataclasses.replace(arithmetic, steps={})
        try:
            each = run_samples(self.program, sets, arithmetic, samples)
        except Exception as error:
            if len(sets) > 1:
                return [found for one in sets for found in self._group([one], arithmetic, samples)]
            if isinstance(error, EndlessLoop):
                return [error]
            raise
        if not isinstance(arithmetic, Sampled):
            for key, times in arithmetic.steps.items():
                self._steps[key] = max(times, self._steps.get(key, 0))
        return [*each]
