"""The part of a script that is specific to values and gradients: data, run, and comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from properties.cases import Case
from properties.data import Data
from properties.failures.expectations import Bounds, Gradients, result_values
from properties.failures.literals import array_text, bound_text, spec_text, tuple_text
from properties.laws.running import is_batched

if TYPE_CHECKING:
    from properties.failures.script import Script

DIFFERS = '''def differs(name, actual, expected):
    """Prints where two arrays differ, and returns whether they do."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        print(f"{name} is {actual.dtype}{list(actual.shape)}, expected {expected.dtype}{list(expected.shape)}")
        return True
    actual = np.asarray(actual) if actual.size else expected
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    for index in np.argwhere(~same)[:10]:
        at = tuple(index.tolist())
        print(f"{name}{list(at)} is {actual[at]}, expected {expected[at]}")
    return not same.all()'''
SAME = "    same = (actual == expected) | ((actual != actual) & (expected != expected))\n"
WITHIN = (
    SAME
    + """    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        same |= abs(actual.astype(wide) - expected.astype(wide)) <= tolerance
"""
)
OVERFLOWS = "    same |= (tolerance != tolerance) & (expected == expected)  # NaN: some order of the sum overflows\n"
EXIT = "sys.exit(1 if wrong else 0)"


def assign(name: str, text: str) -> list[str]:
    """The lines that give a name to an expression."""
    return f"{name} = {text}".split("\n")


def operands(script: Script, arrays: list[np.ndarray], names: list[str] | None = None) -> list[str]:
    """The global arrays, placed on the mesh."""
    case, lines = script.case, []
    for name, operand, array in zip(names or script.names, case.operands, arrays, strict=True):
        spec = spec_text(operand.placement.partition(batched=is_batched(case)))
        lines += assign(name, array_text(array))
        lines.append(f"{name} = jax.device_put({name}, NamedSharding(mesh, {spec}))")
    return lines


def differs(bounds: Bounds = None) -> list[str]:
    """The function that compares, with a tolerance where one is needed."""
    text = DIFFERS
    if bounds is not None:
        within = WITHIN + (OVERFLOWS if any(np.isnan(bound).any() for bound in bounds) else "")
        text = DIFFERS.replace("expected):", "expected, tolerance):", 1).replace(SAME, within)
    return [*text.split("\n"), "", ""]


def compared(names: list[str], expected: list[np.ndarray], bounds: Bounds, *, tolerant: bool = False) -> list[str]:
    """Lines that give the right values and add to `wrong`; `names` are expressions of what was computed.

    `tolerant`: the function that compares takes a tolerance although these values need none.
    """
    lines: list[str] = []
    for i, (name, right) in enumerate(zip(names, expected, strict=True)):
        suffix = "" if len(expected) == 1 else str(i)
        label = name.partition("[")[0].removesuffix("s")
        told = f"expected{suffix}" if label == "result" else f"expected_{label}{suffix}"
        lines += assign(told, array_text(right))
        tolerance = ", 0" if tolerant else ""
        if bounds is not None:
            lines += assign(f"tolerance{suffix}", bound_text(bounds[i]))
            tolerance = f", tolerance{suffix}"
        lines.append(f'wrong |= differs("{label}{suffix}", {name}, {told}{tolerance})')
    return lines


def _one_replica(case: Case, blocks: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    """Blocks as the global array stacked over `axes`: along the others they are the same."""
    index = tuple(slice(None) if name in axes else 0 for name in case.mesh.axis_names)
    return np.asarray(blocks[index])


def results(script: Script, count: int) -> list[str]:
    """What the script calls its results."""
    return [f"results[{i}]" for i in range(count)] if script.several else ["result"]


def value(script: Script, data: Data) -> list[str]:
    """Every device's block equals the right one."""
    case = script.case
    right = result_values(case, data)
    expected = [_one_replica(case, e, script.lead) for e in right.expected]
    bounds = None if right.bounds is None else [_one_replica(case, b, script.lead) for b in right.bounds]
    names = results(script, len(expected))
    program = script.shard_map([spec_text([(n,) for n in script.lead])])
    return [
        *script.local([script.lead] * len(expected)),
        *differs(bounds),
        *operands(script, right.operands),
        program,
        f"{names[0].partition('[')[0]} = {script.jitted('program')}({', '.join(script.names)})",
        f"# the blocks of all devices: [{', '.join((*script.lead, '*block'))}]",
        "wrong = False",
        *compared(names, expected, bounds),
        EXIT,
    ]


def gradient(script: Script, right: Gradients) -> list[str]:
    """Forward mode, reverse mode, or both, whichever is wrong, give the right tangents and gradients."""
    case, finding = script.case, script.violation.finding
    axes = [placement.stacked for placement in right.placements]
    forward = "tangent" in finding or "<J d, c>" in finding
    reverse = not forward or "<J d, c>" in finding
    names, tangents, cts = script.names, [f"d{n}" for n in script.names], [f"c{i}" for i in range(len(axes))]
    bounds = [*(right.pulled_bounds or []), *(right.tangents.bounds or [])] or None
    tolerant = bounds is not None
    lines = [*script.local(list(axes)), *differs(bounds), *operands(script, right.primal)]
    lines += [script.shard_map([spec_text([(n,) for n in a]) for a in axes]), "wrong = False"]
    if forward:
        run = script.jitted("lambda xs, ds: jax.jvp(program, xs, ds)[1]")
        lines += operands(script, right.tangents.operands, tangents)
        lines.append(f"tangent = {run}({tuple_text(names)}, {tuple_text(tangents)})")
        expected = [_one_replica(case, e, a) for e, a in zip(right.tangents.expected, axes, strict=True)]
        bounds = None
        if right.tangents.bounds is not None:
            bounds = [_one_replica(case, b, a) for b, a in zip(right.tangents.bounds, axes, strict=True)]
        found = [f"tangent[{i}]" for i in range(len(axes))] if script.several else ["tangent"]
        lines += compared(found, expected, bounds, tolerant=tolerant)
    if reverse:
        for name, ct, placement in zip(cts, right.cotangents, right.placements, strict=True):
            lines += assign(name, array_text(ct))
            lines.append(f"{name} = jax.device_put({name}, NamedSharding(mesh, {spec_text(placement.partition())}))")
        ct_text = f"[{', '.join(cts)}]" if script.several else cts[0]
        run = script.jitted("lambda xs, ct: jax.vjp(program, *xs)[1](ct)")
        lines.append(f"gradient = {run}({tuple_text(names)}, {ct_text})")
        found = [f"gradient[{i}]" for i in range(len(names))]
        lines += compared(found, right.pulled, right.pulled_bounds, tolerant=tolerant)
    return [*lines, EXIT]


def gradient_runs(script: Script, data: Data) -> list[str]:
    """Reverse mode runs: which gradient is right depends on a type that no trace could tell."""
    right = result_values(script.case, data)
    ones = "jax.tree.map(jax.numpy.ones_like, program(*xs))"
    run = script.jitted(f"lambda *xs: jax.vjp(program, *xs)[1]({ones})")
    return [
        *script.local([script.lead] * len(right.expected)),
        *operands(script, right.operands),
        script.shard_map([spec_text([(n,) for n in script.lead])]),
        f"print({run}({', '.join(script.names)}))  # raises while the bug is there",
    ]
