"""Which terms are in a result: of which devices, how often, and whether they are the right pieces of theirs.

A linear result is the sum of what each device contributes. How often each contribution is in it follows from
a system of linear equations, one for every element of every scene; nothing is said unless it has one solution.
"""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.report.diagnosis.equations import (
    MOST_NUMBERS,
    MOST_OWNERS,
    blocks_of,
    is_finite,
    moving,
    names_of,
    participants_of,
    remembered,
    result_of,
    solution,
)
from shardproof.properties.report.diagnosis.products import PARTS, met, sides
from shardproof.properties.report.diagnosis.scene import CLEAR, Scene

MOST = 32
"""The most devices whose contributions are looked for."""


def contributions(scenes: Sequence[Scene], device: int) -> str | None:
    """Names the devices whose terms a result lacks, has too often, or should not have, on a device."""
    first = scenes[0]
    case = first.case
    if not first.inputs or case.mesh.size > MOST or first.expected.dtype == bool or case.tree or case.roles:
        return None
    if case.keywords.get("op") in ("max", "min"):
        return _extreme(scenes, device, str(case.keywords["op"]))
    if case.mesh.size < 2 or not first.held(device).size or case.mesh.size * first.actual.size > MOST_NUMBERS:
        return None
    participants = participants_of(first, device)
    strangers = [d for d in range(case.mesh.size) if d not in participants]
    finite = [s for s in scenes if is_finite(s, device)]
    exact = [s for s in finite if not s.tolerance] or finite
    if not exact:
        return None
    slack = CLEAR * max(s.tolerance for s in exact)
    parts = [_parts(scene, device) for scene in exact]
    own = [p[:, device] for p in parts]
    held = [s.held(device).astype(wide(s.actual.dtype)) for s in exact]
    rest = [h - s.right(device).astype(h.dtype) for h, s in zip(held, exact, strict=True)]
    lacks = solution(own, participants, rest, slack)
    if lacks is not None:
        return _counted(first, participants, lacks + 1)
    if strangers:
        placed = [_placed(scene, device) for scene in exact]
        found = solution([np.concatenate(pair) for pair in zip(own, placed, strict=True)],
                          [*participants, *(len(p) + d for p in parts[:1] for d in strangers)], rest)  # fmt: skip
        if found is not None:
            counted = _counted(first, participants, found[: len(participants)] + 1)
            words = [counted] if counted and found[: len(participants)].any() else []
            extra = [d for d, c in zip(strangers, found[len(participants) :], strict=True) if c == 1]
            if len(extra) == np.count_nonzero(found[len(participants) :]):
                return " and ".join([*words, f"has the {blocks_of(first, extra)} as well, which takes no part"])
    if case.contract in PARTS:
        return met(exact, device, participants, rest) or sides(exact, device, participants, rest)
    moved = first.went_in == "block" and CONTRACTS[case.contract].terms(case) == 1
    return _added(exact, device, held) if moved else _misplaced(exact, device, participants, parts, held)


def _counted(scene: Scene, participants: Sequence[int], counts: np.ndarray) -> str | None:
    """How often each block is in the sum, where that is not once."""
    groups: dict[int, list[int]] = {}
    for d, c in zip(participants, counts, strict=True):
        groups.setdefault(int(c), []).append(d)
    right = groups.pop(1, [])
    if set(groups) == {0}:
        if len(right) <= 1 < len(groups[0]):
            return f"has the {blocks_of(scene, right)} alone" if right else None
        return f"lacks the {blocks_of(scene, groups[0])}"
    words = {0: "lacks the {}", 2: "has the {} twice", -1: "has the {} with the wrong sign"}
    return ", ".join(
        words.get(c, f"has the {{}} {c} times").format(blocks_of(scene, ds)) for c, ds in sorted(groups.items())
    )


