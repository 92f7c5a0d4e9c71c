"""A traced program in double precision, as it is, or with each result rounded at random, in many samples at once.

The interpreter runs it by the rules that it has, on doubles. Data sets and samples stand one behind the other along the
first leading dimension, as if each were on devices of its own; what none of them changes is held once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.collectives import axes_of
from shardproof.properties.engines.simulate.elementwise import WIDE as DIRECT
from shardproof.properties.engines.simulate.elementwise import aligned
from shardproof.properties.engines.simulate.env import RULES, SETS, Env, Rule, result_dtype
from shardproof.properties.engines.simulate.errors import InterpreterLimit, location
from shardproof.properties.engines.simulate.indexing import filler
from shardproof.properties.engines.simulate.jaxprs import subjaxprs
from shardproof.properties.precision.formats import (
    COARSE,
    FORMATS,
    NEARLY_DOUBLE,
    Charges,
    Format,
    Numbers,
    are_numbers,
    format_of,
    lowest_bit,
    moved,
    round_at_random,
    with_noise,
)

PLACES, STRIDE, TURN = 262_147, 7919 * 64 + 1, 104729 * 8 + 1
"""The number of places, a prime, from which an equation takes its chances; and how far apart these are, from
equation to equation, and from one time that it is run to the next."""

ACROSS_DEVICES = ("psum", "psum_invariant", "unreduced_psum", "reduce_scatter", "unreduced_reduce_scatter")
"""Sums over devices."""

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")
"""Sums of products, which are added up in float32 at least."""

STABLE = ("fft", "cholesky", "triangular_solve", "qr", "geqrf", "householder_product", "eigh", "svd", "lu", "schur")
"""Algorithms that are right for operands near those that they get (Higham 2002, section 1.5)."""

APPROXIMATED = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "tanh", "sinh", "cosh", "tan", "sin", "cos", "asin",
    "acos", "atan", "atan2", "asinh", "acosh", "atanh", "pow", "rsqrt", "cbrt", "erf", "erfc", "erf_inv", "lgamma",
    "digamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "polygamma", "zeta", "integer_pow",
    "regularized_incomplete_beta", "cumlogsumexp", "cumprod", "reduce_prod",
})  # fmt: skip
"""Functions that backends approximate, to a few units in the last place."""

RANGES = {"tanh": (-1, 1), "erf": (-1, 1), "sin": (-1, 1), "cos": (-1, 1), "logistic": (0, 1), "erfc": (0, 2)}
"""Bounds that the results of some of them never exceed, and often reach."""

PRODUCTS_OF_FEW = ("integer_pow", "cumprod", "reduce_prod")
"""Those whose results are exact where they are numbers of the dtype."""

WITH_ROOTS = ("lgamma", "digamma")
"""Functions that backends approximate no better beside their roots."""

ULPS = 2.0
"""Units in the last place that a sample may be off by besides its rounding; `COARSE` widens these too."""

OUTSIDE = ("pure_callback", "io_callback", "custom_partitioning")
"""Primitives that call functions that no rule knows."""

ONLY_MOVES = frozenset({
    "neg", "abs", "real", "imag", "conj", "complex", "max", "min", "clamp", "sign", "floor", "ceil", "round", "copy",
    "reduce_max", "reduce_min", "pmax", "pmin", "cummax", "cummin", "sort", "top_k", "select_n", "gather", "scatter",
    "reshape", "squeeze", "transpose", "broadcast_in_dim", "concatenate", "slice", "pad", "rev", "split", "tile",
    "dynamic_slice", "dynamic_update_slice", "all_gather", "all_gather_invariant", "all_to_all", "ppermute",
    "pbroadcast", "pvary", "ragged_all_to_all", "stop_gradient", "name", "sharding_constraint", "reshard", "stack",
    "unstack", "device_put", "iota", "reduce_window_max", "reduce_window_min",
})  # fmt: skip
"""Primitives whose results are numbers that are there already, so that nothing is rounded."""


KEPT = 2**14
"""The number of equations of which findings are kept."""

PATIENCE = 8
"""The factor by which a sample's loop may take more steps than in double precision, and the steps on top of that."""


