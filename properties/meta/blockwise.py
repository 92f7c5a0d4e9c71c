"""A device-local function as a map between the blocks of all devices.

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
from shardproof.properties.engines.engine import abstract_mesh, device_mesh
from shardproof.properties.engines.simulate import simulate

Local = Callable[..., Any]
Arrays = Sequence[np.ndarray]


def on_blocks(local: Local, mesh: Any, *, checked: bool = True) -> Local:
    """The device-local function, as one of the blocks of all devices of a JAX mesh."""
    names = tuple(mesh.axis_names)
    spec = PartitionSpec(*names)

    def body(*blocks: Any) -> Any:
        result = local(*(block.reshape(block.shape[len(names) :]) for block in blocks))
        return cast_varying(result.reshape((1,) * len(names) + result.shape), names if checked else ())

    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=checked)


def simulated(local: Local, mesh: MeshCase, *blocks: np.ndarray) -> np.ndarray:
    """The same, interpreted."""
    return np.asarray(simulate(on_blocks(local, abstract_mesh(mesh)), *blocks))


def derivatives(
    local: Local, mesh: MeshCase, blocks: Arrays, tangents: Arrays, cotangent: np.ndarray, others: Arrays = (),
    *, checked: bool = True, interpreted: bool = False,
) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
    """The tangent of all blocks, and the cotangents of the blocks that have one; `others` have none."""
    shape = abstract_mesh(mesh) if interpreted else device_mesh(mesh)

    def both(blocks: Any, tangents: Any, cotangent: Any, others: Any) -> Any:
        function = functools.partial(_last_fixed, on_blocks(local, shape, checked=checked), others)
        return jax.jvp(function, tuple(blocks), tuple(tangents))[1], jax.vjp(function, *blocks)[1](cotangent)

    run = functools.partial(simulate, both) if interpreted else jax.jit(both)
    pushed, pulled = run(tuple(blocks), tuple(tangents), cotangent, tuple(others))
    return np.asarray(pushed), [np.asarray(one) for one in pulled]


def _last_fixed(function: Local, others: Any, *blocks: Any) -> Any:
    return function(*blocks, *others)


def participants(mesh: MeshCase, axes: Sequence[str], device: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The devices that a collective connects with `device`, itself among them, in logical order."""
    places = []
    for along in itertools.product(*(range(mesh.shape[name]) for name in axes)):
        at = dict(zip(mesh.axis_names, device, strict=True)) | dict(zip(axes, along, strict=True))
        places.append(tuple(at[name] for name in mesh.axis_names))
    return places
