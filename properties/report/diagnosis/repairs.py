"""Which single change would make a program right: tried in the interpreter, in double precision, one after the other.

A collective over other axes, or none; one that is missing; participants that are numbered in another order, or
sent to; another dimension of an all-to-all, a roll the other way. It knows of no contract, so that it tells the
mistakes of a user's own program, by the line. What is told was tried on several data sets, and made all results right
on each of them.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core

from shardproof.oracles.dtypes import is_float, unit_roundoff
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
from shardproof.properties.report.diagnosis.runs import MOST, enlarged
from shardproof.properties.runner.violation import LawViolation


@dataclass(frozen=True)
class Change:
    """A change of some equations."""

    equations: frozenset[int] = frozenset()  # their identities
    params: tuple[tuple[str, Any], ...] = ()  # parameters, by name, in place of their own
    # what their results go through: `psum`, `pmean`, `pmax`, `pmin`, or `once`, which divides them by how many
    # participants there are, or `rounded`, to the dtype that was traced, or `back`, as a roll the other way, or
    # `whole`, where they number the elements of a block, to those of all blocks; empty for nothing
    then: str = ""
    axes: tuple[str, ...] = ()  # the mesh axes over which they do
    primitive: str = ""  # what they do, if it is another thing
    times: int = 1  # by what their results are multiplied
    of: tuple[int, ...] = ()  # or the operand, and the dimension of its block, by whose size they are


NOTHING_ELSE = Change()
"""All do what they say."""


@dataclass(frozen=True)
class Changed(Doubles):
    """Doubles, as it is or with a change."""

    change: Change = NOTHING_ELSE  # what some equations do instead

    def run(self, env: Env, rule: Rule, equation: Any, operands: list[Numbers]) -> list[Numbers]:
        """The results of an equation, or of what is in its place."""
        if id(equation) not in self.change.equations:
            return super().run(env, rule, equation, operands)
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
            with np.errstate(over="ignore"):  # what the dtype does not reach is infinite in it
                return np.asarray(x.astype(variable.aval.dtype).astype(double(variable.aval.dtype)))
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


def run_in_doubles(
    program: Simulated, *arrays: np.ndarray, change: Change = NOTHING_ELSE, arithmetic: Changed | None = None
) -> list[np.ndarray]:
    """The results of a traced program on one data set in double precision, as it is or with a change.

    Raises:
        InterpreterLimit: if the interpreter cannot run it.
    """
    values = program.typed([as_value(a) for a in arrays])
    arithmetic = arithmetic or Changed(change=change)
    return [np.array(x) for x in evaluated(Env(), program.live().closed_jaxpr, values, arithmetic)]


UNKNOWN = "an unknown place"
"""What `location` says of what has none."""

MOST_CHANGES = 400
"""How many are tried, at most."""

ALIKE = 1e-6
"""How far a number may be from the right one, by the largest of them: roundings to 16 bits on the way are not made."""

DATA = (("exact", 1), ("real", 2), ("real", 3))
"""The kinds of data on which a change must help, by how far their seeds are from that of the failure."""

REDUCES = {"reduce_sum": "psum", "dot_general": "psum", "reduce_max": "pmax", "reduce_min": "pmin"}
"""What is missing behind an operation that reduces a participant's own part of what is sharded."""

MOST_STEPS = 6
"""How many distances are tried that a block may be sent, the shortest first."""

OTHERS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "add": "sub", "sub": "add"}
"""What is mistaken for one another where participants, steps and elements are counted."""

REDUCTIONS = ("psum", "psum_invariant", "pmax", "pmin")

Blocks = list[np.ndarray]
Places = tuple[int, ...]
"""Equations of a program by their number."""

Repair = tuple[str, Places, Change]
"""One change of a program: in words, where, and what the equations there do instead."""


