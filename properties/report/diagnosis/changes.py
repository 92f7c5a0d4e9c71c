"""Changes of a traced program: how it runs with one, and those that are tried of it, the likeliest first.

A collective over other axes, or none; one that is missing; participants that are numbered in another order or along
another axis, or sent to; another dimension of an all-to-all, or order of dimensions, a roll the other way; a range that
is counted, or a sum that runs, within the block; what is computed on the wrong side of a collective; an array in
another's place; a scale too many, or one too few. No contract is needed, so that the mistakes of a user's own program
are found, by the line.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.collectives import axes_of
from shardproof.properties.engines.simulate.env import RULES, Env, Rule
from shardproof.properties.engines.simulate.errors import innermost, location
from shardproof.properties.engines.simulate.interpreter import as_value
from shardproof.properties.engines.simulate.jaxprs import CALLS, equations, open_jaxpr, subjaxprs
from shardproof.properties.laws.law import PROPERTIES
from shardproof.properties.precision.arithmetic import Doubled, Doubles, double
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.precision.runs import evaluated

Places = tuple[int, ...]
"""Equations of a program by their number."""

Axes = tuple[str, ...]


MOST_SWAPPED, MOST_CONSTANTS, MOST_AXES = 150, 2, 3
"""The most changes that take another array, the most constants that scale, the most axes of which all are tried."""

REDUCES = {
    "reduce_sum": "psum", "dot_general": "psum", "scatter-add": "psum", "reduce_max": "pmax", "reduce_min": "pmin",
}  # fmt: skip
"""The collective that may be missing after an operation that reduces a sharded dimension."""

RUNS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
"""Operations that run along a dimension, and how they go on from one number to the next."""

COMPUTES = ("add", "sub", "mul", "div", "max", "min", "dot_general")
"""The operations that may have been given another array."""

NUMBERS = ("first", "second")

EQUAL, UNEQUAL = (f"the comparison at {{at}} {side} where both sides are equal" for side in ("true", "false"))

OTHERS = {
    "lt": ("le", EQUAL), "gt": ("ge", EQUAL), "le": ("lt", UNEQUAL), "ge": ("gt", UNEQUAL),
    "add": ("sub", "sub in place of add at {at}"), "sub": ("add", "add in place of sub at {at}"),
}  # fmt: skip
"""Operations that are mistaken for one another where participants, steps and elements are counted, and the words."""

CASTS = ("pvary", "convert_element_type", "broadcast_in_dim")
"""Operations of which the result is another type of the operand."""

ELEMENTWISE = (
    *("add", "sub", "mul", "div", "max", "min", "pow", "integer_pow", "square", "sqrt", "rsqrt", "abs", "sign"),
    *("exp", "exp2", "log", "log1p", "tanh", "logistic"),
)
"""Operations that may be computed on the wrong side of a collective."""

EXCHANGE = ("psum", "psum_invariant", "pmax", "pmin", "ppermute", "all_to_all", "reduce_scatter")
"""The collectives whose result may have the shape of their operand."""

UNKNOWN = "an unknown place"
"""The `location` of an equation without one."""

AROUND = str(PROPERTIES / "programs")
"""The folder of this suite's code around the function."""


@dataclass(frozen=True)
class Change:
    """A change of some equations."""

    equations: frozenset[int] = frozenset()  # their identities
    params: tuple[tuple[str, Any], ...] = ()  # parameters, by name, in place of their own
    # what is applied to their results: `psum`, `pmean`, `pmax`, `pmin`; `once`: divided by the number of participants;
    # `rounded` to the dtype that was traced; `back`: a roll the other way; `whole`: numbers of elements of a block
    # become those of all blocks, and what runs over a block runs over all; `number`: that of the participant along
    # `axes`; `other`: the operation that `OTHERS` has in their place; `order`: the pairs of a ppermute number the
    # participants in the order of its axes; or nothing
    then: str = ""
    axes: tuple[str, ...] = ()  # the mesh axes over which that is
    times: float = 1  # by what their results are multiplied
    of: tuple[int, ...] = ()  # or the operand, and the dimension of its block, by whose size
    # an operand of theirs, by its number, that is the result of another equation, by its number and then its identity
    swapped: tuple[int, int] | None = None
    passing: int | None = None  # that is this operand of the other equation, which takes their result in its place
    operand: int | None = None  # an operand of theirs in place of their result

    def at(self, program: Simulated, case: Case, places: tuple[int, ...]) -> "Change":
        """The change of the equations of a case's program that have some numbers."""
        own = frozenset(id(program.equations[i]) for i in places)
        times = case.operands[self.of[0]].block[self.of[1]] if self.of else self.times
        swapped = self.swapped and (self.swapped[0], id(program.equations[self.swapped[1]]))
        return dataclasses.replace(self, equations=own, times=times, swapped=swapped)


