"""The equations at fault: each `Fault` takes a case and its traced program, and returns the primitive at fault."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.extend import core

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate.collectives import axes_of
from shardproof.properties.engines.simulate.jaxprs import equations, location_in, open_jaxpr, scan_counts, subjaxprs


def equations_of_constants(program: Any) -> list[Any]:
    """The equations whose operands do not depend on the program's arguments."""
    found: list[Any] = []
    _follow(program, [False] * len(open_jaxpr(program)[0].invars), found)
    return found


def _follow(jaxpr: Any, known: Sequence[bool], found: list[Any]) -> list[bool]:
    """Finds which results of a jaxpr are constant, given which arguments are; collects equations of constants."""
    body, _ = open_jaxpr(jaxpr)
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
            arguments, results = len(open_jaxpr(inner)[0].invars), len(open_jaxpr(inner)[0].outvars)
            same = arguments == len(inputs) and results == len(outputs)
            flags = _follow(inner, inputs if same else [False] * arguments, found)
            if same and equation.primitive.name != "while":  # its arguments change from step to step
                outputs = flags
        constant.update(v for v, is_known in zip(equation.outvars, outputs, strict=True) if is_known)
    return [is_constant(atom) for atom in body.outvars]


def _carried(equation: Any, inputs: Sequence[bool], found: list[Any]) -> list[bool]:
    """The same for a scan: a carry is constant if it begins so and every step leaves it so."""
    (inner,), (consts, carried) = subjaxprs(equation), scan_counts(equation)
    flags = list(inputs)
    while True:
        inside: list[Any] = []
        results = _follow(inner, flags, inside)
        carry = [flag and left for flag, left in zip(flags[consts : consts + carried], results, strict=False)]
        if carry == flags[consts : consts + carried]:
            found.extend(inside)
            return [*carry, *results[carried:]]
        flags[consts : consts + carried] = carry


def is_empty_product(equation: Any) -> bool:
    """True for a product over an empty dimension, which is zero."""
    if equation.primitive.name != "dot_general":
        return False
    (contracted, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[d] for d in contracted) == 0


SUMS = ("psum", "psum_invariant", "reduce_scatter")
Fault = Callable[[Case, Any], Any]
SCATTERS = ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
UPDATES = {"dynamic_update_slice": 1, **dict.fromkeys(SCATTERS, 2)}
"""Primitives that write to a part of an array, and the place of the update among their operands."""

MANY = 4096
"""The number of elements from which XLA:CPU computes a maximum in another way (`reduce_max_loses_nan.py`)."""


def first(program: Any, condition: Callable[[Any], bool]) -> Any:
    """The primitive of the first equation that satisfies a condition, or None."""
    return next((equation.primitive for equation in equations(program) if condition(equation)), None)


def any_of(*names: str, where: Callable[[Any], Any] = lambda equation: True) -> Fault:
    """One of these primitives, in an equation that satisfies a condition."""
    return lambda case, program: first(program, lambda e: e.primitive.name in names and where(e))


def has_floats(equation: Any) -> bool:
    """True if its first operand has floating, or complex, numbers."""
    return dtype(equation).kind not in "iub"


def along_empty(equation: Any) -> bool:
    """True if a tiled gather or scatter is along an empty dimension."""
    params = equation.params
    along = params["all_gather_dimension"] if "all_gather_dimension" in params else params["scatter_dimension"]
    return bool(params["tiled"]) and shape(equation)[along] == 0


def untyped_order(equation: Any) -> bool:
    """True if a sort by what varies has a result that does not vary, since an operand does not."""
    along: list[Any] = [v.aval for v in equation.invars if isinstance(v, core.Var)]
    union = frozenset[str]().union(*(aval.manual_axis_type.varying for aval in along))
    return any(v.aval.manual_axis_type.varying != union for v in equation.outvars)


