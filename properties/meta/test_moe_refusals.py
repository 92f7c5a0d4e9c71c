"""Error texts of routing, capacities, dispatchers and layers of experts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from shardproof.impl import moe
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.meta.test_moe_dispatch import PLACES, over


@pytest.mark.parametrize(
    ("lists", "room", "text"),
    [
        ((np.zeros(3, np.int32),) * 2, 4, r"of: offsets='int32\[3\].*expected .*\(4,\), one for each participant"),
        ((np.zeros(4, np.float32),) * 2, 4, r"of: offsets='float32\[4\]'.*expected an array of integers"),
        ((np.zeros(4, np.int32),) * 2, -1, r"there: room=-1: expected an integer of at least 0, known before tracing"),
    ],
)
def test_what_dispatchers_refuse(lists: Any, room: int, text: str) -> None:
    """A Dispatcher refuses lists of another length or kind, and a negative room."""

    def there(rows: Any) -> Any:
        return moe.Dispatcher.of(jnp.asarray(lists[0]), jnp.asarray(lists[1]), ("ep",)).there(rows, room)

    with pytest.raises(ValueError, match=rf"^Dispatcher\.{text}"):
        simulate(over(there, P("ep"), P("ep")), np.zeros((PLACES, 2), np.float32))


def test_the_array_of_gated_experts_that_is_wrong_is_named() -> None:
    """A wrong array of gated experts is named with the shape that it must have."""
    experts = [np.zeros(shape, np.float32) for shape in ((4, 3, 5), (4, 3, 5), (4, 6, 2))]

    def layer(x: Any, r: Any, *own: Any) -> Any:
        return moe.ring_moe(x, r, own, "ep", top_k=1)

    with pytest.raises(
        ValueError, match=r"^ring_moe: expert_weights='float32\[1,6,2\].* of array 2': expected \[1, 5, F\], 1 of the 4"
    ):
        simulate(
            over(layer, P("ep"), P("ep"), P(), *[P("ep")] * 3),
            np.zeros((4, 3), np.float32),
            np.zeros((3, 4), np.float32),
            *experts,
        )
