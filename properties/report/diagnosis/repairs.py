"""The single change that would make a program right: changes are tried in the interpreter, in double precision.

A collective over other axes, or none; one that is missing; participants that are numbered in another order or along
another axis, or sent to; another dimension of an all-to-all, a roll the other way; a range that is counted, or a sum
that runs, within the block; an array in another's place; a scale too many, or one too few. No contract is needed, so
that the mistakes of a user's own program are found as well, by the line.
A change is reported if it makes all results right on several data sets.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from shardproof.oracles.dtypes import is_float, unit_roundoff, wide
from shardproof.oracles.layout import nan_equal
from shardproof.oracles.mesh import MeshCase, as_axes
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines.running import all_blocks, ready, reference_blocks
from shardproof.properties.engines.simulate import Simulated
from shardproof.properties.engines.simulate.collectives import axes_of
from shardproof.properties.engines.simulate.env import RULES, Env, Rule
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.interpreter import as_value
from shardproof.properties.engines.simulate.liveness import equations as within
from shardproof.properties.engines.simulate.liveness import subjaxprs
from shardproof.properties.precision.arithmetic import Doubled, Doubles, double
from shardproof.properties.precision.formats import Numbers
from shardproof.properties.precision.runs import INTERPRETER, evaluated
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.diagnosis.runs import MOST, enlarge
from shardproof.properties.runner.neighbours import fitting_cases, resize_mesh
from shardproof.properties.runner.preconditions import check_case
from shardproof.properties.runner.violation import LawViolation


@dataclass(frozen=True)
class Change:
    """A change of some equations."""

    equations: frozenset[int] = frozenset()  # their identities
    params: tuple[tuple[str, Any], ...] = ()  # parameters, by name, in place of their own
    # what is applied to their results: `psum`, `pmean`, `pmax`, `pmin`; `once`: divided by the number of participants;
    # `rounded` to the dtype that was traced; `back`: a roll the other way; `whole`: numbers of elements of a block
    # become those of all blocks, and what runs over a block runs over all; or nothing
    then: str = ""
    axes: tuple[str, ...] = ()  # the mesh axes over which that is
    primitive: str = ""  # another primitive in their place
    times: float = 1  # by what their results are multiplied
    of: tuple[int, ...] = ()  # or the operand, and the dimension of its block, by whose size
    # an operand of theirs, by its number, that is the result of another equation, by its number and then its identity
    swapped: tuple[int, int] | None = None
    operand: int | None = None  # an operand of theirs in place of their result

    def at(self, program: Simulated, case: Case, places: tuple[int, ...]) -> "Change":
        """The change of the equations of a case's program that have some numbers."""
        own = frozenset(id(program.equations[i]) for i in places)
        times = case.operands[self.of[0]].block[self.of[1]] if self.of else self.times
        swapped = self.swapped and (self.swapped[0], id(program.equations[self.swapped[1]]))
        return dataclasses.replace(self, equations=own, times=times, swapped=swapped)


NO_CHANGE = Change()


