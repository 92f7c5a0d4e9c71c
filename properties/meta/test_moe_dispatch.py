"""Dispatches of a mixture of experts: bookkeeping, capacities, routing and the end of a loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.impl.moe.routing import softmax

PLACES = 4


def over(function: Any, out: P, *specs: P) -> Any:
    """A function of blocks over one axis of four participants."""
    mesh = AbstractMesh((PLACES,), ("ep",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=specs or P("ep"), out_specs=out)


@pytest.mark.parametrize(
    ("settings", "capacity"),
    [((10, 1, 1, 1.1), 11), ((64, 8, 2, 1.2), 20), ((7, 8, 1, 0.5), 1), ((7, 8, 1, 0), 0), ((0, 8, 2, 1.0), 0)],
)
def test_capacities_are_rounded_up(settings: tuple[int, int, int, float], capacity: int) -> None:
    """A capacity is the even share times the decimal factor, rounded up."""
    assert moe.capacity_of(*settings) == capacity


def test_equal_logits_in_another_order_have_equal_gates() -> None:
    """A permutation of logits permutes the gates, bit for bit."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 16)).astype(np.float32)
    order = rng.permutation(16)
    found, turned = (np.asarray(softmax(jnp.asarray(x))) for x in (logits, logits[:, order]))
    np.testing.assert_array_equal(found[:, order], turned, strict=True)
    powers = np.exp(logits)
    assert (powers.sum(axis=1) != powers[:, order].sum(axis=1)).any()
