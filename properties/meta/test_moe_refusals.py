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


def test_experts_must_divide() -> None:
    """A number of experts that does not divide is refused with the router's type and the mesh."""
    experts = np.zeros((8, 3, 2), np.float32)

    def layer(x: Any, r: Any, own: Any) -> Any:
        return moe.ring_moe(x, r, own, "ep", top_k=1)

    with pytest.raises(
        ValueError, match=r"ring_moe: router_weights=.*a number of experts that is a multiple of 4.*ep=4"
    ):
        simulate(
            over(layer, P("ep"), P("ep"), P(), P("ep")),
            np.zeros((4, 3), np.float32),
            np.zeros((3, 6), np.float32),
            experts,
        )


SHAPES = {"tokens": (4, 3), "router": (3, 8), "experts": (8, 3, 2)}
"""The arrays of a call."""

MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "top_k": ({"top_k": 9}, r"top_k=9: expected an integer in \[1, 8\], the number of experts"),
    "over": ({"over": "kept"}, r"over='kept': expected one of chosen, all"),
    "policy": ({"policy": "last"}, r"policy='last': expected one of probability, position, choice, sender"),
    "capacity": ({"capacity": 1.5}, r"capacity=1\.5: expected an integer of at least 0, known before tracing, or None"),
    "of senders": ({"capacity_per_sender": -1}, r"capacity_per_sender=-1: expected an integer of at least 0, known .*"),
    "chunk": ({"chunk": 0}, r"chunk=0: expected an integer of at least 1, known before tracing, or None"),
    "tokens": ({"tokens": (4, 3, 1)}, r"tokens=.*float32\[1,3,1\].*"),
    "rows": ({"router": (4, 8)}, r"router_weights=.*float32\[4,8\].*: expected 3 rows, as tokens have"),
    "experts": (
        {"experts": (8, 2, 2)},
        r"expert_weights=.*float32\[2,2,2\].*: expected \[2, 3, 2\], 2 of the 8 experts on .*",
    ),
    "axis": ({"axis_name": "tp"}, r"axis_name='tp': expected bound axis names \('tp' is not one\)"),
}
"""What is wrong in a call, and what the message says between the function and the mesh."""


@pytest.mark.parametrize("wrong", MESSAGES)
def test_messages(wrong: str) -> None:
    """A wrong argument is refused with the called function, its value, what was expected, and the mesh."""
    changes, text = MESSAGES[wrong]
    shapes = {"tokens": (4, 3), "router": (3, 8), "experts": (8, 3, 2)} | {
        k: v for k, v in changes.items() if k in SHAPES
    }
    options = {"top_k": 2} | {name: value for name, value in changes.items() if name not in (*SHAPES, "axis_name")}

    def layer(tokens: Any, router: Any, experts: Any) -> Any:
        return moe.chunked_moe(tokens, router, experts, changes.get("axis_name", "ep"), **options)

    with pytest.raises(ValueError, match=rf"^chunked_moe: {text}, on the mesh \(ep=4\)"):
        simulate(
            over(layer, P("ep"), P("ep"), P(), P("ep")), *(np.zeros(shape, np.float32) for shape in shapes.values())
        )


def test_messages_name_what_was_called() -> None:
    """A form made of another one is named in messages, and NumPy integers are accepted."""
    operands = [np.zeros(shape, np.float32) for shape in ((4, 3), (3, 8), (8, 3, 2))]

    def run(function: Any, **options: Any) -> Any:
        return simulate(over(lambda *xs: function(*xs, "ep", **options), P("ep"), P("ep"), P(), P("ep")), *operands)

    for name in ("expert_choice_moe", "gathered_expert_choice_moe"):
        for capacity in (-1, None):
            text = rf"^{name}: capacity={capacity}: expected an integer of at least 0, known before tracing, on the"
            with pytest.raises(ValueError, match=text):
                run(getattr(moe, name), capacity=capacity)
    with pytest.raises(ValueError, match=r"^ring_moe: top_k=0: expected"):
        run(moe.ring_moe, top_k=0)
    assert run(moe.ring_moe, top_k=np.int64(2), capacity=np.int32(3)).shape == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10.5, 8, 2, 1.0), "tokens=10.5: expected an integer of at least 0"),
        ((10, 0, 2, 1.0), "experts=0: expected an integer of at least 1"),
        ((10, 8, True, 1.0), "top_k=True: expected an integer of at least 0"),
        ((10, 8, 2, "1.2"), "factor='1.2': expected a finite number of at least 0"),
        ((10, 8, 2, float("nan")), "factor=nan: expected a finite number of at least 0"),
    ],
)
def test_what_is_no_capacity_is_refused(arguments: tuple[Any, ...], text: str) -> None:
    """`capacity_of` refuses numbers that are no integers and factors that are not finite."""
    with pytest.raises(ValueError, match=f"^capacity_of: {text}"):
        moe.capacity_of(*arguments)


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
    "tokens": ({"tokens": (6, 3)}, r"tokens='float32\[6, 3\]': expected a size that the 4 parts of"),
    "experts": ({"experts": (7, 3, 2)}, r"expert_weights='float32\[7, 3, 2\]': expected a size that the 2 parts of"),
    "columns": (
        {"router": (3, 9)},
        r"router_weights='float32\[3,9\].*': expected a number of experts that is a multiple",
    ),
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