def _added(scenes: Sequence[Scene], device: int, held: Sequence[np.ndarray]) -> str | None:
    """Says which inputs are added up where a single one is to be moved."""
    columns = []
    for scene in scenes:
        if scene.own is None or scene.own.shape != scene.actual.shape:
            return None
        columns.append(scene.part(device, scene.own).astype(wide(scene.own.dtype)))
    found = solution(columns, list(range(scenes[0].case.mesh.size)), held)
    if found is None or np.count_nonzero(found) < 2 or (found < 0).any() or found.max() > 1:
        return None
    return f"holds the sum of the {blocks_of(scenes[0], [int(d) for d in np.flatnonzero(found)])}"


def _misplaced(
    scenes: Sequence[Scene],
    device: int,
    participants: Sequence[int],
    parts: Sequence[np.ndarray],
    held: Sequence[np.ndarray],
) -> str | None:
    """Terms of the right devices that belong into the results of others: a wrong piece of a block."""
    p = len(participants)
    sizes = sum(h.size for h in held)
    if sizes < p * p or p < 2:
        return None
    columns = [x[np.ix_(participants, participants)].reshape(p * p, *x.shape[2:]) for x in parts]
    found = solution(columns, list(range(p * p)), held)
    if found is None:
        return None
    counts = found.reshape(p, p)
    at = participants.index(device)
    if np.count_nonzero(counts) > 2 * p:
        return None
    told = []
    scene = scenes[0]
    for owner in np.flatnonzero(counts.any(axis=0)):
        if owner != at:
            whose = [participants[int(i)] for i in np.flatnonzero(counts[:, owner])]
            told.append(f"of {names_of(scene, whose)} those that belong to {scene.name(participants[int(owner)])}")
    more = f" and {len(told) - MOST_OWNERS} more" if len(told) > MOST_OWNERS else ""
    return f"adds up the wrong terms: {', '.join(told[:MOST_OWNERS])}{more}" if told else None


def _parts(scene: Scene, device: int) -> np.ndarray:
    """What each device contributes to the result of each device: `[from, to, *part]`, in a wide dtype."""
    return scene.part(device, remembered(scene, "parts", _all_parts))


def _all_parts(scene: Scene) -> np.ndarray:
    index, found = moving(scene), []
    for d in range(scene.case.mesh.size):
        alone = np.zeros_like(scene.inputs[index])
        alone[scene.coordinates(d)] = scene.inputs[index][scene.coordinates(d)]
        found.append(result_of(scene, {index: alone}))
    return np.stack(found)


def _placed(scene: Scene, device: int) -> np.ndarray:
    """What each device's block would contribute if it were that of `device`: `[from, *part]`."""
    index, found = moving(scene), []
    for d in range(scene.case.mesh.size):
        alone = np.zeros_like(scene.inputs[index])
        alone[scene.coordinates(device)] = scene.inputs[index][scene.coordinates(d)]
        found.append(scene.part(device, result_of(scene, {index: alone})[device]))
    return np.stack(found)


def _extreme(scenes: Sequence[Scene], device: int, op: str) -> str | None:
    """The largest set of participants whose extreme this is: all of those that do not exceed it anywhere."""
    participants = within = participants_of(scenes[0], device)
    reduce, exceeds = (np.max, np.greater) if op == "max" else (np.min, np.less)
    views = []
    for scene in scenes:
        if scene.own is None or scene.own.shape != scene.actual.shape or scene.own.dtype.kind == "c":
            return None
        values = scene.part(device, scene.own).astype(wide(scene.own.dtype))
        held = scene.held(device).astype(values.dtype)
        within = [d for d in within if not exceeds(values[d], held).any()]
        views.append((values, held))
    few = len(scenes) < 2 and views[0][1].size < 4
    if few or not within or len(within) == len(participants):
        return None
    if not all(np.array_equal(reduce(values[within], axis=0), held, equal_nan=True) for values, held in views):
        return None
    counts = np.array([float(d in within) for d in participants])
    return _counted(scenes[0], participants, counts)
