"""The commands that draw a program: who sends what to whom, and its timeline on a machine."""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardproof.impl.collectives import cast_varying
from shardproof.oracles.dtypes import WIDE, as_dtype
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.communication import pictures
from shardproof.properties.engines.engine import trace
from shardproof.properties.laws.law import first_line, own_frames
from shardproof.properties.performance.chips import Chip, chip, in_words
from shardproof.properties.performance.choosing import operations_for
from shardproof.properties.performance.lanes import KEY, gantt, lay_out, text
from shardproof.properties.performance.operations import operations_of
from shardproof.properties.performance.shaped import KNOWN, parse_shapes, shaped_case, with_layouts
from shardproof.properties.performance.timeline import Timeline, timeline
from shardproof.properties.programs.examples import EXAMPLES, example
from shardproof.properties.programs.program import Argument, Seen, forward, partition_spec
from shardproof.properties.programs.program import Program as OnMesh
from shardproof.properties.report.arguments import LONGEST, find, parse_axes, parse_dtype, parse_mesh
from shardproof.properties.runner.given import Given
from shardproof.properties.runner.programs import Program


def draw_steps(name: str, mesh: MeshCase, axes: tuple[str, ...], shape: str, output: Path | None) -> Iterator[str]:
    """Yields the collectives of an implementation, a function or a Program in words, then where their picture lies.

    Arguments:
        name: as `shardproof draw` takes it.
        mesh: the mesh.
        axes: the axes that the collectives run over.
        shape: the arrays, as `--shape` takes them, which a function or a Program needs; empty: those of an example.
        output: the file of the picture; None: one in this folder with the name of what is drawn.

    Raises:
        RequestError: if there is no such function, or it cannot be traced with such arrays.
    """
    axis_name = axes if len(axes) > 1 else axes[0]
    if is_of_user(name):
        program, arrays = users_program(name, mesh, axes, shape, "float32")
        subject = file = name
    else:
        implementation = find(name, KNOWN if shape else EXAMPLES)
        contract = implementation.contract.name
        if shape:
            case = shaped_case(contract, mesh, axes, parse_shapes(shape), "float32")
        else:
            case = example(contract, mesh, axis_name)
        program, arrays = forward(case, implementation, Seen()), f"block {case.operands[0]}"
        check_trace(name, program, mesh)
        subject, file = str(implementation), f"{contract}-{implementation.name}"
    title, found = f"{subject} on mesh {mesh}, axis {axis_name!r}", pictures.steps(program, mesh)
    yield pictures.text(f"{title}, {arrays}", found)
    yield save(pictures.picture(title, found, mesh, axes), output, file)


def draw_timeline(
    name: str,
    *,
    mesh: str,
    axis: str,
    output: Path | None,
    machine: str,
    dtype: str,
    gradient: bool,
    shape: str,
    sources: bool,
) -> None:
    """Prints the figures and the lanes of a program on a machine, and writes the picture: `shardproof timeline`."""
    on, stated = parse_mesh(mesh), chip(machine)
    stated.check(on)
    parse_dtype(dtype)
    axes = parse_axes(axis, on)
    if is_of_user(name):
        if gradient:
            wanted = "an implementation, or CONTRACT=MODULE:FUNCTION, of whose arguments a contract says which have one"
            raise RequestError(f"--gradient: no gradient of {name} is timed: expected {wanted}")
        program, arrays = users_program(name, on, axes, shape, dtype)
        with jax.enable_x64(any(one.dtype.name in WIDE for one in program.arguments)):
            operations = operations_of(program, on)
        subject, arrays = name, f"{arrays}, {dtype}"
    else:
        implementation = find(name, KNOWN)
        contract, shapes = implementation.contract.name, parse_shapes(shape) if shape else None
        case = with_layouts(shaped_case(contract, on, axes, shapes, dtype), implementation.layouts)
        check_trace(name, forward(case, implementation, Seen()), on)
        operations = operations_for(implementation, case, gradient=gradient)
        subject = implementation.name if contract in implementation.name else str(implementation)
        subject += " and its gradient" * gradient
        arrays = f"{', '.join(map(str, case.operands))} on each device"
    found = timeline(operations, stated)
    title = [f"{subject} on {stated.name}, mesh {on}", f"of {arrays}", figures(found), assumed(stated, dtype)]
    lanes = lay_out(found)
    print("\n".join([title[0], *(f"  {line}" for line in title[1:]), *(f"    {line}" for line in text(lanes))]))
    print(f"    {KEY}")
    if sources:
        print("\n".join(f"{stated.name} {figure}: {source}" for figure, source in stated.sources.items()))
    if lanes.total:
        print(save(gantt(title, lanes), output, name, f"-{stated.name}"))