@dataclass(frozen=True)
class Changed(Doubles):
    """Doubles, with a change."""

    change: Change = NO_CHANGE
    results: dict[int, Numbers] = field(default_factory=dict, compare=False)  # of the equation that `change` swaps in

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, or of the one in its place."""
        if id(equation) not in self.change.equations:
            results = super().run(env, rule, equation, operands)
            if self.change.swapped and self.change.swapped[1] == id(equation):
                self.results[id(equation)] = results[0]
            return results
        if self.change.swapped:
            number, its = self.change.swapped
            operands = [*operands[:number], self.results[its], *operands[number + 1 :]]
        if self.change.operand is not None:
            return [operands[self.change.operand]]
        changed = equation.replace(params={**equation.params, **dict(self.change.params)})
        if other := self.change.primitive:
            changed, rule = changed.replace(primitive=getattr(lax, f"{other}_p")), RULES[other]
        results = super().run(env, rule, changed, operands)
        if equation.primitive.name == "all_to_all":  # along another dimension; a reshape may follow
            lead = results[0].ndim - equation.outvars[0].aval.ndim
            results = [results[0].reshape(*results[0].shape[:lead], *equation.outvars[0].aval.shape)]
        if self.change.times != 1:
            return [x * self.change.times for x in results]
        if not self.change.then:
            return results
        return [self._then(env, equation, x, v) for x, v in zip(results, equation.outvars, strict=True)]

    def _then(self, env: Env, equation: Any, x: Numbers, variable: Any) -> Numbers:
        then, axes = self.change.then, self.change.axes
        if then == "rounded":
            with np.errstate(over="ignore"):  # numbers beyond the dtype become infinite
                return np.asarray(x.astype(variable.aval.dtype).astype(double(variable.aval.dtype)))
        if equation.primitive.name in RUNS:
            return self._run_on(env, equation, x)
        if then == "whole":
            number = RULES["axis_index"](env, SimpleNamespace(params={"axis_name": axes}))
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
    program: Simulated, *arrays: np.ndarray, change: Change = NO_CHANGE, arithmetic: Changed | None = None
) -> list[np.ndarray]:
    """The results of a program on one data set in double precision, with a change; may raise InterpreterLimit."""
    values = program.typed([as_value(a) for a in arrays])
    arithmetic = arithmetic or Changed(change=change)
    return [np.array(x) for x in evaluated(Env(), program.live().closed_jaxpr, values, arithmetic)]


UNKNOWN = "an unknown place"
"""The `location` of an equation without one."""

MOST_CHANGES, MOST_SWAPPED, MOST_CONSTANTS = 400, 150, 2
"""The most changes that are tried, the most of them that take another array, and the most constants that scale."""

TOLERANCE = 1e-6
"""How far a number may be off, relative to the largest: roundings to 16 bits on the way are not made."""

DATA = (("exact", 1), ("real", 2), ("real", 3))
"""The kinds of data on which a change must help, with what is added to the seed of the failure."""

REDUCES = {
    "reduce_sum": "psum", "dot_general": "psum", "scatter-add": "psum", "reduce_max": "pmax", "reduce_min": "pmin",
}  # fmt: skip
"""The collective that may be missing after an operation that reduces a sharded dimension."""

RUNS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}
"""Operations that run along a dimension, and how they go on from one number to the next."""

COMPUTES = ("add", "sub", "mul", "div", "max", "min", "dot_general")
"""The operations that may have been given another array."""

NUMBERS = ("first", "second")

OTHERS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "add": "sub", "sub": "add"}
"""Operations that are mistaken for one another where participants, steps and elements are counted."""

Blocks = list[np.ndarray]
Places = tuple[int, ...]
"""Equations of a program by their number."""

Repair = tuple[str, Places, Change]
"""One change of a program: in words, the places, and the change of the equations there."""


@dataclass(frozen=True)
class Trial:
    """A program on a data set, with the blocks that are right."""

    program: Simulated
    case: Case
    arrays: Blocks
    right: Blocks
    within: float = TOLERANCE  # how far off they may be, relative to the largest of them

    def holds(self, places: Places = (), change: Change = NO_CHANGE) -> bool:
        """True if all results are right if the program is changed."""
        try:
            results = run_in_doubles(self.program, *self.arrays, change=change.at(self.program, self.case, places))
        except Exception:  # shapes that do not fit one another, devices that wait for ever
            return False
        pairs = zip(results, self.right, strict=False)
        return all(is_close(all_blocks(self.case, x), right, self.within) for x, right in pairs)


def is_close(blocks: np.ndarray, right: np.ndarray, part: float) -> bool:
    """True if blocks are equal, but for a part of the largest right number; NaN and infinities must be the same."""
    if blocks.shape != right.shape or not is_float(right.dtype):
        return bool(np.array_equal(blocks, right))
    blocks, right = blocks.astype(wide(blocks.dtype)), right.astype(wide(right.dtype))
    with np.errstate(invalid="ignore"):
        close = np.abs(blocks - right) <= part * np.abs(np.where(np.isfinite(right), right, 0)).max(initial=0)
    return bool((nan_equal(blocks, right) | close).all())


def repair_of(violation: LawViolation) -> Repair | None:
    """The change that makes the results right, if one does."""
    case, data = violation.case, violation.data
    if data is None or not _has_wrong_values(violation):
        return None
    for one in filter(None, (case, enlarge(case, violation.implementation))):  # some steps are skipped on one element
        with contextlib.suppress(Exception):  # a function may refuse other data, and the interpreter the function
            if found := _found(violation.implementation, one, data):
                return found
    return None


def _has_wrong_values(violation: LawViolation) -> bool:
    """True if the values of a result are wrong on a mesh that is small enough for more runs."""
    of_result = violation.difference is not None and violation.difference.of == "result"
    return of_result and not violation.law.between_engines and violation.case.mesh.size <= MOST


@functools.lru_cache(maxsize=1)  # both a diagnosis and the steps of the page call it
def _found(implementation: Implementation, case: Case, data: Data) -> Repair | None:
    program = program_of(implementation, case)
    tried = [*itertools.islice(_changes(case, program), MOST_CHANGES)]
    own = [data, *(Data(kind, data.seed + more) for kind, more in DATA)]
    trials = [*_trials(implementation, case, own)] if tried else []
    wrong = [trial for trial in trials if not trial.holds()]
    if not wrong or len(trials) < 2:
        return None
    if implementation.within and dataclasses.replace(wrong[0], within=8 * wrong[0].within).holds():
        return None  # it is off by design, and by little more: a finer approximation is no repair
    others = [*_others(case, implementation, own[1:])]
    for text, places, change in tried:
        if not wrong[0].holds(places, change) or not helps(trials, places, change):
            continue
        if all(any(helps(more, *one) for one in same.get(_key(text), ())) for more, same in others):
            return text.replace(UNKNOWN, _called_at(program.equations, places[0])), places, change
    return None


def helps(trials: Sequence[Trial], places: Places, change: Change) -> bool:
    """True if a change makes the results of all trials right."""
    return all(trial.holds(places, change) for trial in trials)


Same = dict[str, list[tuple[Places, Change]]]
"""The changes of a program, by their words without sizes."""


def _others(case: Case, implementation: Implementation, sets: Sequence[Data]) -> Iterator[tuple[list[Trial], Same]]:
    """Larger blocks, and longer axes, on which a change has to help too: few elements or devices agree by coincidence.

    A case that the function or the interpreter does not support is left out.
    """
    mesh, larger = case.mesh, enlarge(case, implementation) or case
    longer = resize_mesh(mesh, tuple(n + 1 for n in mesh.sizes))
    for other in (larger, *fitting_cases(larger, dataclasses.replace(larger, mesh=longer))):
        with contextlib.suppress(Exception):
            check_case("value", other)
            if implementation.serves is not None and not implementation.serves(other):
                continue
            program, same = program_of(implementation, other), Same()
            for text, places, change in itertools.islice(_changes(other, program), MOST_CHANGES):
                same.setdefault(_key(text), []).append((places, change))
            if trials := [*_trials(implementation, other, sets)]:
                yield trials, same


def _key(text: str) -> str:
    """The words of a change without the sizes in them."""
    return re.sub(r"^\d+ times|, with p=\d+|of its operand \(.*?\)", "", text)


def _called_at(equations: Sequence[Any], number: int) -> str:
    """The innermost known place from which an equation of one of JAX's own functions is called."""
    around = [e for e in equations if any(equations[number] is one for inner in subjaxprs(e) for one in within(inner))]
    known = [location(e).rpartition("/")[2] for e in around]
    return next((text for text in reversed(known) if text != UNKNOWN), UNKNOWN)


