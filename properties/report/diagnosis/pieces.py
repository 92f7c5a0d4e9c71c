"""Blocks whose pieces are right ones in the wrong place: of a gather, an exchange, or halves of a block."""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.properties.report.diagnosis.scene import Scene

MOST = 4
"""How many pieces are named one by one."""

MOST_PIECES = 64
"""Into how many pieces a block is cut, at most."""

Source = tuple[str, int, int]
"""Where a piece may come from: of which blocks, of which device, and which piece of it."""


def pieces(scenes: Sequence[Scene], device: int) -> str | None:
    """Says where the pieces of a block come from, one or two for each device that takes part, or halves of it.

    Where a part of it is looked at, that may be all pieces but the device's own.
    """
    p = scenes[0].case.participants
    others = (p - 1,) if device in scenes[0].boxes else ()
    return _explained(scenes, device, lambda size: (p, 2, 2 * p, *others))


def elements(scenes: Sequence[Scene], device: int) -> str | None:
    """Says where the single elements along a dimension come from; of larger blocks they would be others."""
    shape = scenes[0].actual.shape
    return _explained([s for s in scenes if s.actual.shape == shape], device, lambda size: (size,))


def _explained(scenes: Sequence[Scene], device: int, counts: Callable[[int], Sequence[int]]) -> str | None:
    shape = scenes[0].held(device).shape
    for dimension, size in enumerate(shape):
        for count in dict.fromkeys(c for c in counts(size) if 1 < c <= min(size, MOST_PIECES)):
            if any(scene.held(device).shape[dimension] % count for scene in scenes):
                continue
            found = _sources(scenes, device, dimension, count)
            if found is not None:
                return _told(scenes[0], device, dimension, found)
    return None


def _cut(block: np.ndarray, dimension: int, count: int) -> np.ndarray:
    """A block (or blocks `[n, *block]`, counted from the end) as pieces `[…, count, *piece]`."""
    return np.stack(np.split(block, count, axis=dimension), axis=0)


def _sources(scenes: Sequence[Scene], device: int, dimension: int, count: int) -> list[Source] | None:
    """For every piece that the device holds, the only place that it can come from; None if there is none."""
    left: list[list[Source]] | None = None
    for scene in scenes:
        held = _cut(scene.held(device), dimension, count)
        fits: list[set[Source]] = [set() for _ in range(count)]
        for kind, blocks in (("right", scene.expected), ("input", scene.own)):
            if blocks is None or blocks.shape[1:] != scene.actual.shape[1:]:
                continue
            there = _cut(scene.part(device, blocks), dimension + 1, count).astype(held.dtype)
            for j, piece in enumerate(held):
                same = scene.same(np.broadcast_to(piece, there.shape), there)
                for k, d in np.argwhere(same.reshape(*there.shape[:2], -1).all(axis=2)):
                    fits[j].add((kind, int(d), int(k)))
        for j, piece in enumerate(held):
            if not piece.any():
                fits[j].add(("zeros", device, j))
        if left is None:
            left = [sorted(f, key=lambda s, j=j: _likeliness(scene, device, j, s)) for j, f in enumerate(fits)]  # type: ignore[misc]
        else:
            left = [[s for s in old if s in new] for old, new in zip(left, fits, strict=True)]
        if not all(left):
            return None
    assert left is not None
    if len(scenes) == 1 and any(len({s[2] for s in f if s[0] == "right" and s[1] == device}) > 1 for f in left):
        return None  # equal pieces cannot be told apart
    found = [f[0] for f in left]
    in_place = [("right", device, j) for j in range(count)]
    moved = [s for s, p in zip(found, in_place, strict=True) if s != p]
    whole = len({s[:2] for s in found}) == 1 and all(k == j for j, (_, _, k) in enumerate(found))
    return found if moved and not whole else None


def _likeliness(scene: Scene, device: int, j: int, source: Source) -> tuple[int, int, int]:
    kind, d, k = source
    likely = [("right", device, j), ("zeros", device, j), ("input", device, j)]
    rank = likely.index(source) if source in likely else 3 if (kind, d) == ("right", device) else 4
    return rank, abs(d - device) + (kind == "input"), abs(k - j)


def _told(scene: Scene, device: int, dimension: int, found: list[Source]) -> str:
    order = [k for _, _, k in found]
    own = [s[0] == "right" and s[1] == device for s in found]
    if all(own) and sorted(order) == list(range(len(order))):
        return f"has the pieces along {scene.dimension(dimension)} in the order {_listed(order)}"
    went_in = "input" if scene.went_in == "block" else scene.went_in
    groups: dict[str, list[int]] = {}
    for j, (kind, d, k) in enumerate(found):
        if (kind, d, k) == ("right", device, j):
            continue
        place = "" if k == j else f" as piece {k}"
        whose = (
            "zeros" if kind == "zeros"
            else f"piece {k}" if own[j]
            else f"what belongs to {scene.name(d)}{place}" if kind == "right"
            else f"its own {went_in}{place}" if d == device
            else f"the {went_in} of {scene.name(d)}{place}"
        )  # fmt: skip
        groups.setdefault(whose, []).append(j)
    told = [
        f"{whose} in place of {'piece' if len(js) == 1 else 'pieces'} {_listed(js)}" for whose, js in groups.items()
    ]
    more = f" and {len(told) - MOST} more" if len(told) > MOST else ""
    return f"of {len(found)} pieces along {scene.dimension(dimension)} has {', '.join(told[:MOST])}{more}"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:16]))
    return shown if len(numbers) <= 16 else f"{shown}, …"
