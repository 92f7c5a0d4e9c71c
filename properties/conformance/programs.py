"""Draws programs: single operations, and steps that take what others have made."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh, AxisType

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations import OPERATIONS
from shardproof.properties.conformance.program import DERIVATIVES, INEXACT, Input, Output, Program, Step, Value, line

SMALL: tuple[dict[str, int], ...] = ({"a": 2}, {"a": 4}, {"a": 2, "b": 2}, {"a": 3})
LARGE: tuple[dict[str, int], ...] = (
    *({"a": 2, "b": 3}, {"a": 4, "b": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}, {"a": 8}, {"a": 6}),
)
"""The meshes, a small one drawn as often as any; on those of two axes and more, many layouts leave one unused."""

TYPES_MOST = 4096
"""The most elements of a result."""


def unsharded_scope(mesh: dict[str, int]) -> dict[str, Any]:
    """The names that a program uses, without layouts."""
    devices = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    names = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "P": jax.P, "mesh": devices}
    return names | {"put": lambda x, spec: x, "to": lambda spec: None}


@lru_cache(maxsize=4096)
def _typed(expression: str, names: tuple[str, ...], types: tuple[Any, ...], mesh: tuple[Any, ...]) -> tuple[Any, ...]:
    scope = unsharded_scope(dict(mesh))
    # the text is the table's own; of what is drawn there are numbers and names in it
    made = eval(f"lambda {', '.join(names)}: ({expression})", scope)  # noqa: S307
    result = jax.eval_shape(made, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types))
    results = tuple(result) if isinstance(result, list | tuple) else (result,)
    return tuple((tuple(one.shape), str(one.dtype)) for one in results)


def infer_results(step: Step, values: dict[str, Value], mesh: dict[str, int]) -> list[tuple[tuple[int, ...], str]]:
    """The types of a step's results.

    Raises:
        Unsuited: if JAX refuses it without layouts.
    """
    operation = OPERATIONS[step.op]
    expression = line(operation.template.removeprefix("*"), step.operands, step.params)
    names = tuple(dict.fromkeys(step.operands))
    types = tuple((values[name].shape, values[name].dtype) for name in names)
    try:
        results = _typed(expression, names, types, tuple(mesh.items()))
    except Exception as error:
        raise Unsuited(f"{step.op}: {error}") from error
    if sum(int(np.prod(shape)) for shape, _ in results) > TYPES_MOST:
        raise Unsuited(f"{step.op} is too large")
    return list(results)


def draw_batch(d: Drawing) -> list[Input]:
    """The inputs, some of them with a first dimension more, which the program is vmapped over."""
    size, chosen = d.size(), d.subset(len(d.inputs))
    inputs = list(d.inputs)
    for i in chosen:
        one = inputs[i]
        shape = (size, *one.shape)
        if not one.reduced and math.prod(shape) <= TYPES_MOST:
            inputs[i] = msgspec.structs.replace(one, shape=shape, spec=d.layout(shape), mapped=True)
    return inputs


def draw_constraint(d: Drawing, operands: Sequence[str]) -> tuple[list[Step], list[str]]:
    """A constraint of one of some operands to a layout whose parts may be uneven, and the operands after it."""
    one = d.one_of(operands)
    shape, dtype = d[one].shape, d[one].dtype
    made = Value("y", shape, dtype, d[one].exact)
    d.values[made.name] = made
    step = Step("constrain", (one,), {"spec": d.layout(shape, uneven=True)}, (made,))
    return [step], [made.name if name == one else name for name in operands]


def draw_mesh(draw: Callable[[Any], Any], devices: int) -> dict[str, int]:
    """A mesh of at most `devices`."""
    small, fitting = ([one for one in meshes if math.prod(one.values()) <= devices] or [{"a": 1}]
                      for meshes in (SMALL, (*SMALL, *LARGE)))  # fmt: skip
    return dict(draw(st.sampled_from(small) | st.sampled_from(fitting)))


def draw_program(
    draw: Callable[[Any], Any], names: Sequence[str], mesh: dict[str, int], axes: str, steps: int, *, plain: bool
) -> Program:
    """A program of at most `steps` of the named operations; a `plain` one has inputs and steps alone.

    Raises:
        Unsuited: if what was drawn is none.
    """
    d = Drawing(draw, mesh, axes, lone=steps == 1)
    weighted = [name for name in names for _ in range(OPERATIONS[name].weight)]
    made: list[Step] = []
    results = 0
    for _ in range(steps):
        operation = OPERATIONS[draw(st.sampled_from(weighted))]
        before = list(d.inputs), dict(d.values)
        d.inexact_allowed = operation.continuous
        try:
            operands, params = operation.draw(d)
            if steps == 1 and axes == "auto" and operands and not plain and d.chance(4):
                made, operands = draw_constraint(d, operands)
            step = Step(operation.name, tuple(operands), params, ())
            types = infer_results(step, d.values, mesh)
        except Unsuited:
            if steps == 1:
                raise
            d.inputs, d.values = before
            continue
        exact = operation.exact and all(d[name].exact for name in operands)
        values = tuple(Value(f"y{results + i}", *one, exact) for i, one in enumerate(types))
        results += len(values)
        d.values.update((value.name, value) for value in values)
        made.append(Step(operation.name, tuple(operands), params, values))
    read = {name for step in made for name in step.operands}
    left = [value for step in made for value in step.results if value.name not in read]
    if not left:
        raise Unsuited
    if plain:
        return Program(mesh, axes, tuple(d.inputs), tuple(made), tuple(Output(v.name) for v in left))
    inputs = tuple(draw_batch(d) if d.inputs and d.chance(4) else d.inputs)
    batch = Program(mesh, axes, inputs, (), ()).batch
    laid = axes == "auto"
    outputs = [Output(v.name, d.layout((*batch, *v.shape)) if laid and not d.chance(3) else None) for v in left]
    program = Program(mesh, axes, inputs, tuple(made), tuple(outputs), donated=d.chance(8))
    derivable = all(v.dtype in INEXACT for v in left) and program.differentiated()
    if derivable and d.chance(3):
        # the cotangent of a reduced value is unreduced, and so not the value itself
        ways = ["jvp", "linearize"] if any(one.reduced for one in d.inputs) else [*DERIVATIVES]
        return msgspec.structs.replace(program, derivative=d.one_of(ways))
    return program


def programs(
    names: Sequence[str],
    axes: str,
    steps: int,
    count: int,
    random_seed: int,
    devices: int = 8,
    *,
    mesh: dict[str, int] | None = None,
    plain: bool = False,
) -> list[Program]:
    """At most `count` drawn programs, each from a seed of its own, on a mesh or on any.

    Of several examples of one seed, Hypothesis makes the first as simple as can be, which is not drawn to its end,
    and most others from one before.
    """
    found: list[Program] = []

    @settings(
        max_examples=2, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def collect(data: Any) -> None:
        simplest = data.draw(st.integers(0, 2**32)) == 0
        if simplest:
            return
        try:
            chosen = mesh or draw_mesh(data.draw, devices)
            drawn.append(draw_program(data.draw, names, chosen, axes, steps, plain=plain))
        except Unsuited:
            reject()

    for i in range(count):
        drawn: list[Program] = []
        seed(random_seed * 1009 + i)(collect)()
        found += drawn[:1]
    return found