def program_of(implementation: Implementation, case: Case) -> Simulated:
    """A case's program, as the interpreter runs it."""
    prepared = ready("value", implementation, case, INTERPRETER).prepared
    assert isinstance(prepared, Simulated)
    return prepared


def _trials(implementation: Implementation, case: Case, sets: Sequence[Data]) -> Iterator[Trial]:
    """A case's program on data sets on which some right values are finite."""
    program = program_of(implementation, case)
    for data in sets:
        arrays = operands(case, data)
        right = reference_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])
        if all(np.isfinite(x).any() for x in right if is_float(x.dtype) and x.size):
            yield Trial(program, case, arrays, right, max(TOLERANCE, implementation.within))


def _changes(case: Case, program: Simulated) -> Iterator[Repair]:
    """The changes that are tried, the likeliest first."""
    equations, long = program.equations, case.mesh.longer(case.mesh.axis_names)
    some = [*((name,) for name in long), *([tuple(long)] if len(long) > 1 else [])]  # every axis, and all of them
    yield from _orders(case, program)
    yield from _permutations(case, equations)
    yield from _dimensions(equations)
    yield from _counts(equations)
    yield from _numbered_along(equations, long)
    yield from _local_numbers(case, equations)
    for places in group_equations(equations, lambda e: e.primitive.name in ("psum", "psum_invariant", "pmax", "pmin")):
        yield from _other_axes(equations[places[0]], places, long)
    floats = _floats(equations)
    reducing = group_equations(equations, lambda e: e.primitive.name in REDUCES and e.outvars[0].aval.dtype != bool)
    for places in [*reducing, *((i,) for same in reducing if len(same) > 1 for i in same)]:
        name = equations[places[0]].primitive.name
        for then in (REDUCES[name], *(["pmean"] if name == "reduce_sum" else [])):
            yield from _behind(equations, places, then, some)
    for places in floats:
        yield from _behind(equations, places, "once", some)
    for places in floats:
        if places not in reducing:
            yield from _behind(equations, places, "psum", some)
    yield from _scales_too_many(equations)
    yield from itertools.islice(_operands(equations), MOST_SWAPPED)
    yield from _missing_scales(equations, floats)