NO_CHANGE = Change()

Words = tuple[str, Change]
"""One change, in words."""
Repair = tuple[str, Places, Change]
"""One change of a program: in words, the places, and the change of the equations there."""


@dataclass(frozen=True)
class Changed(Doubles):
    """Doubles, with a change."""

    change: Change = NO_CHANGE
    # the other equation of `change`: its rule, itself, its operands and results
    other: list[Any] = field(default_factory=list, compare=False)

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, or of the one in its place."""
        if id(equation) not in self.change.equations:
            results = super().run(env, rule, equation, operands)
            if self.change.swapped and self.change.swapped[1] == id(equation):
                self.other[:] = rule, equation, operands, results
            return results
        passing = self.change.passing
        if self.change.swapped:
            _, _, before, behind = self.other
            taken, number = behind[0] if passing is None else before[passing], self.change.swapped[0]
            operands = [*operands[:number], taken, *operands[number + 1 :]]
        if self.change.operand is not None:
            return [operands[self.change.operand]]
        params = {**equation.params, **dict(self.change.params)}
        if self.change.then == "order":
            at = numbers_by_the_mesh(env.mesh, axes_of(equation))
            params["perm"] = tuple((at[source], at[target]) for source, target in params["perm"])
        changed = equation.replace(params=params)
        if self.change.then == "other":
            other, _ = OTHERS[equation.primitive.name]
            changed, rule = changed.replace(primitive=getattr(lax, f"{other}_p")), RULES[other]
        results = super().run(env, rule, changed, operands)
        if passing is not None:
            rule, changed, before, _ = self.other
            return super().run(env, rule, changed, [*before[:passing], *results, *before[passing + 1 :]])
        if equation.primitive.name == "all_to_all":  # along another dimension; a reshape may follow
            lead = results[0].ndim - equation.outvars[0].aval.ndim
            results = [results[0].reshape(*results[0].shape[:lead], *equation.outvars[0].aval.shape)]
        if self.change.times != 1:
            return [x * self.change.times for x in results]
        if self.change.then in ("", "other", "order"):
            return results
        return [self._then(env, equation, x, v) for x, v in zip(results, equation.outvars, strict=True)]

    def _then(self, env: Env, equation: Any, x: Numbers, variable: Any) -> Numbers:
        then, axes = self.change.then, self.change.axes
        if then == "rounded":
            with np.errstate(over="ignore"):  # numbers beyond the dtype become infinite
                return np.asarray(x.astype(variable.aval.dtype).astype(double(variable.aval.dtype)))
        if equation.primitive.name in RUNS:
            return self._run_on(env, equation, x)
        if then in ("whole", "number"):
            number = np.asarray(RULES["axis_index"](env, SimpleNamespace(params={"axis_name": axes})))
            if then == "number":
                return number.astype(x.dtype)
            first = number * variable.aval.shape[equation.params["dimension"]]
            return np.asarray(x + first.reshape(*first.shape, *(1,) * variable.aval.ndim).astype(x.dtype))
        if then == "back":
            dimension = equation.params["dimension"]
            by = -2 * equation.invars[0].aval.shape[dimension]
            return np.roll(x, by, dimension - variable.aval.ndim)
        if then != "once":
            reduction = SimpleNamespace(
                primitive=SimpleNamespace(name="psum" if then == "pmean" else then),
                params={"axes": axes, "axis_index_groups": None},
                invars=[variable],
                outvars=[variable],
                source_info=equation.source_info,
            )
            (x,) = RULES[reduction.primitive.name](env, Doubled(reduction), x)
        return x if then not in ("once", "pmean") else x / math.prod(env.mesh.shape[axis] for axis in axes)

    def _run_on(self, env: Env, equation: Any, x: Numbers) -> Numbers:
        """The results of an operation that runs over a block, begun where it ends in the block before."""
        combine, dimension, rank = RUNS[equation.primitive.name], equation.params["axis"], len(self.change.axes)
        places = [env.mesh.axis_names.index(name) for name in self.change.axes]
        spread = np.moveaxis(env.everywhere(x), places, range(rank))
        order = slice(None, None, -1 if equation.params["reverse"] else 1)
        blocks = spread.reshape(-1, *spread.shape[rank:])[order]
        ends = blocks.take([0 if equation.params["reverse"] else -1], axis=dimension - equation.outvars[0].aval.ndim)
        blocks = np.concatenate([blocks[:1], combine(blocks[1:], combine.accumulate(ends, dtype=x.dtype)[:-1])])
        return np.moveaxis(blocks[order].reshape(spread.shape), range(rank), places)


def run_in_doubles(
    program: Simulated, *arrays: np.ndarray, change: Change = NO_CHANGE, arithmetic: Doubles | None = None
) -> list[np.ndarray]:
    """The results of a program on one data set in double precision, with a change; may raise InterpreterLimit."""
    values = program.typed([as_value(a) for a in arrays])
    arithmetic = arithmetic or Changed(change=change)
    return [np.array(x) for x in evaluated(Env(), program.live().closed_jaxpr, values, arithmetic)]


@dataclass(frozen=True)
class Traced:
    """The equations of a case's program, and the axes over which they may be changed."""

    case: Case
    equations: Sequence[Any]

    @functools.cached_property
    def long(self) -> Axes:
        """The axes of the mesh with several devices."""
        return tuple(self.case.mesh.longer(self.case.mesh.axis_names))

    @functools.cached_property
    def names(self) -> Axes:
        """The axes that a collective may be over: those of one device as well, which may be longer on another mesh."""
        return self.long if len(self.case.mesh.axis_names) > MOST_AXES else self.case.mesh.axis_names

    @functools.cached_property
    def axes(self) -> list[Axes]:
        """The axes of each role, every axis, and all of them."""
        roles = (tuple(self.case.mesh.longer(as_axes(axes))) for _, axes in self.case.roles)
        return [*filter(None, dict.fromkeys((*roles, *((name,) for name in self.long), self.long)))]

    @functools.cached_property
    def made(self) -> dict[Any, int]:
        """The number of the equation that makes a variable as its first result."""
        return {variable: i for i, equation in enumerate(self.equations) for variable in equation.outvars[:1]}

    def origin(self, x: Any) -> Any:
        """The variable, or literal, of which an operand is another type, within a call that it is the result of."""
        at = None if isinstance(x, core.Literal) else self.made.get(x)
        made = None if at is None else self.equations[at]
        if made is None:
            return x
        if made.primitive.name in CALLS:
            return self.origin(open_jaxpr(next(subjaxprs(made)))[0].outvars[0])
        return self.origin(made.invars[0]) if made.primitive.name in CASTS else x

    def maker(self, x: Any) -> int | None:
        """The number of the equation that makes an operand, but for its type."""
        origin = self.origin(x)
        return None if isinstance(origin, core.Literal) else self.made.get(origin)

    def varies(self, number: int) -> bool:
        """True if the result of an equation is not a constant."""
        return not isinstance(self.origin(self.equations[number].outvars[0]), core.Literal)

    def groups(self, of: Callable[[Any], bool]) -> list[Places]:
        """Groups the equations of some kind by what they do and their line, which is not that of this suite's calls."""
        found: dict[Any, list[int]] = {}
        for i, equation in enumerate(self.equations):
            if of(equation) and not (at := innermost(equation)).startswith(AROUND):
                name = equation.primitive.name
                does = OTHERS[name][1] if name in OTHERS else name  # a comparison may have its sides in either order
                key = does, axes_of(equation), equation.params.get("perm"), at
                found.setdefault(key, []).append(i)
        return [tuple(places) for places in found.values()]

    @functools.cached_property
    def _around(self) -> dict[int, list[Any]]:
        """The calls around each equation, by its identity, from the outermost on."""
        around: dict[int, list[Any]] = {}
        for call in self.equations:
            for inner in itertools.chain.from_iterable(map(equations, subjaxprs(call))):
                around.setdefault(id(inner), []).append(call)
        return around

    def line(self, equation: Any) -> str:
        """An equation's line, without the folder; of one of JAX's own functions, that of the innermost call known."""
        calls = [*self._around.get(id(equation), ()), equation]
        lines = [location(one).rpartition("/")[2] for one in reversed(calls)]
        return next((text for text in lines if text != UNKNOWN), UNKNOWN)

    def place(self, equation: Any) -> str:
        """An equation's operation and line."""
        return f"{equation.primitive.name.removesuffix('_invariant')} at {self.line(equation)}"


