"""The known defects that a program meets: seen in what is about to be compiled, or in how JAX refuses it."""

import collections
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np
from jax import lax
from jax.extend import core

from shardproof.oracles.mesh import as_axes
from shardproof.properties.conformance.program import FILE, Program, Step, Value
from shardproof.properties.engines.simulate.jaxprs import equations, subjaxprs
from shardproof.properties.known_defects import DEFECTS, Defect
from shardproof.properties.known_defects.faults import SCATTERS

UNCONSTRAINED = jax.P.UNCONSTRAINED

Steps = dict[str, list[int]]
"""The steps at fault of each defect that a program meets."""


class Facts(NamedTuple):
    """The facts about the variables of a traced program: layouts, the values of its inputs, how often each is read.

    A layout that is not known counts as sharded, unless defects must be `certain`.
    """

    program: Program
    layouts: Mapping[Any, Any]
    values: Mapping[Any, np.ndarray]
    read: Mapping[Any, int]
    certain: bool

    def axes(self, variable: Any, dimensions: Sequence[int] | None = None) -> int:
        """The most mesh axes that shard one of these dimensions of a variable, or any of them."""
        if isinstance(variable, core.Literal) or (dimensions is not None and not dimensions):
            return 0
        spec = self._spec(variable)
        unknown = 0 if self.certain else len(self.program.mesh)
        if spec is None:
            return unknown
        entries = [entry for i, entry in enumerate(spec) if dimensions is None or i in dimensions]
        return max((unknown if one is UNCONSTRAINED else len(as_axes(one or ())) for one in entries), default=0)

    def _spec(self, variable: Any) -> Sequence[Any] | None:
        if self.program.axes != "explicit":
            return self.layouts.get(variable)
        spec: Sequence[Any] = variable.aval.sharding.spec.partitions
        return spec

    def uneven(self, variable: Any) -> bool:
        """True if a dimension of a variable is sharded in parts that are not equally long, or may be."""
        sizes, shape, spec = self.program.mesh, variable.aval.shape, self._spec(variable)
        if spec is None:
            return not self.certain and any(size > 1 and size % n for size in shape for n in sizes.values())
        parts = [() if one is UNCONSTRAINED else as_axes(one or ()) for one in spec]
        return any(size % math.prod(sizes[axis] for axis in of) for size, of in zip(shape, parts, strict=False))

    def sharded(self, variable: Any, dimensions: Sequence[int] | None = None) -> bool:
        """True if a variable is sharded along any of its dimensions, or of these."""
        return self.axes(variable, dimensions) > 0

    def beyond(self, array: Any, starts: Sequence[Any], sizes: Sequence[int], result: Any) -> bool:
        """True if a part of an array begins behind the end of a dimension, which is sharded there or in the result."""
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            value = start.val if isinstance(start, core.Literal) else self.values.get(start)
            late = not self.certain if value is None else bool(np.any(value >= array.aval.shape[i]))
            sharded = (all if self.certain else any)([self.sharded(array, [i]), self.sharded(result, [i])])
            if late and sharded and size < array.aval.shape[i]:
                return True
        return False


def _within(equation: Any) -> Iterator[Any]:
    yield equation
    for body in subjaxprs(equation):
        yield from equations(body)


def _writes(e: Any) -> bool:
    return any(inner.primitive.name in SCATTERS for inner in _within(e))


def _dilated(e: Any, *, negative: bool) -> list[int]:
    return [i for i, (low, _, within) in enumerate(e.params["padding_config"]) if within and (low < 0 or not negative)]


def _strided(e: Any) -> list[int]:
    bounds = zip(e.params["start_indices"], e.params["limit_indices"], e.params["strides"] or (), strict=False)
    return [i for i, (start, limit, stride) in enumerate(bounds) if stride > max(1, limit - start)]


