"""Laws of `shardproof.oracles.collectives` and `shardproof.oracles.transposes`: every operation again, by device.

A definition here says what one participant receives, given its place among the participants and the blocks
that they hold, in plain loops; the transposes follow from the operations by the adjoint identity.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles import collectives, layout, transposes
from shardproof.oracles.layout import shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import small_meshes
from shardproof.properties.meta.blockwise import participants

Blocks = Sequence[np.ndarray]
PAIR = MeshCase(("dp",), (2,))
MULTIPLE = math.lcm(*range(1, 9))
"""Means over up to 8 participants of multiples of this are integers."""


def integers(shape: tuple[int, ...], dtype: Any, *, stream: int = 0) -> np.ndarray:
    """Small integers in no order, of which a mean over up to 8 participants is exact in float64."""
    return np.asarray(MULTIPLE * np.random.default_rng(stream).integers(-999, 1000, shape), dtype)


def place_of(number: int, pieces: int, shape: Sequence[int], axis: int, tiled: bool) -> tuple[Any, ...]:
    """The index of piece `number` of a block: a slice of its dimension `axis` if tiled, an entry of it if not."""
    size = shape[axis] // pieces
    return (slice(None),) * (axis % len(shape)) + (slice(number * size, (number + 1) * size) if tiled else number,)


def assemble(parts: Blocks, axis: int, tiled: bool) -> np.ndarray:
    """The parts joined along the dimension `axis` of the result, in order."""
    shape = list(parts[0].shape)
    axis %= len(shape) + (not tiled)
    shape[axis : axis + tiled] = [len(parts) * shape[axis] if tiled else len(parts)]
    result = np.empty(shape, parts[0].dtype)
    for i, part in enumerate(parts):
        result[place_of(i, len(parts), shape, axis, tiled)] = part
    return result


def total(blocks: Blocks) -> np.ndarray:
    """The sum of the blocks, one after the other."""
    result = np.zeros_like(blocks[0])
    for block in blocks:
        result += block
    return result


def all_reduce(place: int, blocks: Blocks, *, op: str) -> np.ndarray:
    """Every participant receives the reduction of all."""
    if op == "sum":
        return total(blocks)
    if op == "mean":
        return (total(blocks) / len(blocks)).astype(np.float32 if blocks[0].dtype.kind == "i" else blocks[0].dtype)
    result = blocks[0]
    for block in blocks:
        result = np.where(block > result if op == "max" else block < result, block, result)
    return result


def all_gather(place: int, blocks: Blocks, *, axis: int, tiled: bool) -> np.ndarray:
    """Every participant receives all blocks."""
    return assemble(blocks, axis, tiled)


def reduce_scatter(place: int, blocks: Blocks, *, scatter_dimension: int, tiled: bool) -> np.ndarray:
    """A participant receives its own piece of the sum."""
    return total(blocks)[place_of(place, len(blocks), blocks[0].shape, scatter_dimension, tiled)]


def all_to_all(place: int, blocks: Blocks, *, split_axis: int, concat_axis: int, tiled: bool) -> np.ndarray:
    """A participant receives from every participant the piece that is for it."""
    mine = place_of(place, len(blocks), blocks[0].shape, split_axis, tiled)
    return assemble([block[mine] for block in blocks], concat_axis % blocks[0].ndim, tiled)


def permute(place: int, blocks: Blocks, *, perm: tuple[tuple[int, int], ...]) -> np.ndarray:
    """A participant receives from the source whose destination it is, or zeros."""
    return next((blocks[source] for source, to in perm if to == place), np.zeros_like(blocks[place]))


def ring_shift(place: int, blocks: Blocks, *, offset: int) -> np.ndarray:
    """A participant receives from the one that is `offset` behind it on the ring."""
    return next(block for source, block in enumerate(blocks) if (source + offset) % len(blocks) == place)


def broadcast(place: int, blocks: Blocks, *, root: int) -> np.ndarray:
    """Every participant receives the root's block."""
    return blocks[root]


DEFINITIONS: dict[str, Callable[..., np.ndarray]] = {
    f.__name__: f for f in (all_reduce, all_gather, reduce_scatter, all_to_all, permute, ring_shift, broadcast)
}
GROUPED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Exchange:
    """A call of a collective, on blocks of a shape."""

    name: str
    mesh: MeshCase
    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...] | None
    shape: tuple[int, ...]
    keywords: dict[str, Any]

    def __call__(self, oracle: Callable[..., np.ndarray], blocks: np.ndarray) -> np.ndarray:
        """Calls an oracle of the collective."""
        groups = {"groups": self.groups} if self.name in GROUPED else {}
        return oracle(blocks, self.mesh, self.axes, **self.keywords, **groups)

    def by_device(self, blocks: np.ndarray, receive: Callable[[int, Blocks], np.ndarray]) -> np.ndarray:
        """What every device receives, one after the other: `receive(its place, the participants' blocks)`."""
        received = []
        for device in np.ndindex(*self.mesh.sizes):
            together = participants(self.mesh, self.axes, device)
            if self.groups is not None:
                (group,) = (group for group in self.groups if together.index(device) in group)
                together = [together[index] for index in group]
            received.append(receive(together.index(device), [np.asarray(blocks[one]) for one in together]))
        return np.stack(received).reshape(*self.mesh.sizes, *received[0].shape)