def changes_of(case: Case, program: Simulated) -> Iterator[Repair]:
    """The changes that are tried, the likeliest first."""
    traced = Traced(case, program.equations)
    yield from _orders(traced)
    for of, change in CHANGES:
        for places in traced.groups(functools.partial(of, traced)):
            yield from ((text, places, one) for text, one in change(traced, traced.equations[places[0]]))
    reducing = traced.groups(lambda e: e.primitive.name in REDUCES and e.outvars[0].aval.dtype != bool)
    for places in [*reducing, *((i,) for same in reducing if len(same) > 1 for i in same)]:
        name = traced.equations[places[0]].primitive.name
        for then in (REDUCES[name], *(["pmean"] if name == "reduce_sum" else [])):
            yield from _behind(traced, places, then)
    yield from _exchanges(traced)
    floats = [places for places in traced.groups(gives_floats) if traced.varies(places[0])]
    for places in floats:
        yield from _behind(traced, places, "once")
    for places in traced.groups(lambda e: e.primitive.name in ("mul", "div", "add", "sub")):
        yield from ((text, places, one) for text, one in _one_too_many(traced, traced.equations[places[0]]))
    for places in floats:
        if places not in reducing:
            yield from _behind(traced, places, "psum")
    for places in traced.groups(lambda e: e.primitive.name in ("add", "sub") and gives_floats(e)):
        yield from ((text, places, one) for text, one in _counts(traced, traced.equations[places[0]]))
    yield from itertools.islice(_operands(traced), MOST_SWAPPED)
    yield from _missing_scales(traced, floats)


