"""Which part of a block is wrong, as a slice of it."""

from collections.abc import Sequence

import numpy as np

from shardproof.properties.report.diagnosis.scene import Scene

Box = tuple[np.ndarray, ...]


def boxes(scenes: Sequence[Scene], devices: Sequence[int]) -> dict[int, Box]:
    """For each device whose block is wrong in a part, in all scenes of this shape, the indices of that part."""
    found = {}
    shape = scenes[0].actual.shape
    alike = [s for s in scenes if s.actual.shape == shape]
    for device in devices:
        wrong = np.logical_or.reduce([s.wrong[device] for s in alike])
        box = tuple(
            np.flatnonzero(wrong.any(axis=tuple(j for j in range(wrong.ndim) if j != i))) for i in range(wrong.ndim)
        )
        if box and np.prod([len(side) for side in box]) < wrong.size:
            found[device] = box
    return found


def words(box: Box, shape: Sequence[int]) -> str:
    """A part of a block as it is written in Python: `[2, :]`."""
    return f"[{', '.join(_side(side, size) for side, size in zip(box, shape, strict=True))}]"


def _side(indices: np.ndarray, size: int) -> str:
    first, last, count = int(indices[0]), int(indices[-1]), len(indices)
    if count == size:
        return ":"
    if count == 1:
        return str(first)
    steps = set(np.diff(indices).tolist())
    if len(steps) == 1:
        step = steps.pop()
        start = str(first) if first else ""
        stop = str(last + 1) if last + step < size else ""
        return f"{start}:{stop}" + (f":{step}" if step > 1 else "")
    shown = ", ".join(map(str, indices[:8].tolist()))
    return f"({shown}{', …' if count > 8 else ''})"
