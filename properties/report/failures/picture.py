"""The pictures of a failure: the mesh in text, and the timeline of exposed communication, in letters and drawn."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.laws.overlap import MACHINE
from shardproof.properties.performance.choosing import operations_for
from shardproof.properties.performance.lanes import KEY, Lanes, gantt, lay_out, text
from shardproof.properties.performance.timeline import Balanced, timeline
from shardproof.properties.runner.violation import LawViolation


def lanes_of(violation: LawViolation) -> Lanes:
    """The timeline of every resource, on the machine of the law; empty for other laws."""
    if violation.kind != "overlap":
        return Lanes(Fraction(0))
    implementation, case = violation.implementation, violation.case
    try:
        operations = operations_for(implementation, case)
        machine = Balanced.of(operations, case.mesh, case.axes)
        if violation.broken.of_derivative:
            operations = operations_for(implementation, case, gradient=True)
            machine = machine if machine.bytes else Balanced.of(operations, case.mesh, case.axes)
        return lay_out(timeline(operations, machine))
    except Exception:  # a failure is reported even where it cannot be drawn: its function may raise anything
        return Lanes(Fraction(0))


def in_letters(violation: LawViolation) -> list[str]:
    """The lanes under one another, and what the letters mean; empty for other laws."""
    rows = text(lanes_of(violation))
    return [*(f"    {row}" for row in rows), f"    {KEY}"] if rows else []


def drawing(violation: LawViolation) -> str:
    """The picture as an SVG; empty without a timeline, or where drawsvg is not installed."""
    lanes = lanes_of(violation)
    if not lanes.total:
        return ""
    whose = " and its gradient" if violation.broken.of_derivative else ""
    title = [
        f"{violation.implementation}{whose} on mesh {violation.case.mesh}",
        f"of {', '.join(map(str, violation.case.operands))}, {MACHINE}",
        "times in parts of all products of the function",
    ]
    try:
        return str(gantt(title, lanes, lambda part: f"{float(part):.3g}").as_svg())
    except ModuleNotFoundError:
        return ""


WRONG = "✗"
RIGHT = "·"
LIMIT = 16
"""The most rows or columns of a grid; of a larger one those around the wrong blocks are shown."""
GRIDS = 3
"""The most grids of a mesh with three axes or more."""


def picture(mesh: MeshCase, wrong: np.ndarray) -> list[str]:
    """The lines of the picture, given for every device (`[*mesh.sizes]`) whether its block is wrong.

    Rows are the first axis with more than one device, columns the second; where there are more, one
    grid for each position along the others that has a wrong block.
    """
    devices = np.array(mesh.devices).reshape(mesh.sizes)
    long = [i for i, size in enumerate(mesh.sizes) if size > 1]
    rows, columns = (long[0], long[1]) if len(long) > 1 else (None, long[0] if long else 0)
    others = [i for i in long if i not in (rows, columns)]
    positions = itertools.product(*(range(mesh.sizes[i]) for i in others))
    places = [dict(zip(others, position, strict=True)) for position in positions]
    plane_of = [slice(None) if i in (rows, columns) else 0 for i in range(len(mesh.sizes))]
    planes = [tuple(at.get(i, whole) for i, whole in enumerate(plane_of)) for at in places]
    bad = [(at, plane) for at, plane in zip(places, planes, strict=True) if wrong[plane].any()]
    names = (mesh.axis_names[rows] if rows is not None else None, mesh.axis_names[columns])
    lines: list[str] = []
    for at, plane in bad[:GRIDS]:
        lines += [", ".join(f"{mesh.axis_names[i]}={n}" for i, n in at.items()) + ":"] if others else []
        lines += _grid(names, np.atleast_2d(devices[plane]), np.atleast_2d(wrong[plane]))
    return lines + ([f"… and {len(bad) - GRIDS} more planes with wrong blocks"] if len(bad) > GRIDS else [])


def lines_to_draw(wrong: Sequence[bool]) -> list[int | None]:
    """The rows or columns to draw: all, or the first, the last and those around the wrong ones; None is a gap."""
    size = len(wrong)
    if size <= LIMIT:
        return list(range(size))
    bad = [i for i, is_wrong in enumerate(wrong) if is_wrong]
    chosen = {0, size - 1, *bad[: LIMIT - 4]}
    for i in bad:
        if len(chosen) < LIMIT - 2:
            chosen |= {max(i - 1, 0), min(i + 1, size - 1)}
    result: list[int | None] = []
    for i in sorted(chosen):
        if result and result[-1] != i - 1:
            result.append(None)
        result.append(i)
    return result


def _grid(names: tuple[str | None, str], devices: np.ndarray, wrong: np.ndarray) -> list[str]:
    columns, rows = (lines_to_draw([bool(line.any()) for line in lines]) for lines in (wrong.T, wrong))
    heads = ["…" if c is None else f"{names[1]}={c}" for c in columns]
    sides = ["…" if r is None else f"{names[0]}={r}" if names[0] else "" for r in rows]
    digits = len(str(int(devices.max())))

    def cell(row: int | None, column: int | None) -> str:
        if row is None or column is None:
            return "…"
        return f"{devices[row, column]:>{digits}} {WRONG if wrong[row, column] else RIGHT}"

    widths = [1 if c is None else max(digits + 2, len(head)) for c, head in zip(columns, heads, strict=True)]
    margin = max(map(len, sides))
    lines = [" ".join([" " * margin, *(f"{head:>{w}}" for head, w in zip(heads, widths, strict=True))])]
    for side, row in zip(sides, rows, strict=True):
        cells = [f"{cell(row, column):>{w}}" for column, w in zip(columns, widths, strict=True)]
        lines.append(" ".join([f"{side:>{margin}}", *cells]))
    return [line.rstrip() for line in lines]
