"""Cases that differ from a failing one in a single thing, and the interpreter's verdict on each.

They show which of mesh sizes, axis order, layout, dtype, transformations and data makes a failure go away.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from shardproof.oracles.dtypes import is_float
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.drawing import fit_chain
from shardproof.properties.laws.law import LawViolation, first_line
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.preconditions import check_case, check_oracle
from shardproof.properties.runner.tally import Tally

MOST_DEVICES, MOST_OPERANDS = 64, 3
"""The most devices of a neighbour, and the most operands whose sizes are tried with those of the mesh."""

Neighbour = tuple[str, str, str, list[Case]]
"""The thing that changes, its value before and now, and the case, or several of which one may fit the contract."""


def neighbours_of(violation: LawViolation, case: Case) -> list[dict[str, str]]:
    """The verdict on each neighbour, as JSON-able data; none where the interpreter holds on the failing case itself."""
    if "simulate" not in violation.law.engines or _verdict(violation, [case])[0] != "violated":
        return []
    rows = []
    for what, was, now, cases in _neighbours(case):
        verdict, found = _verdict(violation, [_on_more_data(one) if what != "data" else one for one in cases])
        if verdict:
            rows.append({"what": what, "was": was, "now": now, "verdict": verdict, "found": found})
    return rows


def _verdict(violation: LawViolation, cases: list[Case]) -> tuple[str, str]:
    """The verdict on the first of some cases that is one of its contract, and why; empty if none is."""
    law, implementation = violation.law, violation.implementation
    for case in cases:
        try:
            check_case(law.name, case)
            check_oracle(law.name, case)
        except ValueError:
            continue
        if implementation.serves is not None and not implementation.serves(case):
            return "unsupported", "the function is not said to support it"
        counted = Tally(case.contract.name, implementation.name, law.name, "simulate")
        try:
            verdict = judge(law, implementation, case, engine_named("simulate"), counted, instead=0)
        except LawViolation as found:
            return "violated", found.finding
        except Exception as error:  # an oracle that has no answer there: a failure is reported all the same
            return "not run", first_line(error)
        return verdict.kind, verdict.reason
    return "", ""


def _on_more_data(case: Case) -> Case:
    """The case on more data than that on which it fails: a neighbour may fail on other data."""
    data = case.data[0]
    more = (Data(data.kind, data.seed + 1), Data("exact", data.seed), Data("real", data.seed))
    return dataclasses.replace(case, data=tuple(dict.fromkeys((data, *more))))


def _neighbours(case: Case) -> Iterator[Neighbour]:
    mesh = case.mesh
    for i, (name, size) in enumerate(mesh.shape.items()):
        for longer in sorted({1, 2, 3, size + 1, 2 * size} - {size}):
            sizes = (*mesh.sizes[:i], longer, *mesh.sizes[i + 1 :])
            resized = dataclasses.replace(case, mesh=resize_mesh(mesh, sizes))
            if resized.mesh.size <= MOST_DEVICES:
                yield "mesh size", f"{name}={size}", f"{name}={longer}", [*fitting_cases(case, resized)]
    if mesh.permuted:
        ordered = dataclasses.replace(case, mesh=resize_mesh(mesh, mesh.sizes))
        yield "devices", ",".join(map(str, mesh.devices)), "in order", [ordered]
    if "explicit" in mesh.axis_types:
        yield "axis types", "explicit", "auto", [dataclasses.replace(case, mesh=resize_mesh(mesh, mesh.sizes, ()))]
    every = (case.axis_name, *(axes for _, axes in case.roles))
    for axes in dict.fromkeys(axes for axes in every if isinstance(axes, tuple) and len(axes) > 1):
        for other in dict.fromkeys((mesh.in_mesh_order(axes), axes[::-1])):
            if other != axes:
                yield "axis order", str(axes), str(other), [_reorder(case, axes, other)]
    if mesh.axis_names[::-1] != mesh.axis_names:
        turned = MeshCase(mesh.axis_names[::-1], mesh.sizes[::-1], (), mesh.axis_types[::-1])
        yield "axis order", f"mesh {mesh}", f"mesh {turned}", [dataclasses.replace(case, mesh=turned)]
    if not case.roles:  # elsewhere the contract defines the layout
        for i, operand in enumerate(case.operands):
            rank, placed = len(operand.block), operand.placement
            for replicated in (Placement(((),) * rank), dataclasses.replace(placed, stacked=())):
                if replicated != placed:
                    now = dataclasses.replace(operand, placement=replicated)
                    yield "layout", str(operand), str(now), [_with_operand(case, i, now)]
    (first, *_) = case.operands
    for dtype in ("float32", "bfloat16", "float16") if is_float(first.numpy_dtype) else ():
        if dtype != first.dtype:
            same = (dataclasses.replace(o, dtype=dtype) if o.dtype == first.dtype else o for o in case.operands)
            yield "dtype", first.dtype, dtype, [dataclasses.replace(case, operands=tuple(same))]
    for i, link in enumerate(case.chain):
        shorter = fit_chain(dataclasses.replace(case, chain=case.chain[:i] + case.chain[i + 1 :]))
        yield "transformation", f"under {link}", "without", [dataclasses.replace(shorter, manual=())]
    (data, *_) = case.data
    for kind in ("exact", "distinct", "real", "zeros"):
        if kind != data.kind:
            sets = tuple(Data(kind, data.seed + i) for i in range(3))
            yield "data", data.kind, kind, [dataclasses.replace(case, data=sets)]


def resize_mesh(mesh: MeshCase, sizes: tuple[int, ...], types: tuple[str, ...] | None = None) -> MeshCase:
    """The mesh with other sizes, or types of its axes, and its devices in order."""
    return MeshCase(mesh.axis_names, sizes, (), mesh.axis_types if types is None else types)


def fitting_cases(case: Case, resized: Case) -> Iterator[Case]:
    """The case on another mesh, and with the sides of operands that may be as long as a whole array's."""
    yield resized
    factor = Fraction(resized.participants, case.participants)
    for some in itertools.product((False, True), repeat=len(case.operands) if factor != 1 else 0):
        if any(some) and len(some) <= MOST_OPERANDS:
            other = resized
            for i, operand in enumerate(case.operands):
                spec = zip(operand.block, operand.placement.spec, strict=True)
                block = tuple(n if set(entry) & set(case.axes) else int(n * factor) for n, entry in spec)
                other = _with_operand(other, i, dataclasses.replace(operand, block=block)) if some[i] else other
            yield other


def _with_operand(case: Case, index: int, operand: Any) -> Case:
    operands = (*case.operands[:index], operand, *case.operands[index + 1 :])
    return dataclasses.replace(case, operands=operands)


def _reorder(case: Case, axes: tuple[str, ...], other: tuple[str, ...]) -> Case:
    """The case with an axis tuple in another order, wherever it stands."""

    def turn(entry: Any) -> Any:
        return other if entry == axes else entry

    operands = tuple(
        dataclasses.replace(o, placement=dataclasses.replace(o.placement, spec=tuple(map(turn, o.placement.spec))))
        for o in case.operands
    )
    roles = tuple((role, turn(entry)) for role, entry in case.roles)
    return dataclasses.replace(case, axis_name=turn(case.axis_name), roles=roles, operands=operands)
