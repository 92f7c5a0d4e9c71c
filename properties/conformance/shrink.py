"""Makes a program smaller that is not right, as long as it is not right in the same way."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shardproof.properties.conformance.drawing import Unsuited
from shardproof.properties.conformance.program import LAYOUTS, Input, Output, Program, Spec, Value, integers
from shardproof.properties.conformance.programs import infer_results
from shardproof.properties.conformance.running import Verdict

replace = msgspec.structs.replace

Run = Callable[[Sequence[Program]], list[Verdict]]
"""Runs programs and returns their verdicts, in order."""


def normalize_message(detail: str) -> str:
    """A message without what differs between programs of one cause; nothing of wrong values."""
    if re.match(r"result \d+", detail):
        return next((word for word in ("layout", "type") if f": {word}" in detail), "values")
    first = re.sub(r"%[\w.]+|'[^']*'|\"[^\"]*\"|0x\w+|[\[({<].*", "_", detail)
    return re.sub(r"-?\d+", "N", first)[:90].strip()


def is_same(one: Verdict, other: Verdict) -> bool:
    """True if two verdicts are of one kind, with one message."""
    return one.kind == other.kind and normalize_message(one.detail) == normalize_message(other.detail)


def infer_types(program: Program) -> Program:
    """A program without what nothing reads, its types inferred again.

    Raises:
        Unsuited: if it is none.
    """
    needed, steps = {one.name for one in program.outputs}, []
    for step in reversed(program.steps):
        if any(value.name in needed for value in step.results):
            steps.append(step)
            needed.update(step.operands)
    inputs = tuple(one for one in program.inputs if one.name in needed)
    batches = {one.shape[:1] for one in inputs if one.mapped}
    if len(batches) > 1 or () in batches or any(n < 0 for one in inputs for n in one.shape):
        raise Unsuited
    values = {one.name: one.value for one in inputs}
    made = []
    for step in reversed(steps):
        if any(name not in values for name in step.operands):
            raise Unsuited
        types = infer_results(step, values, program.mesh)
        if len(types) != len(step.results):
            raise Unsuited
        results = tuple(Value(v.name, *t, v.exact) for v, t in zip(step.results, types, strict=True))
        values.update((value.name, value) for value in results)
        made.append(replace(step, results=results))
    if not made:
        raise Unsuited
    found = replace(program, inputs=inputs, steps=tuple(made))
    layouts = [*((one.shape, one.spec) for one in inputs),
               *(((*found.batch, *values[one.name].shape), one.spec) for one in found.outputs)]  # fmt: skip
    for shape, spec in layouts:
        if spec is not None:
            _check(program, spec, shape)
    if found.derivative and not found.differentiated():
        raise Unsuited
    return found


def _check(program: Program, spec: Spec, shape: Sequence[int]) -> None:
    if len(spec) != len(shape):
        raise Unsuited
    for entry, size in zip(spec, shape, strict=True):
        if isinstance(entry, list) and size % math.prod(program.mesh[axis] for axis in entry):
            raise Unsuited


def _mapped(x: Any, change: Callable[[int], int]) -> Any:
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return x
    if isinstance(x, int):
        return change(x)
    if isinstance(x, dict):
        return {name: value if name in LAYOUTS else _mapped(value, change) for name, value in x.items()}
    return [_mapped(part, change) for part in x]


def _without_axis(program: Program, axis: str) -> Program:
    """A program on a mesh with an axis less."""

    def without(spec: Spec | None) -> Spec | None:
        return spec and [[x for x in e if x != axis] or None if isinstance(e, list) else e for e in spec]

    def params(of: dict[str, Any]) -> dict[str, Any]:
        return {name: without(value) if name in LAYOUTS else value for name, value in of.items()}

    reduced = [tuple(other for other in one.reduced if other != axis) for one in program.inputs]
    return replace(
        program,
        mesh={name: size for name, size in program.mesh.items() if name != axis},
        inputs=tuple(replace(x, spec=without(x.spec), reduced=r) for x, r in zip(program.inputs, reduced, strict=True)),
        outputs=tuple(replace(one, spec=without(one.spec)) for one in program.outputs),
        steps=tuple(replace(step, params=params(step.params)) for step in program.steps),
    )


def _with(program: Program, field: str, i: int, **change: Any) -> Program:
    """A program with one of its inputs, steps or outputs changed."""
    those = getattr(program, field)
    return replace(program, **{field: (*those[:i], replace(those[i], **change), *those[i + 1 :])})


def _fewer(spec: Spec) -> Iterator[Spec]:
    """Layouts that shard less."""
    for i, entry in enumerate(spec):
        if entry is not None:
            yield [*spec[:i], None, *spec[i + 1 :]]
        if isinstance(entry, list) and len(entry) > 1:
            yield from ([*spec[:i], [axis], *spec[i + 1 :]] for axis in entry)


def _steps_away(program: Program) -> Iterator[Program]:
    values = program.values()
    for value in (value for step in program.steps for value in step.results):
        if [one.name for one in program.outputs] != [value.name]:
            kept = [one for one in program.outputs if one.name == value.name]
            yield replace(program, outputs=(kept[0] if kept else Output(value.name),))
    for step in program.steps:
        made = tuple(Input(v.name, v.shape, v.dtype, [None] * len(v.shape), (0, 3)) for v in step.results)
        others = tuple(one for one in program.steps if one is not step)
        yield replace(program, inputs=(*program.inputs, *made), steps=others)
        for operand in step.operands:  # an operand in place of a result
            if len(step.results) == 1 and values[operand].shape == step.results[0].shape:
                called = {step.results[0].name: operand}
                steps = (replace(one, operands=tuple(called.get(x, x) for x in one.operands)) for one in others)
                outputs = (replace(one, name=called.get(one.name, one.name)) for one in program.outputs)
                yield replace(program, steps=tuple(steps), outputs=tuple(outputs))


def _smaller_meshes(program: Program) -> Iterator[Program]:
    for axis in program.mesh:
        if len(program.mesh) > 1:
            yield _without_axis(program, axis)
        if program.mesh[axis] > 2:
            yield replace(program, mesh={**program.mesh, axis: 2})


def _unmapped(program: Program, names: Sequence[str]) -> Program:
    inputs = tuple(replace(one, shape=one.shape[1:], spec=one.spec[1:], mapped=False) if one.name in names else one
                   for one in program.inputs)  # fmt: skip
    if any(one.mapped for one in inputs):
        return replace(program, inputs=inputs)
    outputs = tuple(replace(one, spec=one.spec and one.spec[1:]) for one in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs)


def _simpler_layouts(program: Program) -> Iterator[Program]:
    for i, one in enumerate(program.inputs):
        changes: list[dict[str, Any]] = [{"reduced": ()}] if one.reduced else []
        changes += [{"spec": spec} for spec in _fewer(one.spec)]
        if one.seed or not isinstance(one.data, str):
            changes += [{"seed": 0, "data": "distinct"}, {"seed": 0}]
        if not isinstance(one.data, str):
            changes += [{"data": (n, n)} for n in range(one.data[0], one.data[1] + 1)]
        if one.dtype not in ("float32", "int32"):
            changes += [{"dtype": dtype} for dtype in ("float32", "int32")]
        yield from (_with(program, "inputs", i, **change) for change in changes)
    for i, out in enumerate(program.outputs):
        specs = [] if out.spec is None else [None, *_fewer(out.spec)]
        yield from (_with(program, "outputs", i, spec=spec) for spec in specs)
    for i, step in enumerate(program.steps):
        specs_of = [(name, spec) for name in LAYOUTS for spec in _fewer(step.params.get(name) or [])]
        for name, spec in [*specs_of, *([("to", None)] if step.params.get("to") is not None else [])]:
            yield _with(program, "steps", i, params={**step.params, name: spec})


def _smaller_numbers(program: Program) -> Iterator[Program]:
    shapes = {n for one in program.inputs for n in one.shape}
    params = {n for step in program.steps for n in integers({k: v for k, v in step.params.items() if k != "dims"})}
    for number in sorted(shapes | params, key=abs, reverse=True):
        smaller = sorted(
            {0, 1, 2, number // 2, number - 1, number - 2, number - 3, -number}, key=lambda n: (abs(n), -n)
        )
        for n in (n for n in smaller if (abs(n), n < 0) < (abs(number), number < 0)):
            change = lambda x, number=number, n=n: n if x == number else x  # noqa: E731
            steps = tuple(replace(step, params=_mapped(step.params, change)) for step in program.steps)
            inputs = tuple(replace(one, shape=tuple(map(change, one.shape))) for one in program.inputs)
            if number in shapes:
                yield replace(program, inputs=inputs, steps=steps)
                yield replace(program, inputs=inputs)
                for i, one in enumerate(program.inputs):
                    if number in one.shape:
                        yield _with(program, "inputs", i, shape=inputs[i].shape)
            if number in params:
                yield replace(program, steps=steps)
    for i, step in enumerate(program.steps):
        for name, value in step.params.items():
            if name in ("size", "start", "limit", "strides", "padding", "config", "base", "within", "shift", "widths"):
                for place in range(len([*integers(value)])):
                    for n in (0, 1):
                        yield _with(program, "steps", i, params={**step.params, name: _at(value, place, n)})
    for i, one in enumerate(program.inputs):  # fewer dimensions
        for axis in range(len(one.shape)):
            shape, spec = one.shape[:axis] + one.shape[axis + 1 :], one.spec[:axis] + one.spec[axis + 1 :]
            yield _with(program, "inputs", i, shape=shape, spec=spec)


def _at(value: Any, place: int, n: int) -> Any:
    left = [place]

    def change(x: int) -> int:
        left[0] -= 1
        return n if left[0] == -1 else x

    return _mapped(value, change)


def moves(program: Program) -> Iterator[Program]:
    """Smaller programs, those without a step first."""
    made = [_steps_away(program), _smaller_meshes(program), _simpler_layouts(program), _smaller_numbers(program)]
    if program.derivative:
        made.insert(0, iter([replace(program, derivative="")]))
    if program.donated:
        made.insert(0, iter([replace(program, donated=False)]))
    if mapped := [one.name for one in program.inputs if one.mapped]:
        made.insert(0, (_unmapped(program, names) for names in (mapped, *([name] for name in mapped[1:]), mapped[:1])))
    seen = set()
    for candidate in (one for part in made for one in part):
        try:
            found = infer_types(candidate)
        except Unsuited:
            continue
        key = msgspec.json.encode(found)
        if key not in seen and found.size() < program.size():
            seen.add(key)
            yield found


@dataclass
class Shrunk:
    """A smallest program, its verdict, and how many were run to find it."""

    program: Program
    verdict: Verdict
    tried: int = 0


def shrink(program: Program, verdict: Verdict, run: Run, *, seconds: float = 45, together: int = 12) -> Shrunk:
    """The smallest program that is found, within a time, which is not right in the same way."""
    found, until = Shrunk(program, verdict), time.monotonic() + seconds
    tried: set[bytes] = set()
    while time.monotonic() < until:
        left = [one for one in moves(found.program) if msgspec.json.encode(one) not in tried]
        tried.update(map(msgspec.json.encode, left))
        for i in range(0, len(left), together):
            part = left[i : i + together]
            verdicts = run(part)
            found.tried += len(part)
            good = [(one, v) for one, v in zip(part, verdicts, strict=True) if is_same(v, verdict)]
            if good:
                found.program, found.verdict = min(good, key=lambda pair: pair[0].size())
                break
            if time.monotonic() > until:
                break
        else:
            break
    return found
