"""`axis_index` over axis tuples in every order, on both engines."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.impl.collectives import axis_index, cast_varying
from shardproof.oracles import collectives as oracle
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import axis_names, meshes
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.programs.program import Program, partition_spec

COMPILED = 0.2
"""The part of the meshes that are compiled for, which takes ten times as long."""


def program(mesh: MeshCase, axis_name: str | tuple[str, ...]) -> Program:
    """The index of every device, stacked: `[*mesh.sizes]`."""

    def local() -> jax.Array:
        index = axis_index(axis_name)
        assert jax.typeof(index).manual_axis_type.varying == set(
            axis_name if isinstance(axis_name, tuple) else [axis_name]
        )
        return index.reshape((1,) * len(mesh.sizes))

    def build(devices: Any) -> Any:
        specs = partition_spec([(name,) for name in mesh.axis_names])
        return lambda: [jax.shard_map(local, mesh=devices, in_specs=(), out_specs=specs)()]

    return Program(build, ())


def check_index(engine: Engine, scope: Scope, data: st.DataObject) -> None:
    """A device's index counts with the last name of the tuple varying fastest, and varies along exactly the tuple."""
    mesh = data.draw(meshes(max_devices=scope.max_devices, available=scope.available), label="mesh")
    axis_name = data.draw(axis_names(mesh), label="axis_name")
    (indices,) = engine.prepare(program(mesh, axis_name), mesh)([])
    np.testing.assert_array_equal(indices, oracle.axis_index(mesh, axis_name), strict=True)


@pytest.mark.engine("simulate")
@given(data=st.data())
def test_axis_index_simulate(scope: Scope, engines: Mapping[str, Engine], data: st.DataObject) -> None:
    """The interpreter's."""
    check_index(engines["simulate"], scope, data)


@pytest.mark.engine("xla")
@settings(max_examples=max(1, round(settings().max_examples * COMPILED)))
@given(data=st.data())
def test_axis_index_xla(scope: Scope, engines: Mapping[str, Engine], data: st.DataObject) -> None:
    """XLA's."""
    check_index(engines["xla"], scope, data)


@pytest.mark.parametrize("axes", [("dp", "no_such_axis"), ("no_such_axis",)])
def test_a_cast_along_an_axis_that_there_is_not_is_refused(axes: tuple[str, ...]) -> None:
    """By JAX, without a word: it is not left out, or whoever misspells an axis would get a block of another type."""
    mesh = jax.sharding.AbstractMesh((2,), ("dp",))
    mapped = jax.shard_map(lambda: cast_varying(jax.numpy.zeros(1), axes), mesh=mesh, in_specs=(), out_specs=jax.P())
    with pytest.raises(AssertionError):
        jax.make_jaxpr(mapped)()
