"""Pipelines: the oracle once more, microbatch by microbatch, and the steps of both implementations."""

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec

from shardproof.impl import pipeline as module
from shardproof.impl.pipeline import pipeline
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.pipeline import pipeline as oracle
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.meta import REVERSED, places
from shardproof.properties.meta.blockwise import check_oracle, floats, participants, simulated


def row_by_row(mesh: MeshCase, axes: tuple[str, ...], weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Every row by itself, walked from participant to participant as often as each has layers."""
    result, features = np.empty_like(x), x.shape[-1]
    for device in np.ndindex(*mesh.sizes):
        for place in np.ndindex(*x.shape[len(mesh.sizes) : -1]):
            row = x[device][place]
            for n in range(weights.shape[-2] // features):
                for participant in participants(mesh, axes, device):
                    layer = weights[participant][n * features : (n + 1) * features]
                    row = np.array([math.tanh(row @ layer[:, column]) for column in range(features)])
            result[device][place] = row
    return result


@pytest.mark.lengthy
@given(place=places(), layers=st.integers(1, 3))
def test_a_pipeline_is_that_of_each_row(place: Any, layers: int) -> None:
    """The oracle's values, their differences and their adjoint are those of rows taken one by one."""
    mesh, axes, seed = place
    operands, tangents = (
        [floats(mesh, 2 * layers, 2, seed=seed + j), floats(mesh, 2, 1, 2, seed=seed + j + 2)] for j in (0, 4)
    )
    ct, whole = floats(mesh, 2, 1, 2, seed=seed + 9), functools.partial(row_by_row, mesh, axes)
    check_oracle(oracle, whole, mesh, axes, operands, tangents, ct)


def test_an_oracle_of_no_layers() -> None:
    """Weights that are no whole layers are refused."""
    mesh, axes = REVERSED
    with pytest.raises(ValueError, match="weights: blocks of 3 by 2: expected layers of 2 features"):
        oracle.value([np.zeros((2, 3, 3, 2)), np.zeros((2, 3, 1, 1, 2))], mesh, axes)


def traced(form: Any, p: int, microbatches: int, layers: int) -> Any:
    """The trace of a form with p participants."""
    specs = (PartitionSpec("pp"), PartitionSpec())
    mesh = abstract_mesh(MeshCase(("pp",), (p,)))
    mapped = jax.shard_map(
        functools.partial(form, axis_name="pp"), mesh=mesh, in_specs=specs, out_specs=PartitionSpec()
    )
    arrays = [np.zeros((p * layers * 2, 2), np.float32), np.zeros((microbatches, 3, 2), np.float32)]
    return jax.make_jaxpr(mapped)(*arrays)


SIZES = [(4, 8, 1), (4, 8, 3), (4, 2, 3), (6, 1, 1), (2, 5, 2), (3, 3, 2)]
sizes = pytest.mark.parametrize(("p", "microbatches", "layers"), SIZES)


@sizes
def test_steps_are_counted(p: int, microbatches: int, layers: int) -> None:
    """A loop has all steps but the first, with one permute in each (GPipe, section 2.3: M + p - 1 for one layer)."""
    last_round = microbatches + p - 1
    program = traced(pipeline, p, microbatches, layers)
    (loop,) = [one for one in equations(program) if one.primitive is lax.scan_p]
    assert loop.params["length"] == (layers - 1) * max(microbatches, p) + last_round - 1
    permutes = [one for one in equations(program) if one.primitive.name == "ppermute"]
    assert len(permutes) == len([one for one in equations(loop.params["jaxpr"]) if one in permutes]) == 1


@sizes
def test_bubbles_are_counted(p: int, microbatches: int, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every participant is idle in p - 1 steps, and in p - M more of each round but the last if M is less than p.

    A step is not idle if the participant puts a microbatch through one of its layers, for the first time.
    """
    seen: list[tuple[int, float]] = []

    def recorded(index: Any, y: Any) -> Any:
        seen.append((int(index), float(y[0, 0])))
        return y

    def applied(layer: Any, y: Any, dtype: Any) -> Any:
        entered = jax.pure_callback(recorded, y, lax.axis_index("pp"), y)
        return (entered + layer[0, 0]).astype(dtype)

    monkeypatch.setattr(module, "_applied", applied)
    mesh = MeshCase(("pp",), (p,))
    weights = np.ones((p, layers, 1), np.float32)  # a layer adds 1, so that a value says what it went through
    x = np.broadcast_to(1000 * np.arange(1, microbatches + 1, dtype=np.float32)[:, None, None], (p, microbatches, 1, 1))
    found = simulated(functools.partial(pipeline, axis_name="pp"), mesh, weights, x)
    np.testing.assert_array_equal(found, x + p * layers)
    for participant in range(p):
        entered = [value for index, value in seen if index == participant]
        useful = {1000 * (m + 1) + n * p + participant for m in range(microbatches) for n in range(layers)}
        assert useful <= {*entered}
        assert len(entered) - len(useful) == p - 1 + (layers - 1) * max(p - microbatches, 0)