def _orders(traced: Traced) -> Iterator[Repair]:
    """Numbers the participants in the order of the tuple of axes: `lax.ppermute` numbers them in that of the mesh."""
    mesh = traced.case.mesh
    wrong = [places for places in traced.groups(is_out_of_order(mesh)) if places]
    if wrong:
        first = traced.equations[wrong[0][0]]
        text = (
            f"the {traced.place(first)} numbered by {axes_of(first)}, as `lax.axis_index` is; JAX numbers its devices"
        )
        order = f"in the order of the mesh, {mesh.in_mesh_order(axes_of(first))}"
        more = "" if len(wrong) == 1 else f"; and {len(wrong) - 1} more"
        yield f"{text} {order}{more}", tuple(sorted(itertools.chain(*wrong))), Change(then="order")


def is_out_of_order(mesh: MeshCase) -> Callable[[Any], bool]:
    """Returns a predicate of equations: a `ppermute` over a tuple that is not in the order of the mesh."""
    return lambda e: e.primitive.name == "ppermute" and axes_of(e) != mesh.in_mesh_order(axes_of(e))


def _permutations(traced: Traced, first: Any) -> Iterator[Words]:
    """Sends blocks the other way, or further, or round the ring, or not round it."""
    perm, p = tuple(first.params["perm"]), traced.case.mesh.axis_size(axes_of(first))
    ways = {"with source and destination swapped": tuple((to, source) for source, to in perm)}
    for by in sorted(range(1 - p, p), key=lambda by: (abs(by), -by))[1:7]:  # the shortest distances
        to = f"i {'+' if by > 0 else '-'} {abs(by)}"
        ways[f"that sends block i to ({to}) % p, with p={p}"] = tuple((i, (i + by) % p) for i in range(p))
        ways[f"that sends block i to {to} and none round"] = tuple((i, i + by) for i in range(p) if 0 <= i + by < p)
    for text, other in ways.items():
        if {*other} != {*perm}:
            yield f"the {traced.place(first)} {text}", Change(params=(("perm", other),))