def _scales_too_many(equations: Sequence[Any]) -> Iterator[Repair]:
    """Leaves out a scale, as of a temperature that is applied twice."""
    for places in group_equations(equations, lambda e: e.primitive.name in ("mul", "div")):
        first = equations[places[0]]
        for number, x in enumerate(first.invars[: 1 if first.primitive.name == "div" else 2]):
            if not isinstance(x, core.Literal) and x.aval.shape == first.outvars[0].aval.shape:
                yield f"no {place(first)}: its {NUMBERS[number]} operand as it is", places, Change(operand=number)


def _missing_scales(equations: Sequence[Any], floats: Sequence[Places]) -> Iterator[Repair]:
    """Scales by a constant of the program, as by a temperature that one of two terms lacks."""
    literals: dict[Any, float] = {}  # also of what a constant is in the type of an array

    def value_of(x: Any) -> float:
        if isinstance(x, core.Literal):
            return float(x.val) if np.isrealobj(x.val) else 0.0
        return literals.get(x, 0.0)

    constants = dict[float, None]()
    for e in equations:
        if e.primitive.name in ("pvary", "broadcast_in_dim", "convert_element_type"):
            literals[e.outvars[0]] = value_of(e.invars[0])
        if e.primitive.name in ("mul", "div") and is_float(np.dtype(e.outvars[0].aval.dtype)):
            constants |= dict.fromkeys(abs(value_of(x)) for x in e.invars)
    for constant in [c for c in constants if c not in (0, 1)][:MOST_CONSTANTS]:
        for places, (word, by) in itertools.product(floats, (("divided", 1 / constant), ("multiplied", constant))):
            yield f"what {place(equations[places[0]])} gives {word} by {constant:g}", places, Change(times=by)


def _operands(equations: Sequence[Any]) -> Iterator[Repair]:
    """Takes another array of the same type, as that before a collective in place of that behind it."""
    where = {variable: i for i, equation in enumerate(equations) for variable in equation.outvars[:1]}
    for i, equation in enumerate(equations):
        if equation.primitive.name not in COMPUTES:
            continue
        for number, x in enumerate(equation.invars):
            for other, k in [] if isinstance(x, core.Literal) else where.items():
                if k < i and other is not x and (other.aval.shape, other.aval.dtype) == (x.aval.shape, x.aval.dtype):
                    text = f"what {place(equations[k])} gives as {NUMBERS[number]} operand of {place(equation)}"
                    yield text, (i,), Change(swapped=(number, k))


def _behind(equations: Sequence[Any], places: Places, then: str, some: Sequence[tuple[str, ...]]) -> Iterator[Repair]:
    """Reduces the results of equations, or counts them once."""
    its = f"what {place(equations[places[0]])} gives"
    for axes in some:
        over = f"{then} over {_words(axes)} of {its}"
        once = f"{its} counted once, not by every participant along {_words(axes)}"
        yield once if then == "once" else over, places, Change(then=then, axes=axes)