def _sliced(e: Any) -> list[int]:
    shapes = enumerate(zip(e.invars[0].aval.shape, e.outvars[0].aval.shape, strict=True))
    return [i for i, (size, kept) in shapes if kept < size]


def _batch_of_right_alone(e: Any, facts: Facts) -> bool:
    _, (left, right) = e.params["dimension_numbers"]
    pairs = zip(left, right, strict=True)
    return any(facts.sharded(e.invars[1], [j]) and not facts.sharded(e.invars[0], [i]) for i, j in pairs)


def _clamped(e: Any, facts: Facts) -> bool:
    if e.primitive.name == "dynamic_slice":
        return facts.beyond(e.invars[0], e.invars[1:], e.params["slice_sizes"], e.outvars[0])
    # the batched form
    batched = e.params["dimension_numbers"].operand_batching_dims and e.params["mode"] is lax.GatherScatterMode.CLIP
    return bool(batched) and not facts.certain and facts.sharded(e.outvars[0])


def _padded(e: Any) -> bool:
    return any(low or high for low, high in e.params["padding"])


def _overlapping(e: Any) -> bool:
    return any(n > by for n, by in zip(e.params["window_dimensions"], e.params["window_strides"], strict=True))


def _tangent(e: Any, facts: Facts) -> bool:
    maxima = e.primitive.name == "select_and_gather_add" or len(e.invars) > 2
    return maxima and any(map(facts.sharded, (*e.invars[:2], e.outvars[0])))


WINDOWS = ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
POOL_TANGENTS = ("reduce_window", "select_and_gather_add")

VALUES = r"^wrong: result \d+ on device \d+: \d+ of \d+ wrong"
SHAPE = r"^wrong: result \d+ on device \d+: \w+\[.*\], expected \w+\["
ABORTS = "^fails: aborts"


def _summed(e: Any, *, kernel: bool) -> list[int]:
    """The dimensions of an operand of a convolution that are summed over."""
    numbers = e.params["dimension_numbers"]
    spec = numbers.rhs_spec if kernel else numbers.lhs_spec
    return [*spec[1:], *spec[: e.params["batch_group_count"] > 1]]


def _both_summed(e: Any, facts: Facts) -> bool:
    if len(facts.program.mesh) < 2:
        return False
    return all(facts.sharded(v, _summed(e, kernel=bool(i)) if facts.certain else None) for i, v in enumerate(e.invars))


def _grouped(e: Any, facts: Facts) -> bool:
    features = [e.params["dimension_numbers"].lhs_spec[1]]
    return e.params["feature_group_count"] > 1 and (
        facts.sharded(e.invars[0], features) or (not facts.certain and any(map(facts.sharded, e.invars)))
    )


class Sign(NamedTuple):
    """How a known defect shows: in an equation of the program with its layouts, and in the words of a verdict.

    One without a condition shows in an error that JAX raises as it traces a step with one of the primitives, or any,
    in an equation whose shapes are those of the defect.
    """

    primitives: tuple[str, ...]
    words: str
    holds: Callable[[Any, Facts], bool] | None = None
    shapes: Callable[[tuple[int, ...], tuple[int, ...]], bool] = lambda operand, result: True


CASES = (
    *("overlapping_update", "product_over_three_axes", "batched_product_over_two_axes", "reshard_after_another"),
    *("bf16_reduction_partial_manual", "all_reduce_of_one_partial_manual", "gather_partial_manual"),
)
"""Defects whose condition is one of `known_defects.registry`, of a case and its program."""

GATHERS = ("gather", *SCATTERS)
PARTS = ("slice", "dynamic_slice", "dynamic_update_slice", "squeeze", "split", "gather")
FACTORS = ("cholesky", "eigh", "lu", "qr", "triangular_solve", "select_n")
COTANGENT = "Expected cotangent type"
INDEX = "IndexError: (tuple|list) index out of range"

