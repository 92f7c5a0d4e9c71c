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
from shardproof.properties.engines.simulate import simulate

PLACES = 4


def over(function: Any, out: P, *specs: P) -> Any:
    """A function of blocks over one axis of four participants."""
    mesh = AbstractMesh((PLACES,), ("ep",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=specs or P("ep"), out_specs=out)


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_back_to_where_they_were(seed: int) -> None:
    """Dispatched rows return to their places, and rows that are not sent are zero."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, (PLACES, PLACES)).astype(np.int32)
    sizes[rng.integers(PLACES)] = 0  # one sends nothing
    holes = rng.integers(0, 3, (PLACES, PLACES))
    offsets = (np.cumsum(sizes + holes, axis=1) - sizes).astype(np.int32)
    rows = int((sizes + holes).sum(axis=1).max()) + 1
    values = 1 + np.arange(PLACES * rows, dtype=np.float32).reshape(PLACES, rows)
    room = int(sizes.sum(axis=0).max()) + 1

    def both_ways(x: Any, begin: Any, count: Any) -> Any:
        dispatcher = moe.Dispatcher.of(begin, count, ("ep",))
        there = dispatcher.there(x, room)
        return there, dispatcher.arrived(room), dispatcher.back(there, rows), dispatcher.returned(rows)

    there, arrived, back, returned = (
        np.asarray(x).reshape(PLACES, -1)
        for x in simulate(over(both_ways, P("ep")), values.ravel(), offsets.ravel(), sizes.ravel())
    )
    for place in range(PLACES):
        sent = [slice(offsets[s, place], offsets[s, place] + sizes[s, place]) for s in range(PLACES)]
        wanted = np.concatenate([values[s, part] for s, part in enumerate(sent)])
        assert there[place].tolist() == [*wanted, *[0] * (room - len(wanted))]
        assert arrived[place].tolist() == [True] * len(wanted) + [False] * (room - len(wanted))
        own = np.zeros(rows, bool)
        for begin, count in zip(offsets[place], sizes[place], strict=True):
            own[begin : begin + count] = True
        assert returned[place].tolist() == own.tolist()
        assert back[place].tolist() == np.where(own, values[place], 0).tolist()


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