def _other_axes(first: Any, places: Places, long: Sequence[str]) -> Iterator[Repair]:
    """Reduces over more axes, over fewer, none, or as a mean."""
    axes, names = axes_of(first), first.params["axes"]
    numbered = tuple(name for name in names if isinstance(name, int))
    its = f"the {place(first)} over"

    def over(some: tuple[Any, ...], then: str = "") -> Change:
        return Change(params=(("axes", some),), then=then, axes=axes if then else ())

    for more in long:
        if more not in axes:
            yield f"{its} {_words((*axes, more))}, not over {_words(axes)} alone", places, over((*names, more))
    if first.primitive.name.startswith("psum"):
        yield f"a mean in place of {its} {_words(axes)}", places, over(numbered, "pmean")
    for less in [name for name in axes if name in long]:
        rest = tuple(name for name in axes if name != less)
        text = f"{its} {_words(rest)} alone, not {_words((less,))}" if rest else f"no {place(first)}"
        yield text, places, over((*rest, *numbered))


def _orders(case: Case, program: Simulated) -> Iterator[Repair]:
    """Numbers the participants in the order of the tuple of axes: `lax.ppermute` numbers them in that of the mesh."""
    equations = program.equations
    for places in group_equations(equations, lambda e: e.primitive.name == "ppermute"):
        first = equations[places[0]]
        axes, perm = axes_of(first), first.params["perm"]
        ordered = case.mesh.in_mesh_order(axes)
        if tuple(axes) != tuple(ordered):
            at = numbers_by_the_mesh(case.mesh, axes, ordered)
            change = Change(params=(("perm", tuple((at[s], at[t]) for s, t in perm)),))
            text = f"the {place(first)} numbered by {axes}, as `lax.axis_index` is; JAX numbers its devices in the"
            yield f"{text} order of the mesh, {tuple(ordered)}", places, change


def _permutations(case: Case, equations: Sequence[Any]) -> Iterator[Repair]:
    """Sends blocks the other way, or further, or round the ring, or not round it."""
    for places in group_equations(equations, lambda e: e.primitive.name == "ppermute"):
        first = equations[places[0]]
        perm, p = tuple(first.params["perm"]), case.mesh.axis_size(axes_of(first))
        ways = {"with source and destination swapped": tuple((to, source) for source, to in perm)}
        for by in sorted(range(1 - p, p), key=lambda by: (abs(by), -by))[1:7]:  # the shortest distances
            to = f"i {'+' if by > 0 else '-'} {abs(by)}"
            ways[f"that sends block i to ({to}) % p, with p={p}"] = tuple((i, (i + by) % p) for i in range(p))
            ways[f"that sends block i to {to} and none round"] = tuple((i, i + by) for i in range(p) if 0 <= i + by < p)
        for text, other in ways.items():
            if {*other} != {*perm}:
                yield f"the {place(first)} {text}", places, Change(params=(("perm", other),))


def _dimensions(equations: Sequence[Any]) -> Iterator[Repair]:
    """Splits or joins another dimension in an all-to-all, and rolls the other way."""
    for places in group_equations(equations, lambda e: e.primitive.name == "all_to_all"):
        first = equations[places[0]]
        for name, other in itertools.product(("split_axis", "concat_axis"), range(first.invars[0].aval.ndim)):
            if other != first.params[name]:
                text = f"the {place(first)} with another {name}: {other} of its operand {first.invars[0].aval.shape}"
                yield text, places, Change(params=((name, other),))
    made = {variable: equation for equation in equations for variable in equation.outvars}
    for places in group_equations(equations, lambda e: e.primitive.name == "concatenate" and len(e.invars) == 2):
        first = equations[places[0]]
        parts = [made.get(x) for x in first.invars if not isinstance(x, core.Literal)]
        of = {part.invars[0] for part in parts if part is not None and part.primitive.name == "slice"}
        if len(of) == 1 and len(parts) == 2 and all(parts) and of.pop().aval.shape == first.outvars[0].aval.shape:
            yield f"the roll at {place(first).partition(' at ')[2]} the other way", places, Change(then="back")


def _counts(equations: Sequence[Any]) -> Iterator[Repair]:
    """Compares or adds integers in another way."""
    for places in group_equations(
        equations, lambda e: e.primitive.name in OTHERS and e.invars[0].aval.dtype.kind in "iu"
    ):
        first = equations[places[0]]
        other = OTHERS[first.primitive.name]
        yield f"{other} in place of {place(first)}", places, Change(primitive=other)


def _numbered_along(equations: Sequence[Any], long: Sequence[str]) -> Iterator[Repair]:
    """Takes the number of a participant along another axis."""
    for places in group_equations(equations, lambda e: e.primitive.name == "axis_index"):
        own = axes_of(equations[places[0]])
        for other in long:
            if (other,) != own:
                text = f"{place(equations[places[0]])} along {other!r} in place of {_words(own)}"
                yield text, places, Change(params=(("axis_name", other),))