SIGNS: dict[str, Sign] = {
    "batch_group_abort": Sign(
        ("conv_general_dilated",),
        ABORTS,
        lambda e, facts: (
            e.params["batch_group_count"] > 1
            and all(facts.sharded(e.outvars[0], [d]) for d in e.params["dimension_numbers"].out_spec[:2])
        ),
    ),
    "batch_group_sum": Sign(
        ("conv_general_dilated",),
        "Expected instruction to have shape",
        lambda e, facts: (
            e.params["batch_group_count"] > 1
            and facts.axes(e.invars[0], [e.params["dimension_numbers"].lhs_spec[0]]) > 1
        ),
    ),
    "bits_over_devices": Sign(
        ("reduce_xor", "reduce_and", "reduce_or", "reduce"),
        "UNIMPLEMENTED",
        lambda e, facts: (
            e.invars[0].aval.dtype != bool
            and facts.sharded(e.invars[0], e.params.get("axes", e.params.get("dimensions")))
        ),
    ),
    "cond_of_two_layouts": Sign(
        ("cond",),
        "Inconsistent conditional sharding",
        lambda e, facts: any(inner.primitive.name == "sharding_constraint" for inner in _within(e)),
    ),
    "convolution_of_two_types": Sign(
        ("conv_general_dilated",),
        "types of different precisions|element types of the operands to Pad",
        lambda e, facts: e.outvars[0].aval.dtype != e.invars[0].aval.dtype and any(map(facts.sharded, e.invars)),
    ),
    "convolution_over_strides": Sign(
        ("conv_general_dilated",),
        ABORTS,
        lambda e, facts: max(e.params["lhs_dilation"]) > 1 and not facts.certain,
    ),
    "int4_bits_counted": Sign(
        ("population_count",),
        VALUES,
        lambda e, facts: e.invars[0].aval.dtype.name == "int4",
    ),
    "exp2_bfloat16": Sign(("exp2",), VALUES, lambda e, facts: e.invars[0].aval.dtype.name == "bfloat16"),
    "gamma_layout": Sign(
        ("lgamma", "igamma", "igammac", "igamma_grad_a", "random_gamma_grad"),
        "out sharding could not be resolved unambiguously",
        lambda e, facts: facts.program.axes == "explicit" and any(map(facts.sharded, e.invars)),
    ),
    "special_function_layout": Sign(
        ("igamma", "igammac", "regularized_incomplete_beta"),
        "select `which` must be scalar|select cases must have the same shardings",
        lambda e, facts: facts.program.axes == "explicit" and any(map(facts.sharded, e.invars)),
    ),
    "uneven_indices": Sign(
        SCATTERS,
        VALUES,
        lambda e, facts: not facts.certain and len(facts.program.mesh) > 1 and facts.uneven(e.invars[1]),
    ),
    "update_in_one_step": Sign(
        ("scan", "while"),
        VALUES,
        lambda e, facts: (
            not facts.certain and e.params.get("length", 1) == 1 and _writes(e) and any(map(facts.sharded, e.outvars))
        ),
    ),
    "clamped_slice": Sign(("dynamic_slice", "gather"), VALUES, _clamped),
    "clamped_update": Sign(
        ("dynamic_update_slice",),
        VALUES,
        lambda e, facts: facts.beyond(e.invars[0], e.invars[2:], e.invars[1].aval.shape, e.outvars[0]),
    ),
    "convolution_both_sharded": Sign(("conv_general_dilated",), VALUES, _both_summed),
    "dilated_padding": Sign(
        ("pad",),
        f"{VALUES}|^fails: compiled",
        lambda e, facts: facts.sharded(e.outvars[0], _dilated(e, negative=False)),
    ),
    "dilated_window": Sign(
        WINDOWS,
        f"{VALUES}|{ABORTS}|greater than dynamic slice dimension",
        lambda e, facts: not facts.certain and max(e.params["base_dilation"], default=1) > 1,
    ),
    "dot_general_batch_type": Sign(
        ("dot_general",), "type", lambda e, facts: facts.program.axes == "explicit" and _batch_of_right_alone(e, facts)
    ),
    "grouped_convolution": Sign(("conv_general_dilated",), f"{VALUES}|{ABORTS}", _grouped),
    "empty_window": Sign(WINDOWS, ABORTS, lambda e, facts: 0 in e.invars[0].aval.shape and facts.sharded(e.outvars[0])),
    "negative_dilated_padding": Sign(
        ("pad",),
        ABORTS,
        lambda e, facts: any(facts.sharded(v, _dilated(e, negative=True)) for v in (e.invars[0], e.outvars[0])),
    ),
    "pool_gradient_padding": Sign(
        ("select_and_scatter_add",),
        VALUES,
        lambda e, facts: (_padded(e) or _overlapping(e)) and any(map(facts.sharded, e.invars[:2])),
    ),
    "pool_tangent_padding": Sign(POOL_TANGENTS, VALUES, lambda e, facts: _padded(e) and _tangent(e, facts)),
    "pool_tangent_stride": Sign(
        POOL_TANGENTS, "must have the same dimension", lambda e, facts: not facts.certain and _tangent(e, facts)
    ),
    "pool_tangent_uneven": Sign(POOL_TANGENTS, ABORTS, lambda e, facts: not facts.certain and _tangent(e, facts)),
    "scatter_of_no_updates": Sign(SCATTERS, VALUES, lambda e, facts: 0 in e.invars[2].aval.shape),
    "scatter_rows_lost": Sign(
        ("scatter-add",),
        VALUES,
        lambda e, facts: (
            bool(e.params["dimension_numbers"].operand_batching_dims)
            and len(facts.program.mesh) > 1
            and all(map(facts.sharded, e.invars[:2]))
        ),
    ),
    "strided_kernel_gradient": Sign(
        ("conv_general_dilated",),
        VALUES,
        lambda e, facts: (
            not facts.certain
            and max(e.params["rhs_dilation"]) > 1
            and facts.sharded(e.invars[0], e.params["dimension_numbers"].lhs_spec[2:])
        ),
    ),
    "sliced_beside_whole": Sign(
        ("slice",), SHAPE, lambda e, facts: facts.axes(e.invars[0], _sliced(e)) > 1 and facts.read[e.invars[0]] > 1
    ),
    "slice_beyond_stride": Sign(("slice",), "INTERNAL", lambda e, facts: facts.sharded(e.invars[0], _strided(e))),
    "transform_to_replicas": Sign(("fft",), "INTERNAL", lambda e, facts: facts.sharded(e.invars[0])),
    "clamp_gradient": Sign(("clamp",), "have the same shard|produces an illegally sharded result"),
    "determinant_gradient": Sign(
        ("lu", "custom_jvp_call"),
        "All inputs to triangular_solve must have the same batch sharding|Input 0 to lu must be unsharded",
    ),
    "gather_gradient": Sign(("gather",), COTANGENT),
    "index_gradient": Sign(PARTS, COTANGENT),
    "index_repeats_axis": Sign(GATHERS, "^DuplicateSpecError"),
    "inverse_batch": Sign(
        ("lu", "triangular_solve"), "Mapped away dimension of inputs passed to vmap should be sharded the same"
    ),
    "scatter_tangent": Sign(("scatter",), "out sharding could not be resolved unambiguously"),
    "pad_gradient": Sign(("pad",), "padding on sharded dims where out dim"),
    "product_gradient": Sign(
        ("reduce_prod", "reduce"),
        "slicing on sharded dims where out dim|This reshape is not supported|Mapped away dimension of inputs|"
        f"{COTANGENT}|unexpected JAX type",
    ),
    "linear_solve_of_reduced": Sign(("custom_linear_solve",), COTANGENT),
    "reshape_beside_ones": Sign(
        ("reshape",), "^AssertionError: $", shapes=lambda operand, result: 1 in (*operand, *result)
    ),
    "reshape_of_nothing": Sign(("reshape",), INDEX, shapes=lambda operand, result: 0 in operand),
    "reshape_to_ones": Sign(("reshape",), INDEX, shapes=lambda operand, result: result.count(1) > operand.count(1)),
    "shift_across_axes": Sign((), "Could not slice dimension"),
    "sort_gradient": Sign(("sort",), "Arguments to sort must have equal shardings"),
    "svd_gradient": Sign(("svd",), "Incompatible types for broadcasting"),
    "triangle_of_batch": Sign(FACTORS, "select `which` must be scalar or have the same sharding"),
    "triangular_solve_refusal": Sign(
        ("triangular_solve",), "^AttributeError: 'ShapedArray' object has no attribute 'name'"
    ),
}


