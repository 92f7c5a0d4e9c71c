"""Sums, means, maxima and minima over the wrong members: which are missing, and which are there too often."""

import itertools

import numpy as np

from oracles.dtypes import wide
from oracles.layout import logical_index
from properties.contracts import CONTRACTS
from properties.failures.scene import Scene
from properties.laws.running import oracle_blocks

MOST = 16
"""The most devices among which the ones that are missing are looked for."""


def partial_sum(scene: Scene, device: int) -> str | None:
    """Names the members that a reduction lacks, or has twice, or should not have, on a device."""
    case = scene.case
    reduces = case.contract == "all_reduce" or CONTRACTS[case.contract].terms(case) > 1
    if not reduces or not scene.inputs or case.mesh.size > MOST or not scene.expected[device].size:
        return None
    members = _members(scene, device)
    op = str(case.keywords.get("op", "sum"))
    if op in ("max", "min"):
        return _partial_extreme(scene, device, members, op)
    parts = np.stack([_contribution(scene, device, other) for other in range(case.mesh.size)])
    strangers = [d for d in range(case.mesh.size) if d not in members]
    for count in range(1, min(4, len(members))):  # the fewest that explain it
        for chosen in itertools.combinations(members, count):
            if _is_sum(scene, device, parts, [d for d in members if d not in chosen]):
                return f"lacks the {_blocks(scene, chosen)}"
    for count in range(1, 4):
        for chosen in itertools.combinations(members, count):
            if _is_sum(scene, device, parts, [*members, *chosen]):
                return f"has the {_blocks(scene, chosen)} twice"
        for chosen in itertools.combinations(strangers, count):
            if _is_sum(scene, device, parts, [*members, *chosen]):
                return f"has the {_blocks(scene, chosen)} as well"
    for kept in members:
        if len(members) > 2 and _is_sum(scene, device, parts, [kept]):
            return f"has the {_blocks(scene, (kept,))} alone"
    return None


def _members(scene: Scene, device: int) -> list[int]:
    """The devices that exchange with this one, in logical order."""
    mesh, case = scene.case.mesh, scene.case
    fixed = [i for i, name in enumerate(mesh.axis_names) if name not in case.axes]
    mine = scene.coordinates(device)
    found = [d for d in range(mesh.size) if all(scene.coordinates(d)[i] == mine[i] for i in fixed)]
    ordered = sorted(found, key=lambda d: logical_index(mesh, scene.coordinates(d), case.axes))
    groups = case.keywords.get("axis_index_groups")
    if groups is None:
        return ordered
    group = next(g for g in groups if logical_index(mesh, mine, case.axes) in g)
    return [ordered[i] for i in group]


def _contribution(scene: Scene, device: int, other: int) -> np.ndarray:
    """What the block of `other` adds to the result on `device`, in a wide dtype: the oracle, with that block alone."""
    alone = []
    for blocks in scene.inputs:
        empty = np.zeros_like(blocks)
        empty[scene.coordinates(device)] = blocks[scene.coordinates(other)]
        alone.append(empty)
    part = oracle_blocks(scene.case, alone)[scene.leaf][scene.coordinates(device)]
    return np.asarray(part.astype(wide(part.dtype)))


def _is_sum(scene: Scene, device: int, parts: np.ndarray, chosen: list[int]) -> bool:
    with np.errstate(all="ignore"):
        return scene.holds(device, np.asarray(parts[chosen].sum(axis=0)).astype(scene.actual.dtype))


def _partial_extreme(scene: Scene, device: int, members: list[int], op: str) -> str | None:
    """The largest set of members whose extreme this is: all of those that do not exceed it."""
    own = scene.own
    if own is None or own.dtype != scene.actual.dtype or own.shape != scene.actual.shape:
        return None
    held = scene.actual[device].astype(wide(own.dtype))
    values = own.astype(wide(own.dtype))
    with np.errstate(invalid="ignore"):
        within = [d for d in members if ((values[d] <= held) if op == "max" else (values[d] >= held)).all()]
    reduce = np.max if op == "max" else np.min
    if not within or len(within) == len(members) or not np.array_equal(reduce(values[within], axis=0), held):
        return None
    return f"lacks the {_blocks(scene, tuple(d for d in members if d not in within))}"


def _blocks(scene: Scene, devices: tuple[int, ...]) -> str:
    names = [scene.name(d) for d in devices]
    return f"block of {names[0]}" if len(names) == 1 else f"blocks of {', '.join(names[:-1])} and {names[-1]}"