def line_of_order(program: Any) -> str:
    """A sentence on the first sort whose order is typed as the same everywhere."""
    sort = next(e for e in equations(program) if e.primitive.name == "sort" and untyped_order(e))
    return f"argsort at {location_in(program, sort)} is typed the same everywhere though its operand varies"


def has_inner_shard_map(equation: Any) -> bool:
    """True if another `shard_map` is inside of this one."""
    return first(equation.params["jaxpr"], lambda e: e.primitive.name == "shard_map") is not None


def has_empty_operands(equation: Any) -> bool:
    """True if a `shard_map` with a result reads only empty operands, some of which XLA refuses."""
    operands = _read(open_jaxpr(equation.params["jaxpr"])[0])
    return bool(operands) and not any(map(_elements, operands)) and any(map(_elements, equation.outvars))


def relaid_in_front(case: Case, program: Any) -> Any:
    """A change of layout that moves an axis to another dimension in front of an axis there, or away from there.

    On automatic axes the layout before may be that of any operand with as many dimensions.
    """

    def relaid(equation: Any) -> bool:
        named = "dst_sharding" if equation.primitive.name == "reshard" else "sharding"
        wanted = _entries(getattr(equation.params[named], "spec", ()))
        typed = _entries(equation.invars[0].aval.sharding.spec)
        layouts = [typed] if any(typed) else [operand.placement.spec for operand in case.operands]
        ends = [[_long(spec, case) for spec in (held, wanted)] for held in layouts if len(held) == len(wanted)]
        return any(in_front(*both) for both in ends)

    return any_of("reshard", "sharding_constraint", where=relaid)(case, program)


def product_over_three_axes(case: Case, program: Any) -> Any:
    """A product in a program where an array is sharded over several axes along one dimension, and along another one."""
    if not any(len(axes) > 1 and max(map(len, axes)) > 1 for axes in _sharded(case, program)):
        return None
    return first(program, lambda e: e.primitive.name == "dot_general")


def batched_product_over_two_axes(case: Case, program: Any) -> Any:
    """A batched product in a program where an array is sharded along two dimensions, over axes of different sizes."""
    sizes = ([math.prod(case.mesh.shape[axis] for axis in along) for along in axes] for axes in _sharded(case, program))
    if not any(len({*of}) > 1 for of in sizes):
        return None
    return first(program, lambda e: e.primitive.name == "dot_general" and any(e.params["dimension_numbers"][1]))


def _sharded(case: Case, program: Any) -> list[list[Sequence[str]]]:
    """The axes along each sharded dimension, of the operands and of what a program states the layout of."""
    specs: list[Any] = [operand.placement.spec for operand in case.operands]
    for equation in equations(program):
        named = (equation.params.get(name) for name in ("sharding", "dst_sharding", "out_sharding"))
        specs += [_entries(sharding.spec) for sharding in named if hasattr(sharding, "spec")]
    return [[along for along in _long(spec, case) if along] for spec in specs]


def constant_result(case: Case, program: Any) -> Any:
    """The primitive of a result that depends on no operand."""
    body, _ = open_jaxpr(program)
    made = (e for e in body.eqns if all(isinstance(v, core.Literal) for v in e.invars))
    return next((e.primitive for e in made if any(v in e.outvars for v in body.outvars)), None)


def update_of_itself(case: Case, program: Any) -> Any:
    """An update of an array by a value that depends on the same values, as many as it may overwrite."""
    bodies = [program, *(inner for equation in equations(program) for inner in subjaxprs(equation))]
    for body in map(open_jaxpr, bodies):
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


def cast_in_a_branch(case: Case, program: Any) -> Any:
    """A cast to a varying type in a branch that a varying predicate chooses."""
    chosen = (e for e in equations(program) if e.primitive.name == "cond" and e.invars[0].aval.manual_axis_type.varying)
    casts = (any_of("pvary")(case, branch.jaxpr) for equation in chosen for branch in equation.params["branches"])
    return next((found for found in casts if found is not None), None)


