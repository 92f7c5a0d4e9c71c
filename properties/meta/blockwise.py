"""A device-local function as a map between the blocks of all devices, and what every oracle of one must satisfy.

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

MESHES = (MeshCase(("dp",), (1,)), MeshCase(("dp", "tp"), (2, 3)), MeshCase(("tp", "ep", "dp"), (2, 2, 2)))


def axis_orders(mesh: MeshCase) -> list[tuple[str, ...]]:
    """Every tuple of the mesh's axes, in every order."""
    names = mesh.axis_names
    return [axes for count in range(1, len(names) + 1) for axes in itertools.permutations(names, count)]


PLACES = [(mesh, axes) for mesh in MESHES for axes in axis_orders(mesh)]
"""Every axis tuple of three meshes, in every order."""


def on_blocks(local: Local, mesh: Any, *, checked: bool = True) -> Local:
    """The device-local function, as one of the blocks of all devices of a JAX mesh."""
    names = tuple(mesh.axis_names)
    spec = PartitionSpec(*names)

    def body(*blocks: Any) -> Any:
        result = local(*(block.reshape(block.shape[len(names) :]) for block in blocks))
        return cast_varying(result.reshape((1,) * len(names) + result.shape), names if checked else ())

    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=checked)


def on_devices(local: Local, mesh: MeshCase, *blocks: np.ndarray, checked: bool = True) -> np.ndarray:
    """What all devices hold after the function has run on their blocks."""
    return np.asarray(jax.jit(on_blocks(local, device_mesh(mesh), checked=checked))(*blocks))


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


def floats(mesh: MeshCase, *shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    """Blocks of normal numbers."""
    return np.random.default_rng(seed).normal(size=(*mesh.sizes, *shape)).astype(dtype)


def central_difference(function: Local, blocks: Arrays, tangents: Arrays, step: float = 1e-6) -> np.ndarray:
    """The derivative of a function of blocks along tangents, from its values alone."""
    above, below = (
        function(*(block + sign * step * tangent for block, tangent in zip(blocks, tangents, strict=True)))
        for sign in (1, -1)
    )
    return np.asarray((above - below) / (2 * step))


def inner(left: Arrays, right: Arrays) -> float:
    """The inner product of all blocks."""
    return float(sum(np.vdot(a, b) for a, b in zip(left, right, strict=True)))


def check_oracle(
    oracle: Any, definition: Local, mesh: MeshCase, axes: Sequence[str], operands: Arrays, tangents: Arrays,
    cotangent: np.ndarray, others: Arrays = (), *, rtol: float = 1e-5, **options: Any,
) -> None:  # fmt: skip
    """An oracle's value is the definition's, its JVP the central difference, and its VJP the adjoint of its JVP.

    Arguments:
        oracle: of blocks of all devices.
        definition: of operands to the result, by brute force.
        mesh: the mesh.
        axes: the axis tuple.
        operands: those that have a derivative.
        tangents: one for each.
        cotangent: of the result.
        others: operands behind those, which have none.
        rtol: of the central difference.
        options: keyword arguments of the oracle.
    """
    everything = [*operands, *others]
    (value,) = oracle.value(everything, mesh, axes, **options)
    np.testing.assert_allclose(value, definition(*operands), rtol=1e-10, atol=1e-12)
    pushed = oracle.pushforward(everything, [*tangents, *[None] * len(others)], mesh, axes, **options)
    np.testing.assert_allclose(pushed[0], central_difference(definition, operands, tangents), rtol=rtol, atol=1e-6)
    pulled = oracle.pullback(everything, [cotangent], mesh, axes, **options)
    assert all(one is None for one in pulled[len(operands) :])
    of_operands = [np.asarray(one) for one in pulled[: len(operands)]]
    assert [one.shape for one in of_operands] == [one.shape for one in operands]
    np.testing.assert_allclose(inner(pushed, [cotangent]), inner(tangents, of_operands), rtol=1e-9, atol=1e-9)


def participants(mesh: MeshCase, axes: Sequence[str], device: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The devices that a collective connects with `device`, itself among them, in logical order."""
    places = []
    for along in itertools.product(*(range(mesh.shape[name]) for name in axes)):
        at = dict(zip(mesh.axis_names, device, strict=True)) | dict(zip(axes, along, strict=True))
        places.append(tuple(at[name] for name in mesh.axis_names))
    return places
