"""What the wrong result would be right for: another axis order, another offset, another dimension."""

import dataclasses
import itertools
from collections.abc import Iterator

from properties.cases import Case
from properties.failures.scene import Scene
from properties.laws.running import oracle_blocks

MOST = 64
"""The largest mesh on which other arguments are tried."""


def right_for(scene: Scene) -> list[str]:
    """One line that says which other arguments these would be the right blocks for, if there are such."""
    if not scene.inputs or scene.case.mesh.size > MOST or scene.actual[0].size == 0:
        return []
    for text, case in variants(scene.case):
        try:
            blocks = oracle_blocks(case, scene.inputs)[scene.leaf]
        except (ValueError, IndexError):  # these arguments do not fit these blocks
            continue
        blocks = blocks.reshape(-1, *blocks.shape[len(case.mesh.sizes) :])
        fits = blocks.shape == scene.actual.shape and blocks.dtype == scene.actual.dtype
        if fits and scene.same(blocks, scene.actual).all():
            return [f"the blocks are the right ones for {text}"]
    return []


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