@st.composite
def exchanges(draw: st.DrawFn, name: str, *, ops: tuple[str, ...] = ("sum", "mean", "max", "min")) -> Exchange:
    """Exchanges over any axes of any mesh, in any order, within any groups of equal length.

    Shrinks towards blocks `[0]` on one device. Draws such as `("tp", "dp")` of `(dp=2, tp=3)` in groups
    `((4, 0, 1), (2, 5, 3))`, pieces `[2, 3]`, `axis=-1`, tiled.
    """
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    p = mesh.axis_size(axes)
    groups = None
    if name in GROUPED and draw(st.booleans()):
        order, length = (
            draw(st.permutations(range(p))),
            draw(st.sampled_from([n for n in range(1, p + 1) if not p % n])),
        )
        groups = tuple(tuple(order[i : i + length]) for i in range(0, p, length))
        p = length
    splits = name in ("reduce_scatter", "all_to_all")
    shape = draw(st.lists(st.integers(0, 3), min_size=int(splits), max_size=3))
    tiled = bool(shape) and draw(st.booleans())
    rank = len(shape) + (name == "all_gather" and not tiled)
    axis = draw(st.integers(-rank, rank - 1)) if rank else 0
    if splits:
        shape[axis] = p * shape[axis] if tiled else p
    keywords: dict[str, Callable[[], dict[str, Any]]] = {
        "all_reduce": lambda: {"op": draw(st.sampled_from(ops))},
        "all_gather": lambda: {"axis": axis, "tiled": tiled},
        "reduce_scatter": lambda: {"scatter_dimension": axis, "tiled": tiled},
        "all_to_all": lambda: {"split_axis": axis, "concat_axis": draw(st.integers(-rank, rank - 1)), "tiled": tiled},
        "permute": lambda: {
            "perm": tuple(pair for pair in enumerate(draw(st.permutations(range(p)))) if draw(st.booleans()))
        },
        "ring_shift": lambda: {"offset": draw(st.integers(-2 * p, 2 * p))},
        "broadcast": lambda: {"root": draw(st.integers(0, p - 1))},
    }
    return Exchange(name, mesh, axes, groups, tuple(shape), keywords[name]())


@pytest.mark.parametrize("name", DEFINITIONS)
@given(data=st.data())
def test_an_oracle_is_its_definition(name: str, data: st.DataObject) -> None:
    """Every device receives what the definition says of its place among the participants and of their blocks."""
    exchange = data.draw(exchanges(name))
    blocks = integers((*exchange.mesh.sizes, *exchange.shape), np.int32)
    found = exchange(getattr(collectives, name), blocks)
    expected = exchange.by_device(blocks, lambda place, held: DEFINITIONS[name](place, held, **exchange.keywords))
    np.testing.assert_array_equal(found, expected, strict=True)


@given(exchange=exchanges("broadcast"))
def test_axis_index_is_the_place_among_the_participants(exchange: Exchange) -> None:
    """The logical index of a device is its place among the participants, the last name varying fastest."""
    expected = exchange.by_device(np.zeros(exchange.mesh.sizes), lambda place, held: np.array(place, np.int32))
    np.testing.assert_array_equal(collectives.axis_index(exchange.mesh, exchange.axes), expected, strict=True)


@pytest.mark.parametrize("name", DEFINITIONS)
@given(data=st.data())
def test_a_transpose_satisfies_the_adjoint_identity(name: str, data: st.DataObject) -> None:
    """<F d, c> = <d, F^T c> exactly, over all blocks of all devices."""
    exchange = data.draw(exchanges(name, ops=("sum", "mean")))
    blocks = integers((*exchange.mesh.sizes, *exchange.shape), np.float64)
    image = exchange(getattr(collectives, name), blocks)
    cotangent = integers(image.shape, np.float64, stream=1)
    pulled_back = exchange(getattr(transposes, f"{name}_transpose"), cotangent)
    assert pulled_back.shape == blocks.shape
    assert np.vdot(image, cotangent) == np.vdot(blocks, pulled_back)


