"""What the axes of the mesh are to a chain: manual, all of them, some, or divided; what a batch or a branch is over."""

import dataclasses
import math
from collections.abc import Collection

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import BATCH, NESTED, OUTSIDE, SPREAD


def manual_axes(case: Case) -> tuple[str, ...]:
    """The axes that `shard_map` makes manual, in mesh order."""
    return case.mesh.in_mesh_order(case.manual) if case.manual else case.mesh.axis_names


def laid_out(case: Case, index: int) -> Entries:
    """The layout of the global array of operand `index`.

    It is sharded as it enters `shard_map`, and, where that leaves axes to the compiler, over these as well: each along
    the first dimension that it divides.
    """
    entries, shape = [*case.partition(index)], case.global_shape(index)
    manual, kinds = manual_axes(case), case.mesh.types
    for name in case.mesh.axis_names:
        if name in manual or kinds[name] != "auto":
            continue
        for at, size in enumerate(shape):
            parts = math.prod(case.mesh.shape[axis] for axis in (*entries[at], name))
            if size and size % parts == 0:
                entries[at] = (*entries[at], name)
                break
    return tuple(entries)


def outer_axes(case: Case) -> tuple[str, ...]:
    """The axis that the outer of two makes manual, the inner one the others; none if they cannot be divided.

    Where a dimension is sharded over several axes, the outer one divides it first, so its axis is the first there. One
    of `axis_name` is preferred: then a collective connects devices of both.
    """
    manual = manual_axes(case)
    behind = {name for operand in case.operands for entry in operand.placement.spec for name in entry[1:]}
    first = [name for name in (*case.axes, *manual) if name in manual and name not in behind]
    return tuple(first[:1]) if len(manual) > 1 else ()


def levels(case: Case) -> tuple[tuple[str, ...], ...]:
    """What each `shard_map` around the call names as its manual axes, the outer one first; nothing where it is all."""
    if NESTED not in case.chain:
        return (case.manual,)
    outer = outer_axes(case)
    return outer, tuple(name for name in manual_axes(case) if name not in outer)


def free_axis(case: Case) -> str:
    """The axis over which a batch can be spread: the longest that divides it and is not in `axis_name`; else none.

    Not an explicit one: of that the arrays would have to say that their batch is sharded.
    """
    manual, kinds = manual_axes(case), case.mesh.types
    free = [name for name in manual if name not in case.axes and kinds[name] == "auto"]
    fit = [name for name in free if case.mesh.shape[name] > 1 and BATCH % case.mesh.shape[name] == 0]
    return max(fit, key=lambda name: case.mesh.shape[name], default="")


def spread_axis(case: Case) -> str:
    """The axis over which the batch is spread; none where it is not."""
    return free_axis(case) if SPREAD in case.chain else ""


def dividing_axis(case: Case) -> str:
    """The axis whose devices may take different branches: the longest that is not in `axis_name`; else none."""
    free = [name for name in manual_axes(case) if name not in case.axes and case.mesh.shape[name] > 1]
    return max(free, key=lambda name: case.mesh.shape[name], default="")


def stacked_axes(case: Case) -> tuple[str, ...]:
    """The axes along which every device's result is told apart, in mesh order."""
    return tuple(name for name in manual_axes(case) if name != spread_axis(case))


def outside(case: Case) -> bool:
    """Whether a `vmap` is around the whole `shard_map`."""
    return OUTSIDE in case.chain or SPREAD in case.chain


def without_outside(case: Case) -> Case:
    """The case as it is inside of that."""
    return dataclasses.replace(case, chain=tuple(name for name in case.chain if name not in (OUTSIDE, SPREAD)))


def along(entries: Entries, axes: Collection[str]) -> Entries:
    """What a layout says of some axes: `((dp, tp), ())` along `tp` is `((tp,), ())`."""
    return tuple(tuple(name for name in entry if name in axes) for entry in entries)