def sum_of_complex_constant(case: Case, program: Any) -> Any:
    """A sum over devices of complex numbers that depend on no argument."""
    found = (e.primitive for e in equations_of_constants(program) if e.primitive.name in SUMS and dtype(e).kind == "c")
    return next(found, None)


def _read(body: Any) -> list[Any]:
    """The arguments of a jaxpr that its results depend on; an empty value depends only on empty ones."""
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
    entries = getattr(spec, "partitions", spec)
    return tuple((e,) if isinstance(e, str) else tuple(e) if isinstance(e, tuple) else () for e in entries)


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
    """True if an axis moves to another dimension in front of one that stays there, or away from in front of one."""
    return _arrives(held, wanted, stays=False) or _arrives(wanted, held, stays=True)


def _arrives(held: Entries, wanted: Entries, *, stays: bool) -> bool:
    for i, after in enumerate(wanted):
        elsewhere = {name for j, axes in enumerate(held) if j != i for name in axes}
        for at, name in enumerate(after):
            there = name in held[i] if stays else name not in elsewhere
            if there and elsewhere & {*after[:at]}:
                return True
    return False


ALL_REDUCES = ("psum", "psum_invariant", "pmax", "pmin")
REDUCTIONS = (*ALL_REDUCES, "reduce_scatter")


def nested_out_of_order(case: Case, program: Any) -> Any:
    """A `shard_map` in another, of an earlier axis of the mesh, where the two leave one to the compiler."""
    for around in (e for e in equations(program) if e.primitive.name == "shard_map"):
        order = list(around.params["mesh"].axis_names)
        for inside in (e for e in equations(around.params["jaxpr"]) if e.primitive.name == "shard_map"):
            outer, inner = ({order.index(name) for name in e.params["newly_manual_axes"]} for e in (around, inside))
            if len(outer | inner) < len(order) and inner and outer and max(outer) > min(inner):
                return inside.primitive
    return None


def scatter_beside_explicit(case: Case, program: Any) -> Any:
    """A psum_scatter in a `shard_map` that leaves an explicit axis to the compiler, or the gather that it transposes.

    An untiled one cannot be traced, and so neither can the gradient of its gather.
    """
    types = case.mesh.types
    if not case.manual or all(types[name] != "explicit" for name in types if name not in case.manual):
        return None
    kinds = "reduce_scatter", "all_gather"
    return any_of(*kinds, where=lambda e: e.primitive.name == kinds[0] or not e.params["tiled"])(case, program)


def bfloat16_beside_automatic(case: Case, program: Any) -> Any:
    """A reduction of bfloat16 over devices in a `shard_map` that leaves an axis to the compiler."""
    found = (e for e, _, _ in _partly_manual(program) if e.primitive.name in REDUCTIONS and dtype(e).name == "bfloat16")
    return next((e.primitive for e in found), None)


def all_reduce_of_one_beside_automatic(case: Case, program: Any) -> Any:
    """A sum, maximum or minimum over one device in a `shard_map` that leaves an axis to the compiler."""
    for equation in (e for e, _, _ in _partly_manual(program) if e.primitive.name in ALL_REDUCES):
        axes = axes_of(equation)
        if axes and all(case.mesh.shape.get(name) == 1 for name in axes):
            return equation.primitive
    return None


def along_one_explicit(case: Case, program: Any) -> Any:
    """A `shard_map` without `jit`, on a mesh with an explicit axis of size one beside an automatic one."""
    axes = {(kind, case.mesh.shape[name] > 1) for name, kind in case.mesh.types.items()}
    if "eager" not in case.chain or not {("explicit", False), ("auto", True)} <= axes:
        return None
    return any_of("shard_map")(case, program)


def gather_beside_two_automatic(case: Case, program: Any) -> Any:
    """A gather of a part of an array that can be sharded along two dimensions, over two axes left to the compiler."""
    for equation, manual, mesh in _partly_manual(program):
        left = sum(size > 1 for name, size in mesh.items() if name not in manual)
        if equation.primitive.name == "gather" and left > 1 and math.prod(mesh[name] for name in manual) > 1:
            indexed, sizes = equation.params["dimension_numbers"].start_index_map, equation.params["slice_sizes"]
            in_part = any(sizes[i] < shape(equation)[i] for i in indexed)
            if in_part and sum(size > 1 for size in shape(equation)) > 1:
                return equation.primitive
    return None