def save(drawing: Any, output: Path | None, name: str, more: str = "") -> str:
    """Writes a picture, by default to a file in this folder with the name of what is drawn; says where it is."""
    path = output or Path(f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:LONGEST].strip('-')}{more}.svg")
    drawing.save_svg(str(path))
    return f"wrote {path}"


def is_of_user(name: str) -> bool:
    """True for `MODULE:FUNCTION` and `MODULE:PROGRAM`, which have no contract."""
    return ":" in name and "=" not in name


def users_program(name: str, mesh: MeshCase, axes: tuple[str, ...], shape: str, dtype: str) -> tuple[OnMesh, str]:
    """The program `MODULE:FUNCTION` or `MODULE:PROGRAM` on the arrays of `--shape`, and these in words."""
    if not shape:
        raise RequestError(f"{name}: expected --shape, the arrays that it is called with")
    given = parse_arrays(shape, mesh, dtype)
    target = Given.parse(name).import_target()
    of_users = isinstance(target, Program)
    if not (of_users or callable(target)):
        raise RequestError(f"{name}: expected a function or a Program, got {type(target).__name__}")
    program = call_on_mesh(target, given, mesh) if of_users else bare(target, given, mesh, axes)
    count = len(given)
    hint = ""
    if not (of_users or takes(target, count) or takes(target, count + 1)):
        hint = f"; expected a function of {count} blocks, or of these and an axis name, or MODULE:PROGRAM of a Program"
    check_trace(name, program, mesh, hint)
    arrays = shape.replace(",", ", ")
    if not any(axes for one in given for axes in one.spec):
        last = f"{shape}@{mesh.axis_names[-1]} would shard the last dimension"
        arrays += f" (not sharded: {shard_as_described(target, shape, mesh) if of_users else last})"
    return program, arrays


def shard_as_described(program: Program, shape: str, mesh: MeshCase) -> str:
    """The arrays of a program in words, sharded over the last axes of a mesh by its last roles."""
    roles = dict.fromkeys(role for array in program.signature.arrays for role in array.roles)
    axis_of = dict(zip(reversed(roles), reversed(mesh.axis_names), strict=False))
    texts = []
    for part, array in zip(shape.split(","), program.signature.arrays, strict=True):
        own, colon, sides = part.strip().rpartition(":")
        sharded = [
            "@".join([side, *(axis_of[role] for role in dimension.roles if role in axis_of)])
            for side, dimension in zip(sides.split("x"), array.dimensions, strict=True)
        ]
        texts.append(f"{own}{colon}{'x'.join(sharded)}")
    return f"{','.join(texts)} would shard {' and '.join(reversed(axis_of))}"


def check_trace(name: str, program: OnMesh, mesh: MeshCase, hint: str = "") -> None:
    """Raises RequestError with the exception of a function that cannot be traced, and its place in the source."""
    try:
        with jax.enable_x64(any(one.dtype.name in WIDE for one in program.arguments)):
            trace(program, mesh)
    except (RequestError, NotImplementedError):  # these say what is expected
        raise
    except Exception as error:  # whatever the function raises
        where = "".join(f" ({frame.filename}:{frame.lineno})" for frame in own_frames(error)[-1:])
        raise RequestError(f"{name} cannot be traced: {first_line(error)}{where}{hint}") from error


def call_on_mesh(program: Program, given: Sequence[Argument], mesh: MeshCase) -> OnMesh:
    """The program's function on whole arrays, or inside `shard_map` on their blocks, with the first of all options."""
    arrays, names = program.signature.arrays, program.signature.names
    if len(given) != len(arrays):
        raise RequestError(f"arrays={len(given)}: expected {len(arrays)}: {', '.join(names)}")
    roles: dict[str, str | tuple[str, ...]] = {}
    for name, array, argument in zip(names, arrays, given, strict=True):
        if len(argument.shape) != len(array.dimensions):
            raise RequestError(f"{name}={argument.shape}: expected the dimensions {array}")
        for dimension, entry in zip(array.dimensions, argument.spec, strict=True):
            own, over = dimension.roles, "@".join(entry)
            if entry and not own:
                raise RequestError(f"{name}: {dimension.name}@{over}: expected no axis: no role shards it in {array}")
            if len(own) > 1 and entry and len(entry) != len(own):
                raise RequestError(f"{name}: {dimension.name}@{over}: expected an axis for each of {', '.join(own)}")
            one_each = entry if len(own) > 1 and entry else [entry[0] if len(entry) == 1 else entry] * len(own)
            for role, axis in zip(own, one_each, strict=True):
                if roles.setdefault(role, axis) != axis:
                    raise RequestError(f"{name}: {role}={axis!r}: expected {roles[role]!r}, as another array has it")
    if missing := [role for role in program.signature.roles if role not in roles]:
        raise RequestError(f"role={missing[0]}: expected it to shard an array: no other tells which axis it is")
    tree: Any = jax.tree.structure(program.signature.tree)
    options = {name: values[0] for name, values in program.conditions.options.items()}

    def function(*leaves: Any, **more: Any) -> Any:
        return program.function(*jax.tree.unflatten(tree, leaves), **roles, **options, **more)

    if not program.whole:
        return bare(lambda *blocks: function(*blocks), given, mesh, ())
    return OnMesh(lambda on: jax.jit(lambda *whole: function(*whole, mesh=on)), tuple(given))