def can_be(name: str, kind: str, detail: str) -> bool:
    """True if a known defect shows in the way of a verdict: in wrong values, a wrong shape, an error or an abort."""
    if detail.startswith("hangs"):
        return False
    sign = SIGNS.get(name)
    if sign and sign.holds is None:  # an error's words are those of JAX, as `match_error` read them
        return kind == "fails" and re.search(sign.words, re.sub("^(derivative|compiled): ", "", detail)) is not None
    words = sign.words if sign else re.escape(DEFECTS[name].words) or VALUES
    return re.search(words, f"{kind}: {detail}") is not None


def find_here(name: str) -> Defect | None:
    """A known defect, if this version of JAX is taken to have it, on this platform."""
    defect = DEFECTS[name]
    platform = defect.platform or ("cpu" if defect.sentence.startswith("XLA:CPU") else "")
    here = defect.in_version(jax.__version__) and platform in ("", jax.default_backend())
    return defect if here else None


def _lines(numbers: Sequence[int], program: Program) -> list[int]:
    """The steps on such lines of a program's source; the only one, if there are none."""
    every = range(len(program.steps))
    return sorted({line - 2 for line in numbers} & {*every}) or [*every][: len(every) == 1]


def _steps(equation: Any, program: Program) -> list[int]:
    traceback = equation.source_info.traceback
    lines = [one.line_num for one in traceback.frames if one.file_name == FILE] if traceback else []
    return _lines(lines, program) or [*range(len(program.steps))]


