"""A program of global arrays as data, and the plain JAX that it is written as."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

Spec = list[list[str] | str | None]
"""A PartitionSpec: of each dimension the axes that shard it, None, or `"*"` where the compiler chooses."""

DERIVATIVES = {
    "jvp": "lambda {x}: jax.jvp(lambda {d}: f({x}), ({d},), ({d},))[1]",
    "vjp": "lambda {x}: jax.vjp(lambda {d}: f({x}), {d})[1](f({x}))",
    "linearize": "lambda {x}: jax.linearize(lambda {d}: f({x}), {d})[1]({d})",
    "remat": "lambda {x}: jax.vjp(jax.checkpoint(lambda {d}: f({x})), {d})[1](f({x}))",
}
"""Derivatives that run in place of the function `f`: `x` are its arguments, `d` those that it is differentiated by."""

FILE = "<program>"
"""The file that tracebacks name for a program's function; its steps begin on the second line."""

LAYOUTS = ("spec", "second", "to")
"""The parameters of operations that are layouts."""

INEXACT = ("float32", "bfloat16", "float16", "complex64", "float8_e4m3fn")


class Input(msgspec.Struct, frozen=True):
    """An argument: its type, its layout, and how its elements are made.

    `data` is *distinct*, a permutation of the first whole numbers, or the least and the greatest whole number.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    data: str | tuple[int, int]
    seed: int = 0
    reduced: tuple[str, ...] = ()
    mapped: bool = False
    """True if the program is vmapped over its first dimension."""

    @property
    def value(self) -> "Value":
        """Its name and type within the function."""
        return Value(self.name, self.shape[self.mapped :], self.dtype)

    def text(self) -> str:
        """The expression that makes it, in NumPy."""
        count = math.prod(self.shape)
        rng = f"np.random.default_rng({self.seed})"
        if isinstance(self.data, str):
            made = f"{rng}.permutation({count})" if self.seed else f"np.arange({count})"
            made += f".reshape({self.shape})" if len(self.shape) != 1 else ""
        else:
            made = f"{rng}.integers({self.data[0]}, {self.data[1] + 1}, {self.shape})"
        if self.dtype == "bool":
            return f"({made} % 2 == 0)"
        return f"{made}.astype(jnp.{self.dtype})"


class Step(msgspec.Struct, frozen=True):
    """An operation of the table on values by their names, and the values that it makes."""

    op: str
    operands: tuple[str, ...]
    params: dict[str, Any]
    results: tuple["Value", ...]


class Value(msgspec.Struct, frozen=True):
    """A value's name and type; it is not `exact` once something before it may have been rounded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool = True


class Output(msgspec.Struct, frozen=True):
    """A result, and its layout; None: the compiler's choice."""

    name: str
    spec: Spec | None = None


