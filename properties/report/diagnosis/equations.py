"""What contributes to a result, as the unknowns of linear equations: one equation for every element of every scene."""

from collections.abc import Callable, Sequence

import numpy as np

from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import logical_index
from shardproof.properties.report.diagnosis.scene import Scene

MOST_TIMES = 16
"""How often a term is in a sum, at most."""

MOST_NUMBERS = 2**20
"""How many numbers may be computed for one system of equations: of large blocks they are too many to wait for."""

MOST_OWNERS = 3
"""Of how many devices it is said that their terms are in the wrong sum, at most."""

MOST_BLOCKS = 5
"""How many devices are named, at most."""


def is_finite(scene: Scene, device: int) -> bool:
    """Whether all numbers about are finite."""
    held = np.isfinite(scene.held(device).astype(wide(scene.actual.dtype))).all()
    return bool(held and all(np.isfinite(x.astype(wide(x.dtype))).all() for x in scene.inputs))


def _solvable(array: np.ndarray) -> np.ndarray:
    """The array in a dtype that linear algebra takes, which are none longer than double precision."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def solution(
    columns: Sequence[np.ndarray], chosen: Sequence[int], sums: Sequence[np.ndarray], slack: float = 0.0
) -> np.ndarray | None:
    """The whole numbers (or minus one, …) by which columns add up to the sums, if only one choice does and not zero."""
    a = _solvable(np.concatenate([c[chosen].reshape(len(chosen), -1).T for c in columns]))
    b = _solvable(np.concatenate([s.ravel() for s in sums]))
    if len(b) <= len(chosen):  # any sum could be made of so many columns
        return None
    rows = np.random.default_rng(0).permutation(len(b))[: 4 * len(chosen)]  # enough to solve; all are checked
    x, _, rank, _ = np.linalg.lstsq(a[rows], b[rows], rcond=None)
    whole = np.round(x.real)
    if (
        rank < len(chosen)
        or not whole.any()
        or np.abs(x - whole).max() > (0.05 if slack else 1e-6)
        or np.abs(whole).max() > MOST_TIMES
    ):
        return None
    return whole if (np.abs(a @ whole - b) <= slack).all() else None


def enough(scenes: Sequence[Scene], rest: Sequence[np.ndarray], rows: int) -> list[tuple[Scene, np.ndarray]]:
    """The scene that failed and those with most elements, until there are so many rows."""
    first, *others = zip(scenes, rest, strict=True)
    chosen = [first]
    for pair in sorted(others, key=lambda pair: -pair[1].size):
        if sum(r.size for _, r in chosen) < rows or len(chosen) < 2:
            chosen.append(pair)
    return chosen


def remembered(scene: Scene, key: str, make: Callable[[Scene], np.ndarray]) -> np.ndarray:
    """What was computed of a scene for all devices at once, whichever part of them is looked at."""
    if key not in scene.memory:
        scene.memory[key] = make(scene)
    return scene.memory[key]


def participants_of(scene: Scene, device: int) -> list[int]:
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


def moving(scene: Scene) -> int:
    """The operand whose blocks are exchanged: with one device's alone, a result is what that device contributes."""
    return {"all_gather_matmul_rhs": 1, "transformer_block": 2}.get(scene.case.contract, 0) % len(scene.inputs)


def result_of(scene: Scene, changed: dict[int, np.ndarray]) -> np.ndarray:
    """The right result with other blocks of some operands, in a wide dtype: `[devices, *block]`."""
    others = [np.zeros_like(x) if scene.additive else x for x in scene.inputs]
    blocks = scene.oracle(scene.case, [changed.get(i, x) for i, x in enumerate(others)])
    flat = blocks.reshape(-1, *blocks.shape[len(scene.case.mesh.sizes) :])
    return flat.astype(wide(flat.dtype))


def blocks_of(scene: Scene, devices: Sequence[int]) -> str:
    """Devices by the blocks that they put in."""
    return f"{scene.went_in}{'' if len(devices) == 1 else 's'} of {names_of(scene, devices)}"


def names_of(scene: Scene, devices: Sequence[int]) -> str:
    """The first of these devices by name, and how many more there are."""
    names = [scene.name(d) for d in devices[:MOST_BLOCKS]]
    if len(devices) > MOST_BLOCKS:
        return f"{', '.join(names)} and {len(devices) - MOST_BLOCKS} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