def _facts(program: Program, closed: Any, values: Sequence[np.ndarray], *, certain: bool) -> Facts:
    body = closed.jaxpr
    layouts = dict(zip(body.invars, (one.spec for one in program.inputs), strict=False))
    if not program.derivative:
        layouts |= {v: one.spec for v, one in zip(body.outvars, program.outputs, strict=True)
                    if one.spec is not None and not isinstance(v, core.Literal)}  # fmt: skip
    for equation in body.eqns:
        if equation.primitive.name == "sharding_constraint":
            layouts[equation.outvars[0]] = equation.params["sharding"].spec.partitions
    every = [v for equation in body.eqns for v in equation.invars] + body.outvars
    read = collections.Counter(v for v in every if not isinstance(v, core.Literal))
    return Facts(program, layouts, dict(zip(body.invars, values, strict=False)), read, certain)


def find_defects(program: Program, closed: Any, values: Sequence[np.ndarray], *, certain: bool) -> Steps:
    """The known defects that a traced program meets: for certain, or maybe."""
    found: dict[str, set[int]] = {}
    facts = _facts(program, closed, values, certain=certain)
    signs = {name: sign for name, sign in SIGNS.items() if sign.holds and find_here(name)}
    for outer in closed.jaxpr.eqns:
        for equation in _within(outer):
            for name, sign in signs.items():
                if equation.primitive.name in sign.primitives and sign.holds and sign.holds(equation, facts):
                    found.setdefault(name, set()).update(_steps(outer, program))
    for name, primitive in _excusing(program, closed, certain=certain):
        outers = [outer for outer in closed.jaxpr.eqns if any(e.primitive is primitive for e in _within(outer))]
        found[name] = {i for outer in outers for i in _steps(outer, program)}
    return {name: sorted(steps) for name, steps in found.items()}


