"""The equations at fault: which primitive, with which parameters, in what program.

Each takes a case and its traced program, and gives the primitive if it is there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate.liveness import equations, opened, scan_counts, subjaxprs


def of_constants(program: Any) -> list[Any]:
    """The equations all of whose operands are the same whatever the program is given."""
    found: list[Any] = []
    _follow(program, [False] * len(opened(program)[0].invars), found)
    return found


def _follow(jaxpr: Any, known: Sequence[bool], found: list[Any]) -> list[bool]:
    """Which results of a jaxpr are constant, given which of its arguments are; collects equations of constants."""
    body, _ = opened(jaxpr)
    constant = {*body.constvars, *(v for v, is_known in zip(body.invars, known, strict=True) if is_known)}

    def is_constant(atom: Any) -> bool:
        return isinstance(atom, core.Literal) or atom in constant

    for equation in body.eqns:
        inputs = [is_constant(atom) for atom in equation.invars]
        if all(inputs):
            found.append(equation)
        outputs = [all(inputs) or is_empty_product(equation)] * len(equation.outvars)
        if equation.primitive.name == "scan":
            outputs = _carried(equation, inputs, found)
        for inner in () if equation.primitive.name == "scan" else subjaxprs(equation):
            arguments, results = len(opened(inner)[0].invars), len(opened(inner)[0].outvars)
            same = arguments == len(inputs) and results == len(outputs)
            flags = _follow(inner, inputs if same else [False] * arguments, found)
            if same and equation.primitive.name != "while":  # whose arguments change from step to step
                outputs = flags
        constant.update(v for v, is_known in zip(equation.outvars, outputs, strict=True) if is_known)
    return [is_constant(atom) for atom in body.outvars]


def _carried(equation: Any, inputs: Sequence[bool], found: list[Any]) -> list[bool]:
    """The same of a scan: what it carries is constant if it begins so, and every step leaves it so."""
    (inner,), (consts, carried) = subjaxprs(equation), scan_counts(equation)
    flags = list(inputs)
    while True:
        inside: list[Any] = []
        results = _follow(inner, flags, inside)
        kept = [flag and left for flag, left in zip(flags[consts : consts + carried], results, strict=False)]
        if kept == flags[consts : consts + carried]:
            found.extend(inside)
            return [*kept, *results[carried:]]
        flags[consts : consts + carried] = kept


def is_empty_product(equation: Any) -> bool:
    """Whether it is a product that adds up nothing, so that it is zero."""
    if equation.primitive.name != "dot_general":
        return False
    (contracted, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[d] for d in contracted) == 0


SUMS = ("psum", "psum_invariant", "reduce_scatter")
CALLS = ("jit", "pjit")
GATHERS = ("all_gather", "all_gather_invariant")
SCATTERS = ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
UPDATES = {"dynamic_update_slice": 1, **dict.fromkeys(SCATTERS, 2)}
"""What writes to a part of an array, and where what it writes is among its operands."""

MANY = 4096
"""The elements from which XLA:CPU takes a maximum in another way (`reduce_max_loses_nan.py`)."""


def first(program: Any, condition: Callable[[Any], bool]) -> Any:
    """The primitive of the first equation that satisfies a condition, or None."""
    return next((equation.primitive for equation in equations(program) if condition(equation)), None)


def maximum(case: Case, program: Any) -> Any:
    """A maximum or minimum over devices, of floats."""
    return first(program, lambda e: e.primitive.name in ("pmax", "pmin") and dtype(e).kind not in "iub")


def maximum_of_many(case: Case, program: Any) -> Any:
    """A maximum or minimum of an array of so many floats that XLA:CPU takes it in another way than one by one."""
    return first(
        program,
        lambda e: (
            e.primitive.name in ("reduce_max", "reduce_min")
            and dtype(e).kind not in "iub"
            and math.prod(shape(e)) >= MANY
        ),
    )


def untiled_exchange(case: Case, program: Any) -> Any:
    """An untiled all_to_all that moves a dimension."""
    return first(
        program,
        lambda e: (
            e.primitive.name == "all_to_all"
            and not e.params["tiled"]
            and e.params["split_axis"] != e.params["concat_axis"]
        ),
    )


def untiled_scatter(case: Case, program: Any) -> Any:
    """An untiled psum_scatter."""
    return first(program, lambda e: e.primitive.name == "reduce_scatter" and not e.params["tiled"])


def nested(case: Case, program: Any) -> Any:
    """A `shard_map` inside of another."""
    return first(
        program,
        lambda e: (
            e.primitive.name == "shard_map" and first(e.params["jaxpr"], lambda e: e.primitive.name == "shard_map")
        ),
    )


def relaid_in_front(case: Case, program: Any) -> Any:
    """A change of layout that takes an axis of one dimension to another in front of an axis there, or away from there.

    On automatic axes the layout before is any that an operand of as many dimensions has.
    """

    def relaid(equation: Any) -> bool:
        name, params = equation.primitive.name, equation.params
        if name not in ("reshard", "sharding_constraint"):
            return False
        wanted = _entries(getattr(params["dst_sharding" if name == "reshard" else "sharding"], "spec", ()))
        typed = _entries(equation.invars[0].aval.sharding.spec)
        layouts = [typed] if any(typed) else [operand.placement.spec for operand in case.operands]
        ends = [[_long(spec, case) for spec in (held, wanted)] for held in layouts if len(held) == len(wanted)]
        return any(in_front(*both) for both in ends)

    return first(program, relaid)


def product_over_three_axes(case: Case, program: Any) -> Any:
    """A product, where an array is sharded over several axes along one dimension, and along another one as well."""
    specs: list[Any] = [operand.placement.spec for operand in case.operands]
    for equation in equations(program):
        named = (equation.params.get(name) for name in ("sharding", "dst_sharding", "out_sharding"))
        specs += [_entries(sharding.spec) for sharding in named if hasattr(sharding, "spec")]

    def swaps(spec: Sequence[Sequence[str]]) -> bool:
        axes = [along for along in _long(spec, case) if along]
        return len(axes) > 1 and max(map(len, axes)) > 1

    return first(program, lambda e: e.primitive.name == "dot_general") if any(map(swaps, specs)) else None


def constant_result(case: Case, program: Any) -> Any:
    """What makes a result of numbers that no operand changes."""
    body, _ = opened(program)
    results = {v for v in body.outvars if not isinstance(v, core.Literal)}
    made = (e for e in body.eqns if all(isinstance(v, core.Literal) for v in e.invars))
    return next((e.primitive for e in made if results & {*e.outvars}), None)


def custom_vmap(case: Case, program: Any) -> Any:
    """A function with a rule of its own for vmap."""
    return first(program, lambda e: e.primitive.name == "custom_vmap_call")


def update_of_itself(case: Case, program: Any) -> Any:
    """An update of an array by what was made of the same values: of as many, which it may write over."""
    bodies = [program, *(inner for equation in equations(program) for inner in subjaxprs(equation))]
    for body in map(opened, bodies):
        made = {out: equation for equation in body[0].eqns for out in equation.outvars}
        for equation in body[0].eqns:
            if (update := UPDATES.get(equation.primitive.name)) is None:
                continue
            array, written = equation.invars[0], equation.invars[update]
            both = _made_of(array, made) & _made_of(written, made)
            if any(_elements(variable) == _elements(array) for variable in both):
                return equation.primitive
    return None


def _made_of(variable: Any, made: Mapping[Any, Any]) -> set[Any]:
    """The variable, and those in its body that it depends on."""
    found: set[Any] = set()
    waiting = [variable]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, core.Literal) and one not in found:
            found.add(one)
            waiting += made[one].invars if one in made else ()
    return found


def largest(case: Case, program: Any) -> Any:
    """The largest of some floats, in order."""
    return first(program, lambda e: e.primitive.name == "top_k" and dtype(e).kind not in "iub")


def error_function(case: Case, program: Any) -> Any:
    """An error function, or its complement."""
    return first(program, lambda e: e.primitive.name in ("erf", "erfc"))


def search(case: Case, program: Any) -> Any:
    """JAX's search in a sorted array, which calls a primitive that is not left in a program."""
    return first(program, lambda e: e.primitive.name in CALLS and e.params.get("name") == "searchsorted")