class Program(msgspec.Struct, frozen=True):
    """A program: a mesh, inputs, steps in SSA form, outputs, and which derivative of it is run, if any is."""

    mesh: dict[str, int]
    axes: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    derivative: str = ""
    donated: bool = False
    """True if results may take the place of the arguments."""

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.mesh.values())

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations, in their order."""
        return tuple(step.op for step in self.steps)

    @property
    def batch(self) -> tuple[int, ...]:
        """The dimension that the program is vmapped over; none, if it is not."""
        return next((one.shape[:1] for one in self.inputs if one.mapped), ())

    def values(self) -> dict[str, Value]:
        """All values within the function, by their names."""
        made = [one.value for one in self.inputs]
        return {one.name: one for one in (*made, *(v for step in self.steps for v in step.results))}

    def differentiated(self) -> list[str]:
        """The arguments that a derivative is taken by."""
        return [one.name for one in self.inputs if one.dtype in INEXACT]

    def size(self) -> tuple[int, ...]:
        """The sizes that shrinking reduces, the most important first."""
        numbers = sum(sum(one.shape) for one in self.inputs)
        layouts = [*(one.spec for one in self.inputs), *(one.spec for one in self.outputs)]
        sharded = sum(entry is not None for spec in layouts for entry in spec or ())
        reduced = sum(len(one.reduced) for one in self.inputs)
        made_up = sum(not isinstance(one.data, str) or one.seed for one in self.inputs)
        forms = sum(len(one.dtype) for one in self.inputs)
        params = sum(abs(n) for step in self.steps for n in integers(step.params))
        laid = sum(one.spec is not None for one in self.outputs)
        ways = bool(self.derivative), sum(one.mapped for one in self.inputs), self.donated
        counts = len(self.steps), *ways, len(self.mesh), self.devices, len(self.inputs)
        return (*counts, len(self.outputs), sharded + reduced, numbers, params, made_up, laid, forms)


def integers(x: Any) -> Iterator[int]:
    """The integers in parameters."""
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return
    if isinstance(x, int):
        yield x
        return
    for part in x.values() if isinstance(x, Mapping) else x:
        yield from integers(part)


def spec_text(spec: Spec, reduced: Sequence[str] = ()) -> str:
    """A PartitionSpec as it is written."""

    def entry(one: Any) -> str:
        if one is None:
            return "None"
        if one == "*":
            return "P.UNCONSTRAINED"
        return repr(one[0]) if len(one) == 1 else repr(tuple(one))

    entries = [entry(one) for one in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join([*entries, *([f'reduced={set(reduced)}'] if reduced else [])])})"


def _text(name: str, value: Any) -> str:
    """A parameter as it is written: `unreduced` is an axis, some are layouts, and other lists are tuples."""
    if name in ("spec", "second"):
        return spec_text(value)
    if name == "to":
        return "None" if value is None else f"to({spec_text(value)})"
    if name == "unreduced":
        return "None" if value is None else f"to(P(unreduced={{{value!r}}}))"
    if isinstance(value, str):
        return value
    return repr(_tuples(value))


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list | tuple) else x


def line(template: str, operands: Sequence[str], params: Mapping[str, Any]) -> str:
    """The expression of a step."""
    texts = {name: _text(name, value) for name, value in params.items()}
    return template.format(*operands, **texts, all=", ".join(operands))


def source(program: Program, templates: Mapping[str, str], *, every: bool = False) -> str:
    """The function `f` of a program, and `g`, which is run, if that is another; `every` returns all values as well."""
    args = ", ".join(one.name for one in program.inputs)
    lines = [f"def f({args}):"]
    for step in program.steps:
        names = ", ".join(one.name for one in step.results)
        comma = "," if len(step.results) == 1 and templates[step.op].startswith("*") else ""
        text = line(templates[step.op].removeprefix("*"), step.operands, step.params)
        lines.append(f"    {names}{comma} = {text}")
    results = [one.name for one in program.outputs]
    if every:
        results += [value.name for step in program.steps for value in step.results]
    lines.append(f"    return {', '.join(results)}{',' if every or len(results) == 1 else ''}")
    if program.batch:
        mapped = ", ".join("0" if one.mapped else "None" for one in program.inputs)
        lines.append(f"f = jax.vmap(f, in_axes=({mapped},))")
    if program.derivative:
        text = DERIVATIVES[program.derivative].format(x=args, d=", ".join(program.differentiated()))
        lines.append(f"g = {text}")
    return "\n".join(lines) + "\n"


def script(
    program: Program,
    templates: Mapping[str, str],
    sentence: str,
    platform: str = "cpu",
    preload: str = "",
    right: str = "",
    *,
    raises: bool = False,
) -> str:
    """A script in plain JAX that exits with 1 if the results with layouts are not those without, or not `right`.

    An exception of the program exits with 1 if it `raises`, as its defect is that; all others exit with 2.
    """
    used = source(program, templates)
    auto, run = program.axes == "auto", "g" if program.derivative else "f"
    names = [one.name for one in program.inputs]
    shape, axes = tuple(program.mesh.values()), tuple(program.mesh)
    kind = "Auto" if auto else "Explicit"
    lines = [
        f'"""{sentence}"""', "", "import sys", "",
        "import jax", "import jax.numpy as jnp", "import numpy as np", "from jax import P, lax", "",
        "sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.exit(2))  # it cannot be run",
        *(['sys.path.append(".")', f"import {preload}"] if preload else []),
        f'jax.config.update("jax_platforms", "{platform}")',
        *([f'jax.config.update("jax_num_cpu_devices", {max(2, program.devices)})'] if platform == "cpu" else []),
        f"mesh = jax.make_mesh({shape}, {axes}, axis_types=(jax.sharding.AxisType.{kind},) * {len(axes)})",
    ]  # fmt: skip
    if raises:
        lines.append("sys.excepthook = sys.__excepthook__  # from here on an exception is the defect")
    if "put(" in used:
        lines.append("put = lambda x, spec: x")
    if "to(" in used:
        lines.append("to = lambda spec: None")
    lines += [one for one in used.splitlines() if one]
    lines += [f"{one.name} = {one.text()}" for one in program.inputs]
    given = ", ".join(names)
    lines.append(f"right = {right or f'jax.jit({run})({given})'}")
    if "put(" in used:
        to = "lax.with_sharding_constraint(x, jax.NamedSharding(mesh, spec))" if auto else "jax.reshard(x, spec)"
        lines.append(f"put = lambda x, spec: {to}")
    if "to(" in used:
        lines.append("to = lambda spec: spec")
    laid = [f"jax.device_put({one.name}, jax.NamedSharding(mesh, {spec_text(one.spec, one.reduced)}))"
            for one in program.inputs]  # fmt: skip
    wanted = [
        "None" if one.spec is None else f"jax.NamedSharding(mesh, {spec_text(one.spec)})" for one in program.outputs
    ]
    out = f", out_shardings=({', '.join(wanted)},)" if set(wanted) != {"None"} and not program.derivative else ""
    out += f", donate_argnums=range({len(names)})" if program.donated else ""
    lines += ["with jax.set_mesh(mesh):", f"    got = jax.jit(lambda *x: {run}(*x){out})({', '.join(laid)})"]
    lines += [
        "near = lambda x, y: np.allclose(*(np.asarray(z, np.complex64) for z in (x, y)), 1e-2, equal_nan=True)",
        "parts = [(r[s.index], s.data) for r, y in zip(right, got) for s in y.addressable_shards]",
        "wrong = [(x, y) for x, y in parts if x.shape != y.shape or not near(x, y)]",
        'print(f"defect: {wrong[0][1]}, expected {wrong[0][0]}" if wrong else "fixed")',
        "sys.exit(bool(wrong))",
    ]
    return "\n".join(lines) + "\n"
