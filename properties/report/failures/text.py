"""The text of a failure, which a person reads first."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.layout import device_name, logical_index
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.chain import UNCHECKED
from shardproof.properties.laws.law import LawViolation, first_line
from shardproof.properties.performance.lanes import KEY
from shardproof.properties.performance.lanes import text as letters
from shardproof.properties.programs.violation import RAISED, Difference
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.failures.causes import entry
from shardproof.properties.report.failures.files import find_files, lanes_of, write_if_possible

RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"
WRONG = "✗"
RIGHT = "·"
LIMIT = 16
"""The most rows or columns of a grid; of a larger one those around the wrong blocks are shown."""
GRIDS = 3
"""The most grids of a mesh with three axes or more."""


def render(violation: LawViolation) -> str:
    """The headline, a hint on what the program could state, the mesh, what is wrong where, and how to show it again."""
    lines = [violation.headline, "", *_hint_unchecked_types(violation)]
    difference = violation.difference
    if difference is not None and difference.comparable:
        mesh = violation.case.mesh
        devices = np.asarray(difference.wrong.reshape(*mesh.sizes, -1).any(axis=-1))
        lines += [*(f"    {line}" for line in picture(mesh, devices)), ""]
    lines += [f"  {line}" for line in (*find_diagnosis(violation), *first_wrong(violation), *violation.facts)]
    if violation.kind in RAISED and violation.origin:
        repeats = violation.finding.startswith(f"raises {violation.origin[-1].strip()}")
        lines += ["", *violation.origin[: -1 if repeats else None], *_hint_conditions(violation)]
    lanes = in_letters(violation)
    lines += ["", *lanes] if lanes else []
    files = find_files(violation)
    if files is not None:
        lines += [f"    drawn in {files.picture}"] if lanes and files.picture.exists() else []
        lines += ["", *(f"  {command}" for command in files.commands)]
    return "\n".join(lines)


def _hint_unchecked_types(violation: LawViolation) -> list[str]:
    """A hint for programs that may take gradients and are wrong with unchecked types."""
    program = violation.implementation.program
    unlike = violation.difference is None or not {*UNCHECKED} & {*violation.case.chain}
    if program is None or program.differentiates or unlike:
        return []
    return [
        "  the types in shard_map are not checked here (check_vma=False), so that JAX has wrong gradients of sums:",
        f"  if {program.name} takes gradients, say differentiates=True, and no such case is drawn",
        "",
    ]


def _hint_conditions(violation: LawViolation) -> list[str]:
    """A hint for functions that name axes, or programs that refuse a case, other than by NotImplementedError."""
    program, finding = violation.implementation.program, violation.finding
    if "unbound axis name" in finding:
        axes = "axis_name" if program is None else ", ".join(program.signature.roles) or "none"
        return ["", f"  expected the axes that it gets as {axes}: their names differ from case to case"]
    if violation.leaks:
        return []
    # of functions, or of JAX, as for a `ppermute` over axes that are not in mesh order
    refusals = ("ValueError", "AssertionError", "RuntimeError", "SimulationError")
    if program is None or not finding.startswith(tuple(f"raises {name}" for name in refusals)):
        return []
    names = ", ".join(program.named)
    return [
        "",
        f"  if {program.name} does not support such a case, say what it needs, and no other is drawn: one_axis, sizes,",
        f"  multiples, optional, powers_of_two, most_devices, dtypes, or serves=, a predicate of any of {names}",
    ]


def report(violation: LawViolation) -> dict[str, str]:
    """Writes the files of a violation; returns its entry, whose text has their commands or why there are none."""
    files, reason = write_if_possible(violation)
    if files is None:
        return entry(violation, f"{render(violation)}\n\n  {reason}")
    return entry(violation, render(violation)) | {"script": str(files.script), "json": str(files.case)}


def colour(text: str) -> str:
    """The text with its headline bold and the wrong devices of the picture red, for a terminal that has colour."""
    lines = text.split("\n")
    lines[0] = f"{BOLD}{RED}{lines[0]}{PLAIN}"
    return "\n".join(lines).replace(WRONG, f"{RED}{WRONG}{PLAIN}")


def find_diagnosis(violation: LawViolation) -> Sequence[str]:
    """The diagnosis, which takes further runs of the function if it is not known yet."""
    if violation.diagnosis is not None or violation.difference is None:
        return violation.diagnosis or ()
    try:
        violation.diagnosis = diagnose(violation)
    except Exception as error:  # a failure is reported even where its explanation fails
        violation.diagnosis = [f"other values (the diagnosis raises {first_line(error)})"]
    return violation.diagnosis


def first_wrong(violation: LawViolation) -> list[str]:
    """The first element that differs: its global index, its value and the right one, and below it who owns it.

    A result without a layout, such as that of a collective, has no global index: there it is the one in the block.
    """
    difference, case = violation.difference, violation.case
    if difference is None or not difference.comparable or not difference.wrong.any():
        return []
    where = tuple(int(i) for i in np.argwhere(difference.wrong)[0])
    lead = len(case.mesh.sizes)
    place, local = where[:lead], where[lead:]
    placement = _placement(case, difference)
    index = local if placement is None else _global_index(case.mesh, placement, where, difference.actual.shape)
    name = "gradient" if difference.of == "gradient" else difference.what.partition(" ")[0]
    device = case.mesh.devices[int(np.ravel_multi_index(place, case.mesh.sizes))]
    owner = f"the block of device {device}, {device_name(case.mesh, place)}"
    values = f"is {difference.actual[where]}, expected {difference.expected[where]}"
    return [
        f"first wrong element: {name}{[*index] or ''} {values}",
        f"  in {owner}" if index == local else f"  it is element {[*local]} of {owner}",
    ]


def _placement(case: Case, difference: Difference) -> Placement | None:
    """The layout of the blocks in a global array, if that is known."""
    if difference.of == "gradient":
        return case.operands[difference.leaf].placement
    if difference.of == "array":
        return None if case.out is None else case.out[difference.leaf]
    placed = case.contract.call.placed
    return None if placed is None else placed(case)[difference.leaf]


def _global_index(
    mesh: MeshCase, placement: Placement, where: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The global index of an element of blocks; where several arrays are stacked, in its owner's."""
    rank, lead = len(placement.spec), len(mesh.sizes)
    inner = len(where) - rank
    sharded = zip(where[inner:], shape[inner:], placement.spec, strict=True)
    return (*where[lead:inner], *(i + n * logical_index(mesh, where[:lead], axes) for i, n, axes in sharded))


