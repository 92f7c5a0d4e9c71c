"""Layouts of several arrays at once, and changes of a layout."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl.modes import Layouts
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.modes import ModesCase
from shardproof.properties.cases.resharding import Resharding
from shardproof.properties.cases.strategies.meshes import meshes
from shardproof.properties.cases.strategies.specs import specs


@st.composite
def modes_cases(draw: Any, *, max_devices: int = 8, available: int = 8) -> ModesCase:
    """Layers. Shrinks to one device, to arrays that nothing shards, and to sides of one."""
    mesh = meshes.within(draw, max_devices=max_devices, available=available, explicit=False)
    ranks = {"x": 2, "w_in": 2, "b_in": 1, "w_out": 2, "b_out": 1, "hidden": 2, "result": 2}
    layouts = Layouts(**{name: draw(specs(mesh, rank), label=name) for name, rank in ranks.items()})
    at = {
        "b": (layouts.x[0], layouts.hidden[0], layouts.result[0]),
        "d": (layouts.x[1], layouts.w_in[0]),
        "f": (layouts.w_in[1], layouts.b_in[0], layouts.hidden[1], layouts.w_out[0]),
        "e": (layouts.w_out[1], layouts.b_out[0], layouts.result[1]),
    }
    parts = [np.lcm.reduce([mesh.axis_size(axes) for axes in entries]) for entries in at.values()]
    b, d, f, e = (int(part) * draw(st.integers(1, 2), label="factor") for part in parts)
    return ModesCase(mesh, (b, d, f, e), layouts, draw(st.integers(0, 2**16), label="seed"))


@st.composite
def reshardings(draw: Any, *, max_devices: int, available: int, explicit: bool) -> Resharding:
    """Changes of layout on axes that are all explicit, or all automatic. Shrinks to one device."""
    mesh = meshes.within(draw, max_devices=max_devices, available=available, explicit=False)
    mesh = MeshCase(mesh.axis_names, mesh.sizes, mesh.devices, ("explicit" if explicit else "auto",) * len(mesh.sizes))
    rank = draw(st.integers(1, 3), label="rank")
    held, wanted = draw(specs(mesh, rank), label="held"), draw(specs(mesh, rank), label="wanted")
    if draw(st.integers(0, 7), label="replicas") == 7:  # of which slices are enough
        held = tuple(axes[: len(axes) // 2] for axes in wanted)
    parts = [np.lcm(mesh.axis_size(a), mesh.axis_size(b)) for a, b in zip(held, wanted, strict=True)]
    shape = tuple(int(part) * draw(st.integers(1, 2), label="factor") for part in parts)
    return Resharding(mesh, shape, held, wanted)