def _local_numbers(case: Case, equations: Sequence[Any]) -> Iterator[Repair]:
    """Numbers elements within all blocks, not within one."""
    roles = [case.mesh.longer(as_axes(axes)) for _, axes in case.roles]
    some = [
        *dict.fromkeys(tuple(axes) for axes in (*roles, *([axis] for axis in case.mesh.longer(case.mesh.axis_names))))
    ]
    for places in group_equations(
        equations, lambda e: e.primitive.name == "iota" and e.outvars[0].aval.dtype.kind in "iu"
    ):
        for axes in filter(None, some):
            text = f"{place(equations[places[0]])} counted from where the block begins along {_words(axes)}, not from 0"
            yield text, places, Change(then="whole", axes=axes)
    for places in group_equations(equations, lambda e: e.primitive.name in RUNS):
        for axes in filter(None, some):
            text = f"{place(equations[places[0]])} continued from the block before along {_words(axes)}"
            yield text, places, Change(then="whole", axes=axes)
    sizes = {n: (i, d) for i, o in enumerate(case.operands) for d, n in enumerate(o.block) if n > 1}
    for places in group_equations(equations, lambda e: e.primitive.name == "axis_index"):
        for n, of in sizes.items():
            yield f"{n} times what {place(equations[places[0]])} gives, the size of a block", places, Change(of=of)


def numbers_by_the_mesh(mesh: MeshCase, axes: Sequence[str], ordered: Sequence[str]) -> list[int]:
    """The number of every participant in the order of the mesh, by that in the order of the tuple."""
    sizes = [mesh.shape[name] for name in axes]
    numbers = np.arange(int(np.prod(sizes))).reshape([mesh.shape[name] for name in ordered])
    return [int(n) for n in numbers.transpose([list(ordered).index(name) for name in axes]).ravel()]


def group_equations(equations: Sequence[Any], of: Callable[[Any], bool]) -> list[Places]:
    """Groups equations of some kind by what they do and their line."""
    found: dict[Any, list[int]] = {}
    for i, equation in enumerate(equations):
        if of(equation):
            key = equation.primitive.name, axes_of(equation), equation.params.get("perm"), location(equation)
            found.setdefault(key, []).append(i)
    return [tuple(places) for places in found.values()]


def _floats(equations: Sequence[Any]) -> list[Places]:
    """Groups the equations whose result is one array of floats."""
    return group_equations(equations, lambda e: len(e.outvars) == 1 and is_float(np.dtype(e.outvars[0].aval.dtype)))


def place(equation: Any) -> str:
    """An equation's operation and line, without the folder."""
    return f"{equation.primitive.name.removesuffix('_invariant')} at {location(equation).rpartition('/')[2]}"


def _words(axes: Sequence[str]) -> str:
    return " and ".join(map(repr, axes)) if axes else "no axis"


def rounds_at(violation: LawViolation) -> str:
    """The operation that rounds, and its line, where results are right in double precision; empty if it is unknown.

    Everything is run in double precision but the results of one line, which are rounded to the dtype that was traced:
    then the results of the program exceed the bound.
    """
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or data is None or not _has_wrong_values(violation):
        return ""
    if difference.off_in_doubles is None or difference.by_formula:
        return ""
    bound = 0 if difference.bound is None else np.abs(difference.bound)
    with contextlib.suppress(Exception):  # the interpreter may lack what an engine has
        program, arrays = program_of(violation.implementation, case), operands(case, data)
        found = [(np.dtype(program.equations[at[0]].outvars[0].aval.dtype), at) for at in _floats(program.equations)]
        # the narrowest first, and of these the one that comes first
        for dtype, places in sorted(found, key=lambda one: -unit_roundoff(one[0]))[:MOST_CHANGES]:
            change = Change(frozenset(id(program.equations[i]) for i in places), then="rounded")
            blocks = all_blocks(case, run_in_doubles(program, *arrays, change=change)[difference.leaf])
            off = np.abs(blocks - difference.expected.astype(blocks.dtype))
            if ((off > bound) & difference.wrong).any():
                return f"{place(program.equations[places[0]])} rounds to {dtype.name}"
    return ""