def in_letters(violation: LawViolation) -> list[str]:
    """The lanes under one another, and what the letters mean; empty for other laws."""
    rows = letters(lanes_of(violation))
    return [*(f"    {row}" for row in rows), f"    {KEY}"] if rows else []


def picture(mesh: MeshCase, wrong: np.ndarray) -> list[str]:
    """The lines of the picture, given for every device (`[*mesh.sizes]`) whether its block is wrong.

    Rows are the first axis with more than one device, columns the second; where there are more, one
    grid for each position along the others that has a wrong block.
    """
    long = [i for i, size in enumerate(mesh.sizes) if size > 1] or [0]
    names, sizes = [mesh.axis_names[i] for i in long], [mesh.sizes[i] for i in long]
    last = (*range(2, len(long)), *range(len(long))[:2])  # the order of the axes in which rows and columns are last
    devices, wrong = np.reshape(mesh.devices, sizes).transpose(last), np.reshape(wrong, sizes).transpose(last)
    bad = [at for at in np.ndindex(*wrong.shape[:-2]) if wrong[at].any()]
    lines: list[str] = []
    for at in bad[:GRIDS]:
        lines += [", ".join(f"{name}={n}" for name, n in zip(names[2:], at, strict=True)) + ":"] if at else []
        side, top = names[:2] if names[1:] else (None, names[0])
        lines += _grid((side, top), np.atleast_2d(devices[at]), np.atleast_2d(wrong[at]))
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
