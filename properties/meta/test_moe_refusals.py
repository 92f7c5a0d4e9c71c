"""Error texts of routing, capacities, dispatchers and layers of experts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
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


WRONG_ON_MESH: dict[str, tuple[dict[str, Any], str]] = {
    "unknown axis": ({"data": "nope"}, r"data=\('nope',\): expected distinct axes out of dp, ep"),
    "both roles": ({"expert": ("dp", "ep")}, r"expert=\('dp', 'ep'\): expected none of the axes of data=\('dp',\)"),
    "no axis": ({"expert": ()}, r"expert=\(\): expected one axis at least"),
    "of participants": ({"policy": "sender"}, r"policy='sender': expected one that does not depend on the mesh"),
}


@pytest.mark.parametrize("wrong", WRONG_ON_MESH)
def test_messages_on_global_arrays(wrong: str) -> None:
    """A wrong argument of a layer of global arrays is refused with the mesh."""
    changes, text = WRONG_ON_MESH[wrong]
    shapes = {"tokens": (8, 3), "router": (3, 8), "experts": (8, 3, 2)}
    operands = [np.zeros(changes.get(name, shape), np.float32) for name, shape in shapes.items()]
    options: Any = {"data": "dp", "expert": "ep", "top_k": 2} | {k: v for k, v in changes.items() if k not in shapes}
    mesh = AbstractMesh((2, 2), ("dp", "ep"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match=rf"^global_ring_moe: {text}.*, on the mesh \(dp=2, ep=2\)"):
        simulate(lambda *xs: moe.global_ring_moe(*xs, mesh=mesh, **options), *operands)


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