def _other_orders(traced: Traced, first: Any) -> Iterator[Words]:
    """Gathers, scatters or exchanges over other axes, or in another order of them."""
    own = axes_of(first)
    for other in itertools.permutations(traced.names, len(own)):
        if other != own:
            text = f"the {traced.place(first)} over {in_order(other)}, not over {in_order(own)}"
            yield text, Change(params=(("axis_name", other),))


def _dimensions(traced: Traced, first: Any) -> Iterator[Words]:
    """Splits or joins another dimension in an all-to-all."""
    for name, other in itertools.product(("split_axis", "concat_axis"), range(first.invars[0].aval.ndim)):
        if other != first.params[name]:
            text = f"the {traced.place(first)} with another {name}: {other} of its operand {first.invars[0].aval.shape}"
            yield text, Change(params=((name, other),))


def _orders_of_dimensions(traced: Traced, first: Any) -> Iterator[Words]:
    """Orders the dimensions otherwise, or not at all."""
    of, own = first.invars[0].aval.shape, first.params["permutation"]
    for order in itertools.permutations(range(len(of))):
        if order != own and all(of[d] == n for d, n in zip(order, first.outvars[0].aval.shape, strict=True)):
            text = f"the {traced.place(first)} with the permutation {order} in place of {own}"
            yield (
                text if order != (*sorted(own),) else f"no {traced.place(first)}",
                Change(params=(("permutation", order),)),
            )


def _rolls(traced: Traced, first: Any) -> Iterator[Words]:
    """Rolls the other way: two slices of one array are joined."""
    makers = [traced.maker(x) for x in first.invars]
    parts = [traced.equations[at] for at in makers if at is not None]
    of = {part.invars[0] for part in parts if part.primitive.name == "slice"}
    if len(of) == 1 and len(parts) == len(makers) == 2 and of.pop().aval.shape == first.outvars[0].aval.shape:
        yield f"the roll at {traced.line(first)} the other way", Change(then="back")


def _counts(traced: Traced, first: Any) -> Iterator[Words]:
    """Compares or adds integers in another way."""
    yield OTHERS[first.primitive.name][1].format(at=traced.line(first)), Change(then="other")


def _numbers(traced: Traced, first: Any) -> Iterator[Words]:
    """Takes the number of a participant along other axes, in any order."""
    own, names = numbered(traced, first), traced.names
    for other in (other for n in range(1, len(names) + 1) for other in itertools.permutations(names, n)):
        if first.primitive.name != "axis_index":
            yield (
                f"axis_index along {in_order(other)} in place of what {traced.place(first)} gives",
                Change(then="number", axes=other),
            )
        elif other != own:
            yield (
                f"{traced.place(first)} along {in_order(other)} in place of {in_order(own)}",
                Change(then="number", axes=other),
            )


def numbered(traced: Traced, equation: Any) -> Axes:
    """The axes that the number of a participant is along, if an equation gives one: of several axes it is a sum."""
    if equation.primitive.name == "axis_index":
        return axes_of(equation)
    sums = equation.primitive.name in ("add", "mul") and not equation.outvars[0].aval.shape
    makers = map(traced.maker, equation.invars if sums else ())
    found = (numbered(traced, traced.equations[at]) for at in makers if at is not None)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))


def _local_numbers(traced: Traced, first: Any) -> Iterator[Words]:
    """Numbers elements within all blocks, not within one."""
    how = "continued from the block before along {}"
    if first.primitive.name == "iota":
        how = "counted from where the block begins along {}, not from 0"
    for axes in traced.axes:
        yield f"{traced.place(first)} {how.format(_words(axes))}", Change(then="whole", axes=axes)