@dataclass(frozen=True)
class Trial:
    """A program on a data set, with the blocks that are right."""

    program: Simulated
    case: Case
    arrays: Blocks
    right: Blocks
    within: float = ALIKE  # how far off they may be, by the largest of them

    def holds(self, places: Places = (), change: Change = NOTHING_ELSE) -> bool:
        """Whether all results are right if the program is changed."""
        times = self.case.operands[change.of[0]].block[change.of[1]] if change.of else change.times
        own = frozenset(id(self.program.equations[i]) for i in places)
        change = dataclasses.replace(change, equations=own, times=times)
        try:
            results = run_in_doubles(self.program, *self.arrays, change=change)
        except Exception:  # shapes that do not fit one another, devices that wait for ever
            return False
        blocks = [all_blocks(self.case, x) for x in results]
        return all(
            came.shape == right.shape and self._near(came, right)
            for came, right in zip(blocks, self.right, strict=False)
        )

    def _near(self, came: np.ndarray, right: np.ndarray) -> bool:
        """Whether blocks are right; what is NaN or infinite must be the same."""
        finite = np.isfinite(right)
        leeway = self.within * float(np.abs(right[finite]).max(initial=0)) if is_float(right.dtype) else 0
        off = np.abs(np.where(finite, came, 0) - np.where(finite, right, 0))
        return bool((off <= leeway).all() and nan_equal(came[~finite], right[~finite]).all())


def repaired(violation: LawViolation) -> list[str]:
    """One line that says which change makes the results right, if one does."""
    repair = repair_of(violation)
    return [] if repair is None else [f"one change makes it right: {repair[0]}"]


def repair_of(violation: LawViolation) -> Repair | None:
    """The change that makes the results right, if one does."""
    case, data = violation.case, violation.data
    if data is None or not _told_by_values(violation):
        return None
    for one in filter(None, (case, enlarged(case, violation.implementation))):  # of one element some steps are left out
        with contextlib.suppress(Exception):  # a function may refuse other data, and the interpreter the function
            if found := _found(violation.implementation, one, data):
                return found
    return None


def _told_by_values(violation: LawViolation) -> bool:
    """Whether the values of a result are wrong on a mesh that is small enough to look further."""
    of_result = violation.difference is not None and violation.difference.of == "result"
    return of_result and not violation.law.between_engines and violation.case.mesh.size <= MOST


@functools.lru_cache(maxsize=1)  # a diagnosis and the steps of the page ask for the same
def _found(implementation: Implementation, case: Case, data: Data) -> Repair | None:
    program = program_of(implementation, case)
    tried = [*itertools.islice(_changes(case, program), MOST_CHANGES)]
    own = [data, *(Data(kind, data.seed + more) for kind, more in DATA)]
    trials = [*_trials(implementation, case, own)] if tried else []
    wrong = [trial for trial in trials if not trial.holds()]
    if not wrong or len(trials) < 2:
        return None
    larger = enlarged(case, implementation)  # of single elements much is true by coincidence
    with contextlib.suppress(Exception):  # sizes that a function does not serve
        more = [] if larger is None else [*_trials(implementation, larger, own[1:])]
        trials += [trial for trial in more if _same(trial.program, program)]
    for text, places, change in tried:
        if wrong[0].holds(places, change) and all(trial.holds(places, change) for trial in trials):
            return text.replace(UNKNOWN, _called_at(program.equations, places[0])), places, change
    return None


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
    """A case's program on data sets on which some of what is right is finite."""
    program = program_of(implementation, case)
    for data in sets:
        arrays = operands(case, data)
        right = reference_blocks(case, [case.blocks(i, array) for i, array in enumerate(arrays)])
        if all(np.isfinite(x).any() for x in right if is_float(x.dtype) and x.size):
            yield Trial(program, case, arrays, right, max(ALIKE, implementation.within))


def _same(one: Simulated, other: Simulated) -> bool:
    """Whether two programs have the same equations, but for shapes."""
    names = ([(e.primitive.name, location(e)) for e in program.equations] for program in (one, other))
    return next(names) == next(names)


