"""What is wrong with the blocks of an operation that is meant on whole arrays, said by the roles of its axes."""

import itertools
from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import as_axes
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.report.diagnosis.scene import Scene


def partial_results(scenes: Sequence[Scene]) -> str | None:
    """Says over which roles the blocks must be added up, or averaged, to be right, if they must."""
    first = scenes[0]
    case, contract = first.case, CONTRACTS[first.case.contract]
    if first.went_in == "cotangent" or contract.placed is None or first.expected.dtype.kind in "biu":
        return None
    sharded = contract.placed(case)[first.leaf].axes
    shared = [(role, as_axes(axes)) for role, axes in case.roles if not sharded & set(as_axes(axes))]
    shared = [(role, axes) for role, axes in shared if case.mesh.axis_size(axes) > 1]
    for count in range(1, len(shared) + 1):
        for chosen in itertools.combinations(shared, count):
            over = [axis for _, axes in chosen for axis in axes]
            if len(set(over)) < len(over):  # two arrays are laid out along the same axis
                continue
            roles = " and ".join(role for role, _ in chosen)
            if all(_together(scene, over, 1) for scene in scenes):
                return f"partial sums: added up over {roles} the blocks are right"
            if all(_together(scene, over, case.mesh.axis_size(over)) for scene in scenes):
                return f"partial means: averaged over {roles} the blocks are right"
    return None


def _together(scene: Scene, axes: Sequence[str], divided: int) -> bool:
    """Whether the sums of blocks along some axes, divided, are right."""
    mesh = scene.case.mesh
    at = tuple(mesh.axis_names.index(axis) for axis in axes)
    blocks = scene.actual.astype(wide(scene.actual.dtype)).reshape(*mesh.sizes, *scene.actual.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        total = blocks.sum(axis=at, keepdims=True) / divided
        total = np.broadcast_to(total, blocks.shape).reshape(scene.expected.shape)
        near = np.abs(total - scene.expected.astype(total.dtype)) <= scene.tolerance * (mesh.axis_size(axes) + 1)
    return bool(near.all())
