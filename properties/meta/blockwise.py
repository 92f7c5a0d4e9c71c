"""A device-local function as a map between the blocks of all devices.

Blocks are `[*mesh.sizes, *block]`, and every device's block is a value of its own: nothing is replicated here, so
that the transpose that JAX derives is the one over all blocks of all devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate import simulate

Local = Callable[..., Any]


def on_blocks(local: Local, mesh: Any) -> Local:
    """The device-local function, as one of the blocks of all devices of a JAX mesh."""
    names = tuple(mesh.axis_names)
    spec = PartitionSpec(*names)

    def body(*blocks: Any) -> Any:
        result = local(*(block.reshape(block.shape[len(names) :]) for block in blocks))
        return cast_varying(result.reshape((1,) * len(names) + result.shape), names)

    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)


def simulated(local: Local, mesh: MeshCase, *blocks: np.ndarray) -> np.ndarray:
    """The same, interpreted."""
    return np.asarray(simulate(on_blocks(local, abstract_mesh(mesh)), *blocks))