def _changes(case: Case, program: Simulated) -> Iterator[Repair]:
    """The changes that are tried, the likeliest first."""
    equations, long = program.equations, case.mesh.longer(case.mesh.axis_names)
    some = [*((name,) for name in long), *([tuple(long)] if len(long) > 1 else [])]  # every axis, and all of them
    yield from _orders(case, program)
    yield from _permutations(case, equations)
    yield from _dimensions(equations)
    yield from _counts(equations)
    yield from _local_numbers(case, equations)
    for places in alike(equations, lambda e: e.primitive.name in REDUCTIONS):
        yield from _other_axes(equations[places[0]], places, long)
    floats = _floats(equations)
    reducing = [places for places in floats if equations[places[0]].primitive.name in REDUCES]
    for places in [*reducing, *((i,) for same in reducing if len(same) > 1 for i in same)]:
        name = equations[places[0]].primitive.name
        for then in (REDUCES[name], *(["pmean"] if name == "reduce_sum" else [])):
            yield from _behind(equations, places, then, some)
    for places in floats:
        yield from _behind(equations, places, "once", some)
    for places in floats:
        if places not in reducing:
            yield from _behind(equations, places, "psum", some)


def _behind(equations: Sequence[Any], places: Places, then: str, some: Sequence[tuple[str, ...]]) -> Iterator[Repair]:
    """What equations give is reduced, or counted once."""
    its = f"what {place(equations[places[0]])} gives"
    for axes in some:
        over = f"{then} over {_words(axes)} of {its}"
        once = f"{its} counted once, not by every participant along {_words(axes)}"
        yield once if then == "once" else over, places, Change(then=then, axes=axes)


def _other_axes(first: Any, places: Places, long: Sequence[str]) -> Iterator[Repair]:
    """A reduction over more axes, over fewer, none, or as a mean."""
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
    """Participants of a tuple of axes are numbered in its order: `lax.ppermute` numbers the devices of the mesh."""
    equations = program.equations
    for places in alike(equations, lambda e: e.primitive.name == "ppermute"):
        first = equations[places[0]]
        axes, perm = axes_of(first), first.params["perm"]
        ordered = case.mesh.in_mesh_order(axes)
        if tuple(axes) != tuple(ordered):
            at = numbers_by_the_mesh(case.mesh, axes, ordered)
            change = Change(params=(("perm", tuple((at[s], at[t]) for s, t in perm)),))
            text = f"the {place(first)} numbered by {axes}, as `lax.axis_index` is; JAX numbers its devices in the"
            yield f"{text} order of the mesh, {tuple(ordered)}", places, change


def _permutations(case: Case, equations: Sequence[Any]) -> Iterator[Repair]:
    """Blocks are sent the other way, or further, or round the ring, or not round it."""
    for places in alike(equations, lambda e: e.primitive.name == "ppermute"):
        first = equations[places[0]]
        perm, p = tuple(first.params["perm"]), case.mesh.axis_size(axes_of(first))
        ways = {"with source and destination swapped": tuple((to, source) for source, to in perm)}
        for by in sorted(range(1 - p, p), key=lambda by: (abs(by), -by))[1 : MOST_STEPS + 1]:
            to = f"i {'+' if by > 0 else '-'} {abs(by)}"
            ways[f"that sends block i to ({to}) % p, with p={p}"] = tuple((i, (i + by) % p) for i in range(p))
            ways[f"that sends block i to {to} and none round"] = tuple((i, i + by) for i in range(p) if 0 <= i + by < p)
        for text, other in ways.items():
            if {*other} != {*perm}:
                yield f"the {place(first)} {text}", places, Change(params=(("perm", other),))


