"""A device-local function as a map between the blocks of all devices, and its derivatives.

Blocks are `[*mesh.sizes, *block]`, and every device's block is a value of its own: nothing is replicated here, so
that the transpose that JAX derives is the one over all blocks of all devices.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.engines.xla import abstract_mesh

Local = Callable[..., Any]
Arrays = Sequence[np.ndarray]


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


def derivatives(
    local: Local, mesh: MeshCase, blocks: Arrays, tangents: Arrays, cotangent: np.ndarray, others: Arrays
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The tangent of all blocks, interpreted, and the cotangents of the blocks that have one; `others` have none."""

    def both(blocks: Any, tangents: Any, cotangent: Any, others: Any) -> Any:
        function = functools.partial(_last_fixed, on_blocks(local, abstract_mesh(mesh)), others)
        return jax.jvp(function, tuple(blocks), tuple(tangents))[1], jax.vjp(function, *blocks)[1](cotangent)

    pushed, pulled = simulate(both, tuple(blocks), tuple(tangents), cotangent, tuple(others))
    return np.asarray(pushed), [np.asarray(one) for one in pulled]


def _last_fixed(function: Local, others: Any, *blocks: Any) -> Any:
    return function(*blocks, *others)


def floats(mesh: MeshCase, *shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    """Blocks of normal numbers."""
    return np.random.default_rng(seed).normal(size=(*mesh.sizes, *shape)).astype(dtype)


def participants(mesh: MeshCase, axes: Sequence[str], device: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The devices that a collective connects with `device`, itself among them, in logical order."""
    places = []
    for along in itertools.product(*(range(mesh.shape[name]) for name in axes)):
        at = dict(zip(mesh.axis_names, device, strict=True)) | dict(zip(axes, along, strict=True))
        places.append(tuple(at[name] for name in mesh.axis_names))
    return places
