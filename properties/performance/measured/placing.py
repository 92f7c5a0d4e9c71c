"""Which real device goes where in a mesh, and which published chip it is."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.chips import CHIPS, Chip
from shardproof.properties.performance.tpu_compiler.topology import FLAT, Topology, in_rings

KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}
"""The chips of `CHIPS` by what JAX calls their kind; as libtpu 0.0.42 has it, and for v5p as it is on machines too."""

DATA, MODEL = "data", "model"
PARTICIPANTS = 4
"""The size of the model axis, where there are as many devices: most machines have a ring of four chips."""


def chip_of(device: Any) -> Chip | None:
    """The published chip that a device is; None where it is none."""
    kind = str(device.device_kind)
    if kind.startswith("NVIDIA H100") and "PCIe" not in kind:
        return CHIPS["h100"]
    return CHIPS[KINDS[kind]] if kind in KINDS else None


def mesh_of(devices: int) -> MeshCase:
    """A mesh of so many devices: four, or fewer, along the model axis, and what is left along the data axis."""
    model = next(p for p in (PARTICIPANTS, 3, 2, 1) if devices % p == 0)
    model = devices if model < 3 and devices > 1 else model
    return MeshCase((DATA, MODEL), (devices // model, model))


def placed(mesh: MeshCase, devices: Sequence[Any]) -> Mesh:
    """The mesh over these devices, the last axis over rings of neighbours where they say which those are.

    Elsewhere they come in the order in which JAX would lay them out.
    """
    kinds = (AxisType.Auto,) * len(mesh.sizes)
    topology = topology_of(devices)
    if topology is not None:
        try:
            ordered = [device for device, _ in in_rings(devices, topology, mesh.sizes[-1])]
        except ValueError:  # no rings of so many chips are known in it
            topology = None
        else:
            return Mesh(np.array(ordered).reshape(mesh.sizes), mesh.axis_names, axis_types=kinds)
    return jax.make_mesh(mesh.sizes, mesh.axis_names, kinds, devices=devices)


def topology_of(devices: Sequence[Any]) -> Topology | None:
    """The grid of chips that TPU devices fill, from its first corner on; None if they are none, or fill none."""
    chip = chip_of(devices[0])
    if chip is None or not all(hasattr(device, "coords") for device in devices):
        return None
    dimensions = 2 if chip.name in FLAT else 3
    places = {tuple(device.coords[:dimensions]) for device in devices}
    sizes = tuple(1 + max(place[d] for place in places) for d in range(dimensions))
    topology = Topology(chip.name, sizes)
    return topology if len(places) == topology.chips else None
