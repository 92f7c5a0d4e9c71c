"""Products of gathered operands: which block met which part of the operand that stays, and which sides are added up."""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.collectives import axis_index
from shardproof.properties.report.diagnosis.equations import (
    MOST_NUMBERS,
    MOST_OWNERS,
    blocks_of,
    enough,
    moving,
    remembered,
    result_of,
    solution,
)
from shardproof.properties.report.diagnosis.scene import Scene

PARTS = {
    "all_gather_matmul_lhs_contracting": ("lhs", 1, "rows", "rhs", -2),
    "all_gather_matmul_rhs": ("rhs", 0, "columns", "lhs", -1),
}
"""Products in which blocks of one operand meet parts of the other: which, its position, and where it has the parts."""


MOST_SIDES = 256
"""Of how many rows or columns it is looked for how often each is added up: a system of so many unknowns is solved."""


def met(scenes: Sequence[Scene], device: int, participants: Sequence[int], rest: Sequence[np.ndarray]) -> str | None:
    """Says which block of a product met which part of the operand that stays, where that is not its own."""
    case, p = scenes[0].case, len(participants)
    if case.contract not in PARTS or scenes[0].went_in != "block" or p * p > sum(r.size for r in rest) or p < 2:
        return None
    if p * p * scenes[0].actual.size > MOST_NUMBERS:
        return None
    travels, _, _, stays, _ = PARTS[case.contract]
    chosen = enough(scenes, rest, 2 * p * p)
    columns = [s.part(device, remembered(s, "met", _all_met)[:, device]) for s, _ in chosen]
    rest = [r for _, r in chosen]
    solved = solution(columns, list(range(p * p)), rest)
    if solved is None:
        return None
    counts = solved.reshape(p, p) + np.eye(p)
    told = []
    for j in range(p):
        if not np.array_equal(counts[j], np.eye(p)[j]):
            parts_met = [k for k in range(p) for _ in range(int(counts[j][k]))] if (counts[j] >= 0).all() else None
            if parts_met is None:
                return None
            parts = f"part{'s' * (len(parts_met) > 1)} {' and '.join(map(str, parts_met))}" if parts_met else "nothing"
            told.append(f"block {j} of {travels} met {parts}")
    more = f" and {len(told) - MOST_OWNERS} more" if len(told) > MOST_OWNERS else ""
    return f"multiplies the wrong parts of {stays}: {', '.join(told[:MOST_OWNERS])}{more}"


def sides(scenes: Sequence[Scene], device: int, participants: Sequence[int], rest: Sequence[np.ndarray]) -> str | None:
    """Says which rows or columns of blocks that a product adds up are left out, or there too often."""
    shape, p = scenes[0].actual.shape, len(participants)
    alike = [(s, r) for s, r in zip(scenes, rest, strict=True) if s.actual.shape == shape]
    index = moving(scenes[0])
    kind = "column" if index == 0 else "row"
    size = scenes[0].inputs[index].shape[_side(index)]
    if scenes[0].went_in != "block" or size < 2 or p * size > sum(r.size for _, r in alike):
        return None
    if p * size > MOST_SIDES or p * size * scenes[0].actual.size > MOST_NUMBERS:
        return None
    alike = enough([s for s, _ in alike], [r for _, r in alike], 2 * p * size)
    columns = [s.part(device, remembered(s, "sides", _all_sides)[:, device]) for s, _ in alike]
    solved = solution(columns, list(range(p * size)), [r for _, r in alike])
    if solved is None:
        return None
    counts = solved.reshape(p, size).astype(int) + 1
    told = []
    for k, count in sorted({(int(k), int(counts[j, k])) for j, k in np.argwhere(counts != 1)}):
        words = {0: "lacks {}", 2: "has {} twice"}.get(count, f"has {{}} {count} times")
        whose = [participants[int(j)] for j in np.flatnonzero(counts[:, k] == count)]
        told.append(f"{words.format(f'{kind} {k}')} of the {blocks_of(scenes[0], whose)}")
    return ", ".join(told[:MOST_OWNERS])


def _all_met(scene: Scene) -> np.ndarray:
    """What block j alone gives if it meets part k of what stays: `[p * p, devices, *block]`."""
    case, p = scene.case, scene.case.participants
    _, position, _, _, dimension = PARTS[case.contract]
    index, found = moving(scene), []
    parts = np.split(scene.inputs[position], p, axis=dimension)
    for j, k in np.ndindex(p, p):
        taken = np.concatenate([parts[k] if i == j else part for i, part in enumerate(parts)], axis=dimension)
        found.append(result_of(scene, {index: _alone(scene, index, j), position: taken}))
    return np.stack(found)


def _all_sides(scene: Scene) -> np.ndarray:
    """What a row or column of block j gives alone: `[p * sides, devices, *block]`."""
    index, p = moving(scene), scene.case.participants
    found = []
    for j, k in np.ndindex(p, scene.inputs[index].shape[_side(index)]):
        alone = np.moveaxis(_alone(scene, index, j), _side(index), 0)
        kept = np.zeros_like(alone)
        kept[k] = alone[k]
        found.append(result_of(scene, {index: np.moveaxis(kept, 0, _side(index))}))
    return np.stack(found)


def _side(index: int) -> int:
    """The dimension of the operand that moves, lhs or rhs, that is added up."""
    return -1 if index == 0 else -2


def _alone(scene: Scene, index: int, j: int) -> np.ndarray:
    """The blocks of an operand, with zeros in place of all but those of participant j."""
    blocks = scene.inputs[index]
    participants = axis_index(scene.case.mesh, scene.case.axes)
    mask = (participants == j).reshape(*participants.shape, *[1] * (blocks.ndim - participants.ndim))
    return np.where(mask, blocks, np.zeros((), blocks.dtype))
