"""Ragged all-to-all: what no law draws of both implementations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from shardproof.impl.ragged import gathered_ragged_all_to_all, ragged_all_to_all
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.ragged import differentiable
from shardproof.properties.engines.engine import abstract_mesh, device_mesh
from shardproof.properties.engines.simulate import RaggedMetadata, simulate
from shardproof.properties.meta import REVERSED, small_meshes
from shardproof.properties.meta.blockwise import (
    derivatives,
    participants,
    simulated,
)

FORMS = (ragged_all_to_all, gathered_ragged_all_to_all)
Arrays = list[np.ndarray]


def exchange_of(mesh: MeshCase, axes: tuple[str, ...], k: int, largest: int, seed: int) -> Arrays:
    """Operand, output and lists that agree: k slices from each to each, in any places, with gaps and empty slices.

    Slices of an operand overlap as they happen to; in an output they are put one behind the other, in any order,
    with gaps, and an empty one begins where another one does.
    """
    random = np.random.default_rng(seed)
    p, rows = mesh.axis_size(axes), 2 * largest + 1
    lists = {name: np.zeros((*mesh.sizes, p * k), np.int32) for name in ("begin", "sent", "target", "received")}
    most = 1
    for device in np.ndindex(*mesh.sizes):
        ring = participants(mesh, axes, device)
        me, at = ring.index(device), 0
        for place in random.permutation(p * k).tolist():  # the slices that come here: number j of sender i
            i, j = divmod(place, k)
            size = int(random.integers(0, largest + 1)) * int(random.integers(0, 2))
            lists["received"][(*device, place)] = size
            theirs = (*ring[i], me * k + j)
            lists["sent"][theirs], lists["target"][theirs] = size, at
            lists["begin"][theirs] = random.integers(0, rows - size + 1)
            at += size + (size and int(random.integers(0, 2)))
        most = max(most, at + 1)
    operand = np.arange(1, 2 * rows * mesh.size + 1).reshape(*mesh.sizes, rows, 2)
    output = -np.arange(1, 2 * most * mesh.size + 1).reshape(*mesh.sizes, most, 2)
    return [operand, output, *lists.values()]


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[MeshCase, tuple[str, ...], Arrays]:
    """A mesh, some of its axes in any order, and arguments that agree. Shrinks towards one device sending nothing."""
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    k, largest, seed = draw(st.integers(1, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2**16))
    return mesh, axes, exchange_of(mesh, axes, k, largest, seed)


def check_derivatives(form: Any, mesh: MeshCase, axes: tuple[str, ...], arguments: Arrays, **keywords: bool) -> None:
    """The tangent and both cotangents of a form are the oracle's."""
    rows, lists = [x.astype(np.float32) for x in arguments[:2]], arguments[2:]
    cotangent = np.arange(rows[1].size, dtype=np.float32).reshape(rows[1].shape) % 64
    local = functools.partial(form, axis_name=axes)
    pushed, pulled = derivatives(local, mesh, rows, [x + 1 for x in rows], cotangent, lists, **keywords)
    tangents = [*(x + 1 for x in rows), None, None, None, None]
    np.testing.assert_array_equal(pushed, differentiable.pushforward(arguments, tangents, mesh, axes)[0])
    expected = differentiable.pullback(arguments, [cotangent], mesh, axes)
    for found, wanted in zip(pulled, expected[:2], strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted))


def apart(arguments: Arrays) -> Arrays:
    """The same exchange of an operand whose slices do not overlap: one behind the other, the last of them first."""
    operand, output, _, sent, *others = arguments
    ends = np.cumsum(sent[..., ::-1] + 1, axis=-1)[..., ::-1]
    rows = int(ends.max()) + 1
    operand = np.arange(1, 2 * rows * operand[..., 0, 0].size + 1).reshape(*operand.shape[:-2], rows, 2)
    return [operand, output, (ends - sent).astype(sent.dtype), sent, *others]


@settings(max_examples=10)
@given(case=exchanges())
def test_the_derivatives_of_disjoint_slices(case: Any) -> None:
    """Where no slices of an operand overlap, they are those of any slices."""
    mesh, axes, arguments = case
    check_derivatives(
        functools.partial(ragged_all_to_all, disjoint=True), mesh, axes, apart(arguments), interpreted=True
    )


def test_slices_that_are_not_disjoint_are_refused_backward() -> None:
    """Overlapping slices are differentiated, and refused if `disjoint` is claimed."""
    mesh, axes = MeshCase(("x",), (2,)), ("x",)
    lists = [np.array(one, np.int32).reshape(2, 2) for one in ([0, 0] * 2, [1] * 4, [0, 0, 1, 1], [1] * 4)]
    arguments = [np.arange(4).reshape(2, 2, 1), np.zeros((2, 2, 1), int), *lists]
    check_derivatives(ragged_all_to_all, mesh, axes, arguments, interpreted=True)
    claimed = functools.partial(ragged_all_to_all, disjoint=True)
    with pytest.raises(RaggedMetadata, match="both write row 0"):
        check_derivatives(claimed, mesh, axes, arguments, interpreted=True)


def test_lists_of_several_dtypes() -> None:
    """XLA makes no program of them, and says that they differ in shape; the interpreter says what they are."""
    mesh, axes = REVERSED
    operand, output, begin, *lists = exchange_of(mesh, axes, 1, 2, 5)

    def local(operand: Any, output: Any, begin: Any, *lists: Any) -> Any:
        return jax.lax.ragged_all_to_all(operand, output, begin.astype(jnp.int16), *lists, axis_name=axes)

    with pytest.raises(RaggedMetadata, match="are int16 and int32: expected one dtype"):
        simulated(local, mesh, operand, output, begin, *(one.astype(np.int32) for one in lists))


def test_a_derivative_under_vmap() -> None:
    """The gathered form has a derivative under vmap, and the native form refuses one."""
    mesh, axes = REVERSED
    arguments = [x.astype(np.float32) if i < 2 else x for i, x in enumerate(exchange_of(mesh, axes, 1, 2, 5))]

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