def _partly_manual(
    jaxpr: Any, manual: frozenset[str] = frozenset(), mesh: Mapping[str, int] = MappingProxyType({})
) -> Iterator[tuple[Any, frozenset[str], Mapping[str, int]]]:
    """The equations beside an axis left to the compiler, with the axes that are manual, and all with their sizes."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        inside, among = manual, mesh
        if equation.primitive.name == "shard_map":
            inside |= frozenset(equation.params["newly_manual_axes"])
            among = equation.params["mesh"].shape
        elif manual and manual < set(mesh):
            yield equation, manual, mesh
        for inner in subjaxprs(equation):
            yield from _partly_manual(inner, inside, among)


NARROW = {"int4": 4, "uint4": 4}
"""The dtypes of cases whose elements are less than a byte, and their bits."""

STARTS = {"dynamic_slice": 1, "dynamic_update_slice": 2}
"""Primitives that read or write a part of an array, and the place of its first index among their operands."""


def narrow_product(equation: Any) -> bool:
    """True for a product of 16-bit floats that is summed in wider ones."""
    return (
        all(v.aval.dtype.name in ("bfloat16", "float16") for v in equation.invars)
        and equation.outvars[0].aval.dtype.itemsize > 2
    )


def transposed_product(result: str) -> Fault:
    """A product of bfloat16 arrays with a result of a dtype, of which the transpose is taken."""

    def of_narrow(equation: Any) -> bool:
        return equation.primitive.name == "dot_general" and {v.aval.dtype.name for v in equation.invars} == {"bfloat16"}

    def fault(case: Case, program: Any) -> Any:
        found = [e.outvars[0] for e in equations(program) if of_narrow(e) and e.outvars[0].aval.dtype.name == result]
        return first(program, lambda e: e.primitive.name == "transpose" and e.invars[0] in found)

    return fault


def rows_of_bits(case: Case, program: Any) -> Any:
    """A loop that reads or writes parts of an array at steps that are no whole number of bytes."""
    for loop in equations(program):
        if loop.primitive.name in ("scan", "while"):
            inside = (equation for body in subjaxprs(loop) for equation in equations(body))
            if any(_steps_over_bits(array, along) for e in (loop, *inside) for array, along in _indexed(e)):
                return loop.primitive
    return None


def _indexed(equation: Any) -> Iterator[tuple[Any, int]]:
    """The arrays of which an equation reads or writes a part, each with a dimension along which its place may vary.

    For a gather or scatter these are all indexed dimensions.
    """
    name = equation.primitive.name
    dimensions: tuple[int, ...] = ()
    if name == "scan":
        consts, carried = scan_counts(equation)
        rows = (*equation.invars[consts + carried :], *equation.outvars[carried:])
        yield from ((each, 0) for each in rows)
    elif name in STARTS:
        array, part = equation.invars[0], equation.invars[1] if STARTS[name] == 2 else equation.outvars[0]
        starts = enumerate(equation.invars[STARTS[name] :])
        moving = (d for d, start in starts if not (isinstance(start, core.Literal) and start.val == 0))
        dimensions = tuple(d for d in moving if part.aval.shape[d] < array.aval.shape[d])
    elif name == "gather":
        dimensions = equation.params["dimension_numbers"].start_index_map
    elif name in SCATTERS:
        dimensions = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
    yield from ((equation.invars[0], dimension) for dimension in dimensions)


def _steps_over_bits(array: Any, along: int) -> bool:
    """True if one step along a dimension of an array is no whole number of bytes."""
    return math.prod(array.aval.shape[along + 1 :]) * NARROW.get(array.aval.dtype.name, 8) % 8 != 0
