"""Ragged all-to-all: what no law draws of both implementations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from shardproof.impl.ragged import gathered_ragged_all_to_all, ragged_all_to_all
from shardproof.oracles.collectives import mesh_first
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.ragged import differentiable
from shardproof.properties.contracts.ragged import consistent
from shardproof.properties.engines.engine import abstract_mesh, device_mesh
from shardproof.properties.engines.simulate import RaggedMetadata, simulate
from shardproof.properties.meta import REVERSED
from shardproof.properties.meta.blockwise import simulated

FORMS = (ragged_all_to_all, gathered_ragged_all_to_all)
Arrays = list[np.ndarray]


def exchange_of(mesh: MeshCase, axes: tuple[str, ...]) -> Arrays:
    """Operand, output and lists that agree, of all devices of a mesh."""
    p = mesh.axis_size(axes)
    operand = np.arange(1, 10 * p + 1).reshape(*mesh.sizes, 5, 2)
    output = -np.arange(1, 48 * p + 1).reshape(*mesh.sizes, 24, 2)
    lists = consistent(np.random.default_rng(5), p, 1, rows_in=5, rows_out=24)
    return [operand, output, *(mesh_first(one[:, None], mesh, axes) for one in lists)]


def test_slices_that_are_not_disjoint_are_refused_backward() -> None:
    """Overlapping slices are differentiated, and refused if `disjoint` is claimed."""
    mesh = MeshCase(("x",), (2,))
    lists = [np.array(one, np.int32).reshape(2, 2) for one in ([0, 0] * 2, [1] * 4, [0, 0, 1, 1], [1] * 4)]

    def gradient(disjoint: bool, operand: Any, output: Any, *lists: Any) -> Any:
        send = functools.partial(ragged_all_to_all, axis_name="x", disjoint=disjoint)
        return jax.grad(lambda x: jnp.sum(send(x, output, *lists)))(operand)

    arguments = [np.ones((2, 2, 1), np.float32), np.zeros((2, 2, 1), np.float32), *lists]
    found = simulated(functools.partial(gradient, False), mesh, *arguments)
    assert found.ravel().tolist() == [2, 0, 2, 0]
    with pytest.raises(RaggedMetadata, match="both write row 0"):
        simulated(functools.partial(gradient, True), mesh, *arguments)


def test_lists_of_several_dtypes() -> None:
    """XLA makes no program of them, and says that they differ in shape; the interpreter says what they are."""
    mesh, axes = REVERSED
    operand, output, begin, *lists = exchange_of(mesh, axes)

    def local(operand: Any, output: Any, begin: Any, *lists: Any) -> Any:
        return jax.lax.ragged_all_to_all(operand, output, begin.astype(jnp.int16), *lists, axis_name=axes)

    with pytest.raises(RaggedMetadata, match="are int16 and int32: expected one dtype"):
        simulated(local, mesh, operand, output, begin, *(one.astype(np.int32) for one in lists))


def test_a_derivative_under_vmap() -> None:
    """The gathered form has a derivative under vmap, and the native form refuses one."""
    mesh, axes = REVERSED
    arguments = [x.astype(np.float32) if i < 2 else x for i, x in enumerate(exchange_of(mesh, axes))]

    def local(form: Any, operand: Any, output: Any, *lists: Any) -> Any:
        send = functools.partial(form, axis_name=axes)
        return jax.grad(lambda x: jnp.sum(jax.vmap(lambda x: send(x, output, *lists))(x)))(operand[None])[0]

    ones = np.ones(arguments[1].shape)
    expected = differentiable.pullback(arguments, [ones], mesh, axes)[0]
    found = simulated(functools.partial(local, gathered_ragged_all_to_all), mesh, *arguments)
    np.testing.assert_array_equal(found, np.asarray(expected))
    with pytest.raises(NotImplementedError, match=r"ragged_all_to_all: .*: expected a derivative outside of jax.vmap"):
        simulated(functools.partial(local, ragged_all_to_all), mesh, *arguments)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_the_native_form_is_the_collective(platform: str) -> None:
    """Value and gradient of the native form are one ragged all-to-all each for TPU and CUDA."""
    mesh, axes = REVERSED
    spec = PartitionSpec(axes)
    local = functools.partial(ragged_all_to_all, axis_name=axes)
    function = jax.shard_map(local, mesh=device_mesh(mesh), in_specs=spec, out_specs=spec)
    rows, lists = [jnp.zeros((12, 4)), jnp.zeros((24, 4))], [jnp.zeros(36, jnp.int32)] * 4

    def gradient(rows: Any, cotangent: Any) -> Any:
        return jax.vjp(lambda *rows: function(*rows, *lists), *rows)[1](cotangent)

    for program, arguments in ((function, (*rows, *lists)), (gradient, (rows, rows[1]))):
        text = jax.jit(program).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
        [call] = [line for line in text.splitlines() if "@ragged_all_to_all(" in line and "custom_call" in line]
        assert "replica_groups = dense<[[0, 3, 1, 4, 2, 5]]>" in call


def test_an_interpreted_program_takes_globals() -> None:
    """The example of JAX's documentation has the documented result."""
    mesh = abstract_mesh(MeshCase(("x",), (2,)))
    spec = PartitionSpec("x")
    arguments = [[1, 2, 2, 3, 4, 0], [0] * 8, [0, 1, 0, 1], [1, 2, 1, 1], [0, 0, 1, 2], [1, 1, 2, 1]]
    for form in FORMS:
        program = jax.shard_map(functools.partial(form, axis_name="x"), mesh=mesh, in_specs=spec, out_specs=spec)
        assert simulate(program, *(np.array(one) for one in arguments)).tolist() == [1, 3, 0, 0, 2, 2, 4, 0]
