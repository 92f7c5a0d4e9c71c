"""What the wrong result would be right for: another axis order, offset or dimension, other parts that meet."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from oracles.collectives import axis_index
from properties.cases import Case
from properties.failures.scene import Scene
from properties.laws.running import oracle_blocks

MOST = 64
"""The largest mesh on which other arguments are tried."""


PARTS = {
    "all_gather_matmul_lhs_contracting": ("lhs", 1, "rows", "rhs", -2),
    "all_gather_matmul_rhs": ("rhs", 0, "columns", "lhs", -1),
}
"""Products in which blocks of one operand meet parts of the other: which, its position, and where it has the parts."""

MISTAKEN: dict[str, Callable[[int, int], int]] = {
    "i - j": lambda i, j: i - j,
    "j - i": lambda i, j: j - i,
    "2i - j": lambda i, j: 2 * i - j,
    "j + 1": lambda i, j: j + 1,
    "j - 1": lambda i, j: j - 1,
    "i": lambda i, j: i,
    "0": lambda i, j: 0,
}
"""Which part may have met block j on member i, instead of part j."""


def right_for(scene: Scene) -> list[str]:
    """One line that says for what else these would be the right blocks, if there is such a thing."""
    if not scene.inputs or scene.case.mesh.size > MOST or scene.actual[0].size == 0:
        return []
    for text, case in variants(scene.case):
        if _fits(scene, case, scene.inputs):
            return [f"the blocks are the right ones for {text}"]
    for text, inputs in meetings(scene):
        if _fits(scene, scene.case, inputs):
            return [f"the blocks are the right ones if {text}"]
    return []


def _fits(scene: Scene, case: Case, inputs: list[np.ndarray]) -> bool:
    try:
        blocks = oracle_blocks(case, inputs)[scene.leaf]
    except (ValueError, IndexError):  # these arguments do not fit these blocks
        return False
    blocks = blocks.reshape(-1, *blocks.shape[len(case.mesh.sizes) :])
    fits = blocks.shape == scene.actual.shape and blocks.dtype == scene.actual.dtype
    return fits and bool(scene.same(blocks, scene.actual).all())


def meetings(scene: Scene) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Operands of a product of which each device has the parts in the order in which a mistaken index takes them."""
    case = scene.case
    if case.contract not in PARTS:
        return
    moving, position, kind, stays, dimension = PARTS[case.contract]
    p, operand = case.members, scene.inputs[position]
    members = axis_index(case.mesh, case.axes)
    for text, part in MISTAKEN.items():
        taken = operand.copy()
        for device in np.ndindex(case.mesh.sizes):
            parts = np.split(operand[device], p, axis=dimension)
            order = [part(int(members[device]), j) % p for j in range(p)]
            taken[device] = np.concatenate([parts[j] for j in order], axis=dimension)
        inputs = [taken if i == position else x for i, x in enumerate(scene.inputs)]
        yield f"block j of {moving} met {kind} ({text}) mod {p} of {stays} on member i, instead of {kind} j", inputs


def variants(case: Case) -> Iterator[tuple[str, Case]]:
    """The same case with one argument changed the way it is mistaken, the likeliest first."""
    in_order = case.mesh.in_mesh_order(case.axes)
    for axes in itertools.permutations(case.axes):
        if axes != case.axes:
            order = " (the order of the mesh)" if axes == in_order else ""
            yield f"axis_name={axes}{order}", dataclasses.replace(case, axis_name=axes)
    for name, value in _other_values(case):
        params = {**case.keywords, name: value}
        yield f"{name}={value!r}", dataclasses.replace(case, params=tuple(params.items()))
    params = case.keywords
    if "split_axis" in params:
        swapped = {**params, "split_axis": params["concat_axis"], "concat_axis": params["split_axis"]}
        text = f"split_axis={swapped['split_axis']}, concat_axis={swapped['concat_axis']}"
        yield text, dataclasses.replace(case, params=tuple(swapped.items()))
    if "perm" in params:
        turned = tuple((to, source) for source, to in params["perm"])
        yield "perm with source and destination swapped", _with(case, perm=turned)
    if "axis_index_groups" in params:
        yield "no axis_index_groups", _with(case, axis_index_groups=None)
        return
    if "perm" in params or "root" in params:  # their numbers mean other devices over other axes
        return
    for axes in [*itertools.combinations(case.axes, len(case.axes) - 1), case.mesh.axis_names]:
        if axes and set(axes) != set(case.axes):
            yield f"axis_name={axes}", dataclasses.replace(case, axis_name=axes)


def _with(case: Case, **params: object) -> Case:
    return dataclasses.replace(case, params=tuple({**case.keywords, **params}.items()))


def _other_values(case: Case) -> Iterator[tuple[str, object]]:
    rank = len(case.operands[0].block)
    for name, value in case.params:
        if name == "offset":
            yield from ((name, other) for other in (-value, 0, value + 1, value - 1, 1))
        elif name in ("axis", "scatter_dimension", "split_axis", "concat_axis"):
            yield from ((name, other) for other in range(rank + 1) if other != value)
        elif name == "root":
            yield from ((name, other) for other in range(case.members) if other != value)
        elif name == "op":
            yield from ((name, other) for other in ("sum", "mean", "max", "min") if other != value)
        elif name == "tiled":
            yield name, not value