def _sizes(traced: Traced, first: Any) -> Iterator[Words]:
    """Multiplies the number of a participant by the size of a block."""
    sizes = {n: (i, d) for i, o in enumerate(traced.case.operands) for d, n in enumerate(o.block) if n > 1}
    readers = {e.primitive.name for e in traced.equations if any(x is first.outvars[0] for x in e.invars)}
    for n, of in () if readers <= {"eq", "ne"} else sizes.items():
        yield f"{n} times what {traced.place(first)} gives, the size of a block", Change(of=of)


def _other_axes(traced: Traced, first: Any) -> Iterator[Words]:
    """Reduces over more axes, fewer, others or none, or as a mean; what is a mean gets its other divisor as well."""
    axes, mesh, sums = axes_of(first), traced.case.mesh, first.primitive.name.startswith("psum")
    numbers = tuple(name for name in first.params["axes"] if isinstance(name, int))
    every = [*axes, *(name for name in traced.names if name not in axes)]
    sets = [some for n in range(len(every), -1, -1) for some in itertools.combinations(every, n)]
    for some in sorted(sets, key=lambda some: not {*some} > {*axes}):
        more = {*some} > {*axes}
        text = f"over {_words(some)}, not over {_words(axes)}{' alone' if more else ''}"
        for mean in ("", "mean by the ")[: 1 + sums] if {*some} != {*axes} else ():
            by = mesh.axis_size(axes) / mesh.axis_size(some) if mean else 1
            words = f"the {mean}{traced.place(first)} {text}" if some else f"no {mean}{traced.place(first)}"
            yield words, Change(params=(("axes", (*some, *numbers)),), times=by)
    if sums:
        averaged = Change(params=(("axes", numbers),), then="pmean", axes=axes)
        yield f"pmean over {_words(axes)} in place of the {traced.place(first)}", averaged


def _behind(traced: Traced, places: Places, then: str) -> Iterator[Repair]:
    """Reduces the results of equations, or counts them once."""
    first = traced.equations[places[0]]
    summed = axes_of(first) if first.primitive.name.startswith("psum") else ()
    for axes in traced.axes:
        if then == "once":
            text = f"what {traced.place(first)} gives counted once, not by every participant along {_words(axes)}"
        else:
            text = f"{then} over {_words(axes)} of what {traced.place(first)} gives"
        if then != "psum" or not {*axes} & {*summed}:
            yield text, places, Change(then=then, axes=axes)


def _exchanges(traced: Traced) -> Iterator[Repair]:
    """Computes behind a collective what is computed before it, or before it what is computed behind it."""
    for i, second in enumerate(traced.equations):
        for number, at in enumerate(map(traced.maker, second.invars)):
            if at is None:
                continue
            first = traced.equations[at]
            names = first.primitive.name, second.primitive.name
            sides = names if names[0] in ELEMENTWISE else names[::-1]
            for passing, y in enumerate(first.invars if (sides[0] in ELEMENTWISE and sides[1] in EXCHANGE) else ()):
                if not isinstance(y, core.Literal) and y.aval.shape == first.outvars[0].aval.shape:
                    text = f"{traced.place(first)} behind {traced.place(second)}, not before it"
                    yield text, (i,), Change(swapped=(number, at), passing=passing)


def _means(traced: Traced, first: Any) -> Iterator[Words]:
    """Sums over devices in place of a mean: a `pmean` is a `psum`, divided on the same line."""
    at = traced.maker(first.invars[0])
    summed = None if at is None else traced.equations[at]
    if summed is not None and summed.primitive.name in ("psum", "psum_invariant") and is_on_one_line(summed, first):
        axes = axes_of(summed)
        by, p = traced.origin(first.invars[1]), traced.case.mesh.axis_size(axes)
        if isinstance(by, core.Literal) and by.val == p:
            text = f"psum over {_words(axes)} in place of the pmean at {traced.line(first)}"
            yield text, Change(operand=0)