def cast_in_a_branch(case: Case, program: Any) -> Any:
    """A cast to a varying type in a branch that a varying predicate chooses."""
    for equation in equations(program):
        if equation.primitive.name == "cond" and equation.invars[0].aval.manual_axis_type.varying:
            for branch in equation.params["branches"]:
                found = first(branch.jaxpr, lambda e: e.primitive.name == "pvary")
                if found is not None:
                    return found
    return None


def along_nothing(case: Case, program: Any) -> Any:
    """A tiled all_gather or psum_scatter along an empty dimension."""

    def empty(equation: Any) -> bool:
        name, params = equation.primitive.name, equation.params
        if name in GATHERS:
            return bool(params["tiled"]) and shape(equation)[params["all_gather_dimension"]] == 0
        return name == "reduce_scatter" and params["tiled"] and shape(equation)[params["scatter_dimension"]] == 0

    return first(program, empty)


def of_nothing(case: Case, program: Any) -> Any:
    """A `shard_map` that has a result and reads operands, none of which has an element; XLA refuses some of these."""

    def empty(equation: Any) -> bool:
        if equation.primitive.name != "shard_map":
            return False
        operands = _read(opened(equation.params["jaxpr"])[0])
        return bool(operands) and not any(map(_elements, operands)) and any(map(_elements, equation.outvars))

    return first(program, empty)


