"""Pipelines: the steps of both implementations."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from shardproof.impl import pipeline as module
from shardproof.impl.pipeline import pipeline
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.meta.blockwise import simulated


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

    monkeypatch.setattr(module, "_apply_layer", applied)
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