def _excusing(program: Program, closed: Any, *, certain: bool) -> Iterator[tuple[str, Any]]:
    """The defects whose condition is that of a case, and the primitive at fault; those alone that abort are certain."""
    specs = [tuple(tuple(entry) if isinstance(entry, list) else () for entry in one.spec) for one in program.inputs]
    operands = [SimpleNamespace(placement=SimpleNamespace(spec=spec)) for spec in specs]
    mesh = SimpleNamespace(shape=program.mesh, types=dict.fromkeys(program.mesh, program.axes))
    case: Any = SimpleNamespace(mesh=mesh, operands=operands, chain=(), manual=(), roles=())
    for name in CASES:
        defect = find_here(name)
        if defect and (defect.aborts or not certain) and (primitive := defect.at_fault(case, closed)):
            yield name, primitive


def match_error(program: Program, closed: Any, message: str, error: BaseException | None = None) -> Steps:
    """The known defects that a message is of, with the step that an error was raised in.

    Without one, as where a process ends, all steps are at fault if the message is of any primitive.

    Arguments:
        program: the program.
        closed: its jaxpr without layouts.
        message: what was said.
        error: what was raised.
    """
    lines, traceback = [], error and error.__traceback__
    while traceback:
        if traceback.tb_frame.f_code.co_filename == FILE:
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    raised, every = _lines(lines, program), [*range(len(program.steps))]
    outers = [outer for outer in closed.jaxpr.eqns if {*raised} & {*_steps(outer, program)}]
    met = [equation for outer in outers for equation in _within(outer)]

    def is_met(sign: Sign) -> bool:
        those = (e for e in met if e.primitive.name in sign.primitives)
        return any(sign.shapes(e.invars[0].aval.shape, e.outvars[0].aval.shape) for e in those)

    return {
        name: raised if sign.primitives else raised or every
        for name, sign in SIGNS.items()
        if sign.holds is None
        and find_here(name)
        and (program.derivative or not name.endswith(("_gradient", "_tangent")))
        and re.search(sign.words, message)
        and (not sign.primitives or is_met(sign))
    }


def replicate_steps(program: Program, chosen: Sequence[int]) -> Program:
    """A program some steps of which have replicated operands and results; nothing shards what it is vmapped over."""
    steps: list[Step] = []
    values = program.values()
    called: dict[str, str] = {}

    def hold(name: str) -> str:
        value = values[name]
        fresh = Value(f"{name}_r{len(steps)}", value.shape, value.dtype)
        params = {"spec": [None] * len(value.shape)}
        # one constraint alone may be merged with the layout that follows it
        steps.append(Step("constrain_twice", (called.get(name, name),), params, (fresh,)))
        return fresh.name

    for i, step in enumerate(program.steps):
        operands = tuple(hold(x) if i in chosen else called.get(x, x) for x in step.operands)
        params = step.params
        if i in chosen and not step.op.startswith("shard_map"):
            params = {key: [None] * len(x) if key in ("spec", "second") else x for key, x in params.items()}
        steps.append(msgspec.structs.replace(step, operands=operands, params=params))
        called |= {value.name: hold(value.name) for value in step.results if i in chosen}
    outputs = tuple(msgspec.structs.replace(one, name=called.get(one.name, one.name)) for one in program.outputs)
    inputs = tuple(msgspec.structs.replace(one, spec=[None, *one.spec[1:]]) if one.mapped else one
                   for one in program.inputs)  # fmt: skip
    return msgspec.structs.replace(program, inputs=inputs, steps=tuple(steps), outputs=outputs)