def sum_of_complex_constant(case: Case, program: Any) -> Any:
    """A sum over devices of complex numbers that depend on no argument."""
    found = (e.primitive for e in of_constants(program) if e.primitive.name in SUMS and dtype(e).kind == "c")
    return next(found, None)


def sum_of_complex(case: Case, program: Any) -> Any:
    """A sum over devices of complex numbers, of which the compiler may find that they are constant."""
    return first(program, lambda e: e.primitive.name in SUMS and dtype(e).kind == "c")


def ragged_exchange(case: Case, program: Any) -> Any:
    """A ragged_all_to_all."""
    return first(program, lambda e: e.primitive.name == "ragged_all_to_all")


def _read(body: Any) -> list[Any]:
    """The arguments of a jaxpr that its results depend on: what has no element depends on none that has one."""
    alive = {v for v in body.outvars if not isinstance(v, core.Literal)}
    for equation in reversed(body.eqns):
        if found := alive.intersection(equation.outvars):
            some = any(map(_elements, found))
            alive.update(v for v in equation.invars if not isinstance(v, core.Literal) and (some or not _elements(v)))
    return [v for v in body.invars if v in alive]


def _elements(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _entries(spec: Any) -> tuple[tuple[str, ...], ...]:
    """The axes of every dimension; none of one that is left to the compiler."""
    return tuple((e,) if isinstance(e, str) else tuple(e) if isinstance(e, tuple) else () for e in spec)


def _long(spec: Sequence[Sequence[str]], case: Case) -> tuple[tuple[str, ...], ...]:
    """The axes of every dimension that are longer than one."""
    return tuple(tuple(name for name in axes if case.mesh.shape.get(name) != 1) for axes in spec)


def shape(equation: Any) -> tuple[int, ...]:
    """The shape of an equation's first operand."""
    return tuple(equation.invars[0].aval.shape)


def dtype(equation: Any) -> np.dtype:
    """The dtype of an equation's first operand."""
    return np.dtype(equation.invars[0].aval.dtype)


def in_front(held: Entries, wanted: Entries) -> bool:
    """Whether an axis goes to another dimension, in front of one that does not come along, or leaves one."""
    return _arrives(held, wanted, stays=False) or _arrives(wanted, held, stays=True)


def _arrives(held: Entries, wanted: Entries, *, stays: bool) -> bool:
    for i, after in enumerate(wanted):
        elsewhere = {name for j, axes in enumerate(held) if j != i for name in axes}
        for at, name in enumerate(after):
            there = name in held[i] if stays else name not in elsewhere
            if there and elsewhere & {*after[:at]}:
                return True
    return False
