"""Tests of the suite's own foundations: an oracle is checked before it checks anything.

The strategies here serve these tests only and are as plain as the things they test.
"""

import itertools
import math

from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase

AXIS_NAMES = ("dp", "tp", "ep", "pp")

REVERSED = (MeshCase(("dp", "tp"), (2, 3)), ("tp", "dp"))
"""A mesh, and all of its axes in the other order."""


def mesh_sizes(max_devices: int) -> list[tuple[int, ...]]:
    """All sizes of meshes of one to four axes over at most `max_devices`, the simplest first."""
    candidates = (sizes for axes in range(1, 5) for sizes in itertools.product(range(1, max_devices + 1), repeat=axes))
    return sorted((s for s in candidates if math.prod(s) <= max_devices), key=lambda s: (math.prod(s), len(s), s))


@st.composite
def small_meshes(draw: st.DrawFn, *, max_devices: int = 8, min_devices: int = 1) -> MeshCase:
    """Meshes of `min_devices` or more, with names in any order over any of `max_devices` devices in any order.

    Shrinks towards `(dp=1)`. Examples: `(dp=2)`, `(tp=2, dp=4)`, `(dp=1, ep=3) [devices 5,0,2]`.
    """
    sizes = draw(st.sampled_from([s for s in mesh_sizes(max_devices) if math.prod(s) >= min_devices]))
    names = draw(st.permutations(AXIS_NAMES))[: len(sizes)]
    devices = draw(st.permutations(range(max_devices)))[: math.prod(sizes)]
    return MeshCase(tuple(names), sizes, tuple(devices))