def _dimensions(equations: Sequence[Any]) -> Iterator[Repair]:
    """An all-to-all splits or joins another dimension, and a roll goes the other way."""
    for places in alike(equations, lambda e: e.primitive.name == "all_to_all"):
        first = equations[places[0]]
        for name, other in itertools.product(("split_axis", "concat_axis"), range(first.invars[0].aval.ndim)):
            if other != first.params[name]:
                text = f"the {place(first)} with another {name}: {other} of its operand {first.invars[0].aval.shape}"
                yield text, places, Change(params=((name, other),))
    made = {variable: equation for equation in equations for variable in equation.outvars}
    for places in alike(equations, lambda e: e.primitive.name == "concatenate" and len(e.invars) == 2):
        first = equations[places[0]]
        parts = [made.get(x) for x in first.invars if not isinstance(x, core.Literal)]
        of = {part.invars[0] for part in parts if part is not None and part.primitive.name == "slice"}
        if len(of) == 1 and len(parts) == 2 and all(parts) and of.pop().aval.shape == first.outvars[0].aval.shape:
            yield f"the roll at {place(first).partition(' at ')[2]} the other way", places, Change(then="back")


def _counts(equations: Sequence[Any]) -> Iterator[Repair]:
    """Integers are compared or added in another way."""
    for places in alike(equations, lambda e: e.primitive.name in OTHERS and e.invars[0].aval.dtype.kind in "iu"):
        first = equations[places[0]]
        other = OTHERS[first.primitive.name]
        yield f"{other} in place of {place(first)}", places, Change(primitive=other)


def _local_numbers(case: Case, equations: Sequence[Any]) -> Iterator[Repair]:
    """Elements are numbered within a block, and not within all blocks."""
    roles = [case.mesh.longer(as_axes(axes)) for _, axes in case.roles]
    some = [
        *dict.fromkeys(tuple(axes) for axes in (*roles, *([axis] for axis in case.mesh.longer(case.mesh.axis_names))))
    ]
    for places in alike(equations, lambda e: e.primitive.name == "iota" and e.outvars[0].aval.dtype.kind in "iu"):
        for axes in filter(None, some):
            text = f"what {place(equations[places[0]])} numbers from where the block begins along {_words(axes)}"
            yield text, places, Change(then="whole", axes=axes)
    sizes = {n: (i, d) for i, o in enumerate(case.operands) for d, n in enumerate(o.block) if n > 1}
    for places in alike(equations, lambda e: e.primitive.name == "axis_index"):
        for n, of in sizes.items():
            yield f"{n} times what {place(equations[places[0]])} gives, the size of a block", places, Change(of=of)


def numbers_by_the_mesh(mesh: MeshCase, axes: Sequence[str], ordered: Sequence[str]) -> list[int]:
    """The number of every participant in the order of the mesh, by that in the order of the tuple."""
    sizes = [mesh.shape[name] for name in axes]
    numbers = np.arange(int(np.prod(sizes))).reshape([mesh.shape[name] for name in ordered])
    return [int(n) for n in numbers.transpose([list(ordered).index(name) for name in axes]).ravel()]


def alike(equations: Sequence[Any], of: Callable[[Any], bool]) -> list[Places]:
    """Equations of some kind, those of one line that do the same together."""
    found: dict[Any, list[int]] = {}
    for i, equation in enumerate(equations):
        if of(equation):
            key = equation.primitive.name, axes_of(equation), equation.params.get("perm"), location(equation)
            found.setdefault(key, []).append(i)
    return [tuple(places) for places in found.values()]


def _floats(equations: Sequence[Any]) -> list[Places]:
    """Those that give one array of floats."""
    return alike(equations, lambda e: len(e.outvars) == 1 and is_float(np.dtype(e.outvars[0].aval.dtype)))


def place(equation: Any) -> str:
    """What an equation does, and where, without the folder."""
    return f"{equation.primitive.name.removesuffix('_invariant')} at {location(equation).rpartition('/')[2]}"


def _words(axes: Sequence[str]) -> str:
    return " and ".join(map(repr, axes)) if axes else "no axis"


def rounds_at(violation: LawViolation) -> str:
    """The operation that rounds, and its line, where results are right in double precision; empty if it is unknown.

    Everything is run in double precision but the results of one line, which are rounded to the dtype that was traced:
    then the results of the program are as wrong as the bound says they must not be.
    """
    difference, case, data = violation.difference, violation.case, violation.data
    if difference is None or data is None or not _told_by_values(violation):
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