class EndlessLoop(InterpreterLimit):
    """A loop that ends by chance, and has not."""


class Doubled:
    """An equation whose results are doubles, for the rules of values; with one operand alone, or other parameters."""

    def __init__(self, equation: Any, *, operand: int | None = None, **params: Any) -> None:
        chosen = slice(None) if operand is None else slice(operand, operand + 1)
        self.primitive, self.source_info = equation.primitive, equation.source_info
        self.params, self.invars = {**equation.params, **params}, equation.invars[chosen]
        self.outvars = [
            SimpleNamespace(aval=SimpleNamespace(shape=v.aval.shape, dtype=double(v.aval.dtype)))
            if isinstance(v.aval.dtype, np.dtype)
            else v
            for v in equation.outvars[chosen]
        ]


@functools.lru_cache(maxsize=KEPT)
def doubled(equation: Any) -> Doubled:
    """The equation with doubles, kept: a loop runs it again."""
    return Doubled(equation)


@functools.cache
def double(dtype: np.dtype) -> np.dtype:
    """The dtype that holds numbers of a traced one: a double for a float, else the same."""
    if dtype.names is not None or not is_float(dtype):
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


@dataclass(frozen=True)
class Doubles:
    """Floats are doubles, which nothing rounds."""

    steps: dict[int, int] = field(default_factory=dict, compare=False)
    """The number of times that each loop's predicate was evaluated, by the identity of the equation."""

    def held(self, dtype: np.dtype) -> np.dtype:
        """The dtype of the elements that hold numbers of a traced one."""
        return double(dtype)

    def constant(self, value: Numbers) -> Numbers:
        """A constant of the program, `[1, ...]` or `[samples, ...]`."""
        return value.astype(double(value.dtype), copy=False)[None]

    def decided(self, env: Env, holds: Numbers, equation: Any) -> Numbers:
        """A loop's predicate.

        Raises:
            EndlessLoop: if a sample takes many times as many steps as there are in double precision.
        """
        self.steps[id(equation)] = self.steps.get(id(equation), 0) + 1
        return holds

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation; raises InterpreterLimit if it calls a function outside of JAX."""
        return self._rounded(env, equation, operands, self._results(env, rule, equation, operands))

    def _results(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        name = equation.primitive.name
        if name in OUTSIDE:
            raise InterpreterLimit(
                f"the interpreter cannot run {name} (at {location(equation)}) in double precision", name
            )
        if name in AS_DOUBLES:
            results = AS_DOUBLES[name](self, env, equation, *operands)
        elif calls(equation):
            results = rule(env, equation, *operands)
        elif not has_floats(equation):
            results = rule(dataclasses.replace(env, arithmetic=None), equation, *operands)
        elif name in DIRECT:
            results = np.asarray(DIRECT[name](*aligned(env, equation, tuple(operands))))
        else:
            results = rule(env, doubled(equation), *operands)
        if isinstance(results, np.ndarray):
            results = [results]
        return [x.astype(double(x.dtype), copy=False) for x in results]

    def bits(self, env: Env, equation: Any, x: Numbers, dtype: np.dtype) -> Numbers:
        """Doubles as the numbers of a dtype whose bits are looked at: the nearest ones."""
        return x.astype(dtype)

    def _rounded(self, env: Env, equation: Any, operands: list[Numbers], results: list[Numbers]) -> list[Numbers]:
        return results


@functools.cache
def chances(samples: int) -> np.ndarray:
    """`[samples, PLACES]` numbers of [0, 1), of every other sample near 1/2: up or down by one step.

    So numbers that are equal once they are rounded are equal in some sample. Both halves are stratified: of one
    rounding there are samples near each end, and on both sides of a jump. The first sample rounds to the nearest.
    """
    random, half = np.random.default_rng(20231), samples // 2
    near, far = (
        (random.random((half, PLACES)).argsort(axis=0) + random.random((half, PLACES))) / half for _ in range(2)
    )
    found = np.empty((samples, PLACES))
    found[::2], found[1::2] = 0.5 + (near - 0.5) / COARSE, far
    found[0] = 0.5
    return found


@dataclass(frozen=True)
class Sampled(Doubles):
    """Every result is rounded at random, each sample by itself.

    Arguments:
        charges: by which dtype each operation is rounded; None: as doubles are, only more coarsely, and constants are
            what the source may have.
        samples: how many there are of each data set.
        chosen: those that are run.
        sets: how many data sets there are, all rounded in the same way, so that each is as it is alone. Their samples
            stand one behind the other along the first dimension.
        known: how often each loop's predicate is evaluated in double precision, if that is known.
        parts: the equations, by their identities, that round a part of a sum.
        own: those that are rounded to their own dtype, whatever the charges say of their primitives.
        fused: of additions, the products that their terms are (see `fused_products`).
    """

    charges: Charges | None = None
    samples: int = 1
    chosen: range = range(1)
    sets: int = 1
    known: Mapping[int, int] = field(default_factory=dict, compare=False)
    parts: frozenset[int] = frozenset()
    own: frozenset[int] = frozenset()
    fused: Mapping[int, list[list[int]]] = field(default_factory=dict, compare=False)
    inexact: dict[int, np.ndarray] = field(default_factory=dict, compare=False)
    """Products that were rounded, by their identities, and where."""

    turns: dict[int, list[int]] = field(default_factory=dict, compare=False)
    """The place from which each equation, by its identity, takes the next numbers."""

    marks: dict[int, dict[int, int]] = field(default_factory=dict, compare=False)
    """These places as they were when a loop, by its identity, was last decided."""

    def constant(self, value: Numbers) -> Numbers:
        """A constant of the program, `[1, ...]` or `[samples, ...]`."""
        exact = super().constant(value)
        if self.charges is not None or value.dtype.names is not None or not is_float(value.dtype):
            return exact
        found = moved(exact[0], value.dtype, self.samples)
        return np.concatenate([found[self.chosen.start : self.chosen.stop]] * self.sets) if len(found) > 1 else found

    def decided(self, env: Env, holds: Numbers, equation: Any) -> Numbers:
        """A loop's predicate, as of `Doubles`."""
        super().decided(env, holds, equation)
        steps, known = self.steps[id(equation)], self.known.get(id(equation), PATIENCE)
        if steps > known and id(equation) in self.marks:  # round as in the step before, as machines do
            for key, place in self.marks[id(equation)].items():
                self.turns[key][0] = place
        self.marks[id(equation)] = {key: place[0] for key, place in self.turns.items()}
        if steps > PATIENCE * known + PATIENCE:
            raise EndlessLoop(
                f"roundings decide when the loop at {location(equation)} ends, and it may be much later", "a loop"
            )
        return holds

    def bits(self, env: Env, equation: Any, x: Numbers, dtype: np.dtype) -> Numbers:
        """Doubles as numbers of a dtype whose bits are looked at: near ones."""
        return self._round(env, equation, x, format_of(dtype)).astype(dtype)

    def _format(self, dtype: np.dtype, name: str, equation: Any = None) -> Format:
        own = id(equation) in self.own
        if self.charges is None:
            return format_of(dtype) if own else NEARLY_DOUBLE
        return self.charges.format(dtype, name, own=own)

    def _carried(self, to: Format) -> Format:
        """The format in which a sum is carried whose result has another."""
        if self.charges is None or not self.charges.sums:
            return to
        return min(to, format_of(np.dtype(self.charges.sums)), key=lambda one: one.unit)

    def _place(self, equation: Any) -> list[int]:
        """The place from which an equation takes the next numbers."""
        return self.turns[id(equation)]

    def _chance(self, env: Env, equation: Any, x: Numbers) -> Numbers:
        """Numbers of [0, 1), which broadcast to an array; devices that have the same numbers round them equally."""
        place, pool = self._place(equation), chances(self.samples)[self.chosen.start : self.chosen.stop]
        start, known, drawn = place[0] % PLACES, dict[tuple[bool, ...], Numbers](), []
        place[0] += TURN
        repeats = [repeated(x, d, self.sets) for d in range(1, env.lead)]
        for each in zip(*repeats, strict=True) if repeats else [()]:
            if each not in known:
                shape = [1 if d <= len(each) and each[d - 1] else n for d, n in enumerate(x.shape) if d]
                count = math.prod(shape)
                left = start + count - PLACES  # these go on from the first place, once more after all of them
                parts = [pool[:, start : start + count], *(pool[:, : left - k] for k in range(0, left, PLACES))]
                known[each] = (np.concatenate(parts, axis=1) if left > 0 else parts[0]).reshape(len(pool), *shape)
            drawn.append(known[each])
        if len(known) > 1:
            drawn = [np.broadcast_to(one, (len(pool), *x.shape[1:])) for one in drawn]
        drawn *= self.sets // len(drawn)
        return np.concatenate(drawn) if len(drawn) > 1 else drawn[0]

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, as of `Doubles`.

        Where the first sample, which rounds to the nearest as machines do, chooses as no other does, as among many
        numbers that are one once they are rounded, the second chooses like it.
        """
        results = super().run(env, rule, equation, operands)
        count = len(self.chosen)
        if self.charges is None or self.chosen.start or count < 2 or calls(equation) or not has_floats(equation):
            return results
        choices = [x for x in results if x.dtype.kind in "biu" and len(x) == self.sets * count]
        for first in range(0, self.sets * count, count):
            if any((x[first] != x[first + 1 : first + count]).all(axis=0).any() for x in choices):
                results = [np.array(x) for x in results]
                for x in (x for x in results if len(x) == self.sets * count):
                    x[first + 1] = x[first]
        return results

    def _round(self, env: Env, equation: Any, x: Numbers, to: Format) -> Numbers:
        # a fourth stays between two numbers: what depends on any rounding moves there, however few numbers are near
        place, chance = self._place(equation), functools.partial(self._chance, env, equation)
        after = place[0] + TURN
        found = round_at_random(x, to, chance, numbers=self.chosen)
        place[0] = after  # whether or not anything was drawn: the next is as if the data set were alone
        return found

    def _noise(
        self, env: Env, equation: Any, x: Numbers, unit: float, size: Numbers, where: Numbers = np.True_
    ) -> Numbers:
        """Numbers that are off by up to `unit` times a size in some places, each sample by as much as it happens."""
        size, where = (np.reshape(y, (1,) * (x.ndim - np.ndim(y)) + np.shape(y)) for y in (size, where))
        if not np.logical_and(size, where).any():
            self._place(equation)[0] += TURN * (1 + (x.dtype.kind == "c"))
            return x
        x = np.broadcast_to(x, np.broadcast(x, size, where).shape)
        chance = self._chance(env, equation, x)
        if x.dtype.kind == "c":
            chance = chance + 1j * self._chance(env, equation, x)
        return with_noise(x, chance, unit, size, where)

    def _rounded(self, env: Env, equation: Any, operands: list[Numbers], results: list[Numbers]) -> list[Numbers]:
        name = equation.primitive.name
        if name in ONLY_MOVES or calls(equation) or name == "bitcast_convert_type":
            return results
        rounded = []
        for i, x in enumerate(results):
            dtype = equation.outvars[i].aval.dtype
            if not isinstance(dtype, np.dtype) or not is_float(dtype) or name == "optimization_barrier":
                rounded.append(x)
                continue
            to = self._format(_precision(equation) if name == "reduce_precision" else dtype, name, equation)
            carried = self._carried(to)
            if id(equation) in self.parts:
                to = carried
            if name in SUMS:
                x = self._noise(env, equation, x, 1.0, self._of_order(env, equation, operands, i, carried, x))
            elif name in APPROXIMATED:
                size = np.maximum(np.abs(x), 1.0) if name in WITH_ROOTS else x
                few = are_numbers(x, to.digits) if name in PRODUCTS_OF_FEW else _exactly(env, equation, operands, x)
                x = self._noise(env, equation, x, 2 * ULPS * COARSE * to.unit, size, ~few)
            elif name == "div":  # by a constant, compilers multiply with its inverse
                few = are_numbers(aligned(env, equation, tuple(operands))[1], 1)
                x = self._noise(env, equation, x, COARSE * to.unit, x, ~few)
            elif name in ADDITIONS and self.charges is None:
                a, b = aligned(env, equation, tuple(operands))
                x = self._noise(env, equation, x, to.unit, x, ~is_sum(x, a, -b if name == "sub" else b))
            if id(equation) in self.fused:
                for products, term in zip(
                    self.fused[id(equation)], aligned(env, equation, tuple(operands)), strict=True
                ):
                    for off in (self.inexact[product] for product in products if product in self.inexact):
                        if off.shape[1:] != term.shape[1:]:
                            off = np.repeat(off.reshape(self.sets, -1).any(axis=1), len(off) // self.sets)
                            off = off.reshape(-1, *(1,) * (x.ndim - 1))
                        x = self._noise(env, equation, x, COARSE / 2 * to.unit, term, off)
            found = self._round(env, equation, x, to)
            if name in RANGES and x.dtype.kind != "c":
                found = np.clip(found, *RANGES[name])
            if name in MULTIPLIES and found is not x:
                self.inexact[id(equation)] = found != x
            rounded.append(found)
        return rounded

    def _of_order(
        self, env: Env, equation: Any, operands: list[Numbers], index: int, to: Format, x: Numbers
    ) -> Numbers:
        """The error of a sum by the order of its additions: none where every order is exact.

        Elsewhere as far as rounding errors do that have nothing in common: by the root of how many there are, times
        the terms' magnitudes, or times the smallest normal number where a sum so far may be below it.
        """
        name = equation.primitive.name
        count, kept = SUMS[name](env, equation), int(env.mesh.axis_names[:1] == (SETS,))
        if count <= 1:
            return np.zeros(())
        places = (0, 1) if name in PRODUCTS else (0, 2) if name.startswith("scatter") else (index,)
        full = [np.abs(x) if place in places else x for place, x in enumerate(operands)]
        if name == "scatter-sub":
            full[2] = -full[2]
        if len(places) > 1:
            found = RULES[name](env, doubled(equation), *full)
        else:
            found = RULES[name](env, Doubled(equation, operand=index), full[index])
        size = np.asarray(found if isinstance(found, np.ndarray) else found[0]).real
        digits, roundoff = to.digits, to.unit
        if name in PRODUCTS and self.charges is not None and not self.charges.split:
            digits, roundoff = max(digits, 24), min(roundoff, 2.0**-24)
        amplitude = COARSE / 2 * math.sqrt(count) * roundoff * size
        small = (size > 0) & (size < to.normal * 2.0**digits)  # of what is added up so far much may count as zero
        if small.any() or are_numbers(x, digits).any():  # by chance, or since all orders are exact
            both = np.multiply if name in PRODUCTS else np.minimum  # a scatter adds to what is there
            unit = functools.reduce(both, [lowest_bit(operands[i], kept).reshape(-1) for i in places])
            unit = unit.reshape(unit.shape + (1,) * (size.ndim - 1)) if kept else unit.reshape(())
            with np.errstate(invalid="ignore"):
                amplitude = np.where(size <= 2.0**digits * unit, 0.0, amplitude)
                amplitude += COARSE / 2 * math.sqrt(count) * to.normal * (small & (unit < to.normal))
        return amplitude


def _participants(env: Env, equation: Any) -> int:
    groups = equation.params.get("axis_index_groups")
    count = max(map(len, groups)) if groups else env.mesh.axis_size(axes_of(equation))
    shape = equation.invars[0].aval.shape
    return count * math.prod(shape[name] for name in equation.params.get("axes", ()) if isinstance(name, int))


def _contracted(env: Env | None, equation: Any) -> int:
    """The number of products that each result adds up; one of complex numbers is a sum of two."""
    numbers, each = equation.params.get("dimension_numbers"), 1 + (equation.outvars[0].aval.dtype.kind == "c")
    if equation.primitive.name == "conv_general_dilated":
        return each * math.prod(equation.invars[1].aval.shape) // equation.invars[1].aval.shape[numbers.rhs_spec[0]]
    if numbers is None:
        numbers = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return each * math.prod(equation.invars[0].aval.shape[d] for d in numbers[0][0])


def _exactly(env: Env, equation: Any, operands: list[Numbers], x: Numbers) -> Numbers:
    """True where 1 or -1 is the exact value of a function, as of exp at 0, and none that is close to it."""
    one = np.abs(x) == 1
    if not one.any():
        return one
    given = ((operand == 0) | (operand == 1) | (operand == -1) for operand in aligned(env, equation, tuple(operands)))
    return one & functools.reduce(np.logical_or, given)


def is_product(equation: Any) -> bool:
    """True of a multiplication that adds nothing up."""
    return equation.primitive.name != "dot_general" or _contracted(None, equation) <= 1


SUMS: Mapping[str, Callable[[Env, Any], int]] = {
    "reduce_sum": lambda env, e: math.prod(e.invars[0].aval.shape[axis] for axis in e.params["axes"]),
    "cumsum": lambda env, e: int(e.invars[0].aval.shape[e.params["axis"]]),
    "reduce_window_sum": lambda env, e: math.prod(e.params["window_dimensions"]),
    **dict.fromkeys(ACROSS_DEVICES, _participants),
    **dict.fromkeys(PRODUCTS, _contracted),
    **dict.fromkeys(("scatter-add", "scatter-sub"), lambda env, e: 1 + math.prod(e.invars[1].aval.shape[:-1])),
}
"""Primitives that reduce in an order of their own, and how many terms, or products, each result has."""


ADDITIONS = ("add", "add_any", "sub")
MULTIPLIES = ("mul", "square", "integer_pow", "dot_general", "div")  # of a constant XLA takes the reciprocal


def repeated(x: Numbers, dimension: int, sets: int) -> list[bool]:
    """Whether all along a dimension is equal, for each data set of the first dimension, or for all of them at once."""
    count = sets if len(x) > 1 else 1
    if x.shape[dimension] == 1:
        return [False] * count
    first = x[(*(slice(None),) * dimension, slice(1))]
    same = x == first
    if not same.all():
        same |= np.isnan(x) & np.isnan(first)
    return [bool(rows.all()) for rows in same.reshape(count, -1)]


def is_sum(x: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """True where the sum of two doubles was not rounded (Knuth's TwoSum; Higham 2002, section 4.3)."""
    part = x - a
    return ~(((a - (x - part)) + (b - part)) != 0)


@functools.lru_cache(maxsize=KEPT)
def has_floats(equation: Any) -> bool:
    """True if a float goes in or comes out."""
    dtypes = (getattr(v.aval, "dtype", None) for v in (*equation.invars, *equation.outvars))
    return any(isinstance(dtype, np.dtype) and is_float(dtype) for dtype in dtypes)


@functools.lru_cache(maxsize=KEPT)
def calls(equation: Any) -> bool:
    """True of an equation that runs programs of its own, whose equations are rounded."""
    name = equation.primitive.name
    return name in ("shard_map", "scan", "while", "cond", "call_hi_primitive") or (
        not name.startswith(("scatter", "reduce", "select_and")) and any(True for _ in subjaxprs(equation))
    )


def _convert(arithmetic: Doubles, env: Env, equation: Any, x: Numbers) -> Numbers:
    source, target = np.dtype(equation.invars[0].aval.dtype), result_dtype(equation)
    if is_float(target) and (is_float(source) or not is_float(x.dtype)):
        return x.real.astype(double(target), copy=False) if target.kind != "c" else x.astype(np.complex128, copy=False)
    return np.asarray(RULES["convert_element_type"](env, equation, x))


def _bits(arithmetic: Doubles, env: Env, equation: Any, x: Numbers) -> Numbers:
    source = np.dtype(equation.invars[0].aval.dtype)
    x = arithmetic.bits(env, equation, x, source) if is_float(source) else x
    return np.asarray(RULES["bitcast_convert_type"](env, equation, x))


def _gather(arithmetic: Doubles, env: Env, equation: Any, x: Numbers, indices: Numbers) -> Any:
    dtype = result_dtype(equation)
    fill = filler(dtype, equation.params["fill_value"]).astype(double(dtype))
    return RULES["gather"](env, Doubled(equation, fill_value=fill), x, indices)


def _power(arithmetic: Doubles, env: Env, equation: Any, x: Numbers, *exponent: Numbers) -> Numbers:
    """Powers of doubles, not of what is longer."""
    if exponent:
        base, by = aligned(env, equation, (x, exponent[0]))
        return np.power(base.astype(double(result_dtype(equation))), by)
    return np.asarray(x ** int(equation.params["y"]) if equation.params["y"] >= 0 else 1 / x ** -equation.params["y"])


def _logistic(arithmetic: Doubles, env: Env, equation: Any, x: Numbers) -> Numbers:
    """Backends take 1 / (1 + exp(-x)), which is zero where the exponential overflows; in a sample it may."""
    result = DIRECT["logistic"](x)
    if not isinstance(arithmetic, Sampled):
        return np.asarray(result)
    to = arithmetic._format(result_dtype(equation), "logistic")
    overflows = (np.exp(-x.real) > to.largest / COARSE) & np.isfinite(x)
    if not overflows.any():
        return np.asarray(result)
    return np.where(overflows & (arithmetic._chance(env, equation, x) < 0.5), 0.0, result)


def _stable(arithmetic: Doubles, env: Env, equation: Any, *operands: Numbers) -> Any:
    """The results for operands that are off by roundings of their largest number, zeros as well, in a sample."""
    if isinstance(arithmetic, Sampled):
        moved = []
        for x, v in zip(operands, equation.invars, strict=True):
            dtype = v.aval.dtype
            if is_float(np.dtype(dtype)):
                size = np.abs(np.where(np.isfinite(x), x, 0)).max(
                    axis=tuple(range(env.lead, x.ndim)), keepdims=True, initial=0
                )
                unit = arithmetic._format(np.dtype(dtype), equation.primitive.name).unit
                x = arithmetic._noise(env, equation, x, COARSE * unit, size)
            moved.append(x)
        operands = tuple(moved)
    return RULES[equation.primitive.name](env, doubled(equation), *operands)


AS_DOUBLES: dict[str, Callable[..., Any]] = {
    "convert_element_type": _convert,
    "bitcast_convert_type": _bits,
    **dict.fromkeys(
        ("reduce_precision", "optimization_barrier"), lambda arithmetic, env, equation, *operands: list(operands)
    ),
    "gather": _gather,
    "pow": _power,
    "integer_pow": _power,
    "logistic": _logistic,
    **dict.fromkeys(STABLE, _stable),
}
"""Primitives that do on doubles something else than their rule."""


def _precision(equation: Any) -> np.dtype:
    params = equation.params
    name = FORMATS.get((params["exponent_bits"], params["mantissa_bits"]))
    if name is None:
        raise InterpreterLimit(
            f"floats of {params['mantissa_bits']} bits (at {location(equation)})", "reduce_precision"
        )
    return np.dtype(name)