@st.composite
def placements(draw: st.DrawFn) -> tuple[MeshCase, tuple[tuple[str, ...], ...], tuple[int, ...]]:
    """A mesh, a spec of up to two entries and a global shape that it divides.

    Shrinks towards a scalar on one device. Draws such as `(dp=2, tp=4)`, `(("tp",), ("dp",))`, `[8, 2]`.
    """
    mesh = draw(small_meshes())
    rank = draw(st.integers(0, 2))
    spec: list[tuple[str, ...]] = [()] * rank
    for name in draw(st.permutations(mesh.axis_names)):
        dimension = draw(st.integers(-1, rank - 1))
        if dimension >= 0:
            spec[dimension] += (name,)
    return mesh, tuple(spec), tuple(mesh.axis_size(axes) * draw(st.integers(1, 2)) for axes in spec)


@given(placement=placements())
def test_enter_is_the_transpose_of_unshard(placement: Any) -> None:
    """<unshard(b), c> = <b, enter(c)> exactly, for all blocks b that agree where they are replicas."""
    mesh, spec, shape = placement
    blocks = shard(integers(shape, np.int64), mesh, spec)
    cotangent = integers(shape, np.int64, stream=1)
    entered = layout.enter(cotangent, mesh, spec)
    assert entered.shape == blocks.shape
    assert np.vdot(unshard(blocks, mesh, spec), cotangent) == np.vdot(blocks, entered)


@given(placement=placements())
def test_leave_is_the_transpose_of_shard(placement: Any) -> None:
    """<shard(x), c> = <x, leave(c)> exactly, for all blocks c, replicas or not."""
    mesh, spec, shape = placement
    array = integers(shape, np.int64)
    blocks = shard(array, mesh, spec)
    cotangent = integers(blocks.shape, np.int64, stream=1)
    left = layout.leave(cotangent, mesh, spec)
    assert left.shape == array.shape
    assert np.vdot(blocks, cotangent) == np.vdot(array, left)


LARGEST = 2**64 - 1
REDUCED: dict[str, tuple[str, Any, list[Any], Any, Any]] = {
    "a sum of bool counts": ("sum", bool, [True, True], np.int32, 2),
    "the maximum of bool": ("max", bool, [True, False], bool, True),
    "the minimum of bool": ("min", bool, [True, False], bool, False),
    "a mean of bool": ("mean", bool, [True, False], np.float32, 0.5),
    "a mean of integers": ("mean", np.int8, [1, 0], np.float32, 0.5),
    "a mean of short integers": ("mean", ml_dtypes.int4, [1, 0], np.float32, 0.5),
    "int8 wraps around": ("sum", np.int8, [100, 100], np.int8, -56),
    "negative int8 wraps around": ("sum", np.int8, [-100, -100], np.int8, 56),
    "uint8 wraps around": ("sum", np.uint8, [200, 200], np.uint8, 144),
    "int32 wraps around": ("sum", np.int32, [2**30, 2**30], np.int32, -(2**31)),
    "int4 wraps around": ("sum", ml_dtypes.int4, [5, 5], ml_dtypes.int4, -6),
    "bfloat16 is rounded once": ("sum", ml_dtypes.bfloat16, [256, 1, 1], ml_dtypes.bfloat16, 258),
    "the largest uint64 is the largest": ("max", np.uint64, [2, LARGEST], np.uint64, LARGEST),
    "the largest uint64 is not the smallest": ("min", np.uint64, [LARGEST, 3], np.uint64, 3),
    "uint64 wraps around": ("sum", np.uint64, [2, LARGEST], np.uint64, 1),
}
"""Numbers of a dtype that participants have, and the dtype and number that they receive."""


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_a_dtype(name: str) -> None:
    """An all-reduce has the exact result, in its own dtype, and so has a reduce-scatter if it is a sum."""
    op, dtype, held, to, expected = REDUCED[name]
    p = len(held)
    mesh, blocks = MeshCase(("dp",), (p,)), np.array([[n] * p for n in held], dtype)
    row = np.array([expected] * p).astype(to)
    np.testing.assert_array_equal(collectives.all_reduce(blocks, mesh, "dp", op=op), np.stack([row] * p), strict=True)
    if op == "sum":
        np.testing.assert_array_equal(collectives.reduce_scatter(blocks, mesh, "dp"), row, strict=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_have_no_transpose(op: str) -> None:
    """The transpose of a reduction that is not linear is refused with the op and those that are."""
    with pytest.raises(ValueError, match=f"^op={op!r}: only sum and mean are linear$"):
        transposes.all_reduce_transpose(np.zeros(2), PAIR, "dp", op=op)


def test_what_is_not_tiled_has_one_entry_per_participant() -> None:
    """Splitting a dimension that is not tiled and has another size than there are participants is refused with both."""
    with pytest.raises(ValueError, match="has size 3: expected 2, one piece per participant"):
        collectives.reduce_scatter(np.zeros((2, 3)), PAIR, "dp")