def figures(found: Timeline) -> str:
    """The times of a timeline in one line."""
    exposed = f"{in_words(found.exposed)} exposed ({float(found.share):.0%} of what is sent)"
    return (
        f"total {in_words(found.total)}: {in_words(found.compute)} computing, {in_words(found.communication)} sending, "
        f"of which {in_words(found.hidden)} hidden and {exposed}"
    )


def assumed(machine: Chip, dtype: str) -> str:
    """A machine's figures in one line: the peak of a dtype, if it has one, and the others."""
    links, steps = ("a link, one way", "a hop") if machine.dimensions else ("to a switch", "a step")
    stated = {f"peak:{dtype}": f"{machine.rate(dtype) / 1e12:g} TFLOP/s ({dtype})"} if dtype in machine.peak else {}
    stated["memory"] = f"memory {machine.memory / 1e9:g} GB/s"
    stated["link"] = f"{machine.link / 1e9:g} GB/s {links}"
    stated["latency"] = f"{in_words(machine.latency)} {steps}"
    parts = (figure + " (assumed)" * (name in machine.assumed) for name, figure in stated.items())
    return f"{machine.name}: {', '.join(parts)}"


def parse_arrays(text: str, mesh: MeshCase, dtype: str) -> tuple[Argument, ...]:
    """The whole arrays that `512@dp@tpx2048,int32:2048` lists: sides with the axes that shard each, and dtypes.

    Raises:
        RequestError: if one cannot be read, names no axis of the mesh, or does not divide.
    """
    found = []
    names = "|".join(sorted(mesh.axis_names, key=len, reverse=True))  # which may have an x
    side = re.compile(rf"([1-9]\d*)((?:@(?:{names}))*)(?:x(?=\d)|$)")
    for part in text.split(","):
        own, _, sides = part.strip().rpartition(":")
        matches = [*side.finditer(sides)]
        if not sides or "".join(match[0] for match in matches) != sides:
            form = f"512x2048@{mesh.axis_names[-1]},int32:2048"
            raise RequestError(f"--shape={text}: expected the sides of whole arrays and axes of {mesh}, as in {form}")
        shape = tuple(int(match[1]) for match in matches)
        entries = tuple(tuple(match[2].split("@")[1:]) for match in matches)
        for size, entry in zip(shape, entries, strict=True):
            if size % mesh.axis_size(entry):
                raise RequestError(f"--shape={text}: expected {'@'.join(entry)} of {mesh} to divide {size}")
        try:
            found.append(Argument(shape, as_dtype(own or dtype), entries))
        except ValueError as error:
            raise RequestError(f"--shape={text}: {error}") from error
    if math.prod(size for one in found for size in one.shape) > 2**128:
        raise RequestError(f"--shape={text}: expected smaller arrays")
    return tuple(found)


def bare(function: Callable[..., Any], arguments: Sequence[Argument], mesh: MeshCase, axes: tuple[str, ...]) -> OnMesh:
    """The program that calls `function(*blocks, axis_name)` inside `shard_map`, or `function(*blocks)`.

    The axis tuple is left out if it is empty, or if the function takes no more than the blocks.
    """
    more = (axes if len(axes) > 1 else axes[0],) if axes and takes(function, len(arguments) + 1) else ()

    def local(*blocks: jax.Array) -> list[jax.Array]:
        found: list[jax.Array] = jax.tree.leaves(function(*blocks, *more))
        return [cast_varying(y, mesh.axis_names).reshape(1, *y.shape) for y in found]

    def build(on: Any) -> Any:
        specs = tuple(partition_spec(argument.spec) for argument in arguments)
        return jax.jit(jax.shard_map(local, mesh=on, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names)))

    return OnMesh(build, tuple(arguments))


def takes(function: Callable[..., Any], count: int) -> bool:
    """True if a function can be called with `count` arguments by position, and nothing else."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