def _one_too_many(traced: Traced, first: Any) -> Iterator[Words]:
    """Leaves out a scale, as of a temperature that is applied twice, or a term."""
    for number, x in enumerate(first.invars[: 1 if first.primitive.name in ("div", "sub") else 2]):
        if not isinstance(x, core.Literal) and x.aval.shape == first.outvars[0].aval.shape:
            yield f"no {traced.place(first)}: its {NUMBERS[number]} operand as it is", Change(operand=number)


def _operands(traced: Traced) -> Iterator[Repair]:
    """Takes another array of the same type, as that before a collective in place of that behind it."""
    for i, equation in enumerate(traced.equations):
        for number, x in enumerate(equation.invars if equation.primitive.name in COMPUTES else ()):
            for other, k in () if isinstance(x, core.Literal) else traced.made.items():
                if k < i and other is not x and (other.aval.shape, other.aval.dtype) == (x.aval.shape, x.aval.dtype):
                    its = f"as {NUMBERS[number]} operand of {traced.place(equation)}"
                    yield f"what {traced.place(traced.equations[k])} gives {its}", (i,), Change(swapped=(number, k))


def _missing_scales(traced: Traced, floats: Sequence[Places]) -> Iterator[Repair]:
    """Scales by a constant of the program, as by a temperature that one of two terms lacks."""
    scaled = (e for e in traced.equations if e.primitive.name in ("mul", "div") and gives_floats(e))
    factors = (traced.origin(x) for e in scaled for x in e.invars)
    constants = dict.fromkeys(abs(float(x.val)) for x in factors if isinstance(x, core.Literal) and np.isrealobj(x.val))
    for constant in [c for c in constants if c not in (0, 1)][:MOST_CONSTANTS]:
        for places, (word, by) in itertools.product(floats, (("divided", 1 / constant), ("multiplied", constant))):
            text = f"what {traced.place(traced.equations[places[0]])} gives {word} by {constant:g}"
            yield text, places, Change(times=by)


def is_named(*names: str, kinds: str = "") -> Callable[[Traced, Any], bool]:
    """Returns a predicate of equations: their operation has such a name, their first operand such a kind of dtype."""
    return lambda traced, e: (
        e.primitive.name in names and (not kinds or [*e.invars, *e.outvars][0].aval.dtype.kind in kinds)
    )


def is_on_one_line(one: Any, other: Any) -> bool:
    """True if both equations were traced on the same line."""
    return innermost(one) == innermost(other)


def gives_floats(equation: Any) -> bool:
    """True if the result is one array of floats."""
    return len(equation.outvars) == 1 and is_float(np.dtype(equation.outvars[0].aval.dtype))


CHANGES: tuple[tuple[Callable[[Traced, Any], bool], Callable[[Traced, Any], Iterator[Words]]], ...] = (
    (is_named("ppermute"), _permutations),
    (is_named("all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all"), _other_orders),
    (is_named("all_to_all"), _dimensions),
    (is_named("transpose"), _orders_of_dimensions),
    (is_named("concatenate"), _rolls),
    (is_named(*OTHERS, kinds="iu"), _counts),
    (is_named("axis_index"), _numbers),
    (lambda traced, e: e.primitive.name == "add" and len(numbered(traced, e)) > 1, _numbers),
    (is_named("iota", kinds="iu"), _local_numbers),
    (is_named(*RUNS), _local_numbers),
    (is_named("axis_index"), _sizes),
    (is_named("div"), _means),
    (is_named("psum", "psum_invariant", "pmax", "pmin"), _other_axes),
)
"""The changes that are tried of groups of equations: of which kind, and how."""


def numbers_by_the_mesh(mesh: MeshCase, axes: Sequence[str]) -> list[int]:
    """The number of every participant in the order of the mesh, by that in the order of the tuple."""
    ordered = mesh.in_mesh_order(axes)
    numbers = np.arange(mesh.axis_size(ordered)).reshape([mesh.shape[name] for name in ordered])
    return [int(n) for n in numbers.transpose([ordered.index(name) for name in axes]).ravel()]


def _words(axes: Sequence[str]) -> str:
    return " and ".join(map(repr, axes)) if axes else "no axis"


def in_order(axes: Axes) -> str:
    """A tuple of axes, or the name of one."""
    return repr(axes[0] if len(axes) == 1 else axes)
