"""Laws of `shardproof.oracles.collectives` and `shardproof.oracles.transposes`: every operation again, by device.

A definition here says what one participant receives, given its place among the participants and the blocks
that they hold, in plain loops; the transposes follow from the operations by the adjoint identity.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.oracles import collectives, transposes
from shardproof.oracles.layout import shard, unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.meta import small_meshes

Groups = tuple[tuple[int, ...], ...] | None
Device = tuple[int, ...]


@dataclass(frozen=True)
class Exchange:
    """One call of every collective: who takes part, and an argument for each parameter that one has.

    `shape` is that of the pieces: the dimension `axis` is multiplied by the number of participants, or
    replaced by it, where an operation splits it.
    """

    mesh: MeshCase
    axes: tuple[str, ...]
    groups: Groups
    shape: tuple[int, ...]
    axis: int
    other_axis: int
    tiled: bool
    perm: tuple[tuple[int, int], ...]
    offset: int
    root: int

    @property
    def participants(self) -> int:
        """How many blocks one participant receives."""
        return len(self.groups[0]) if self.groups else self.mesh.axis_size(self.axes)

    @property
    def splittable(self) -> tuple[int, ...]:
        """A block shape that divides into one piece per participant along `axis`."""
        shape = list(self.shape)
        shape[self.axis] = self.participants * shape[self.axis] if self.tiled else self.participants
        return tuple(shape)


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Exchanges over any axes of any mesh, in any order, within any groups of equal length.

    Shrinks towards blocks `[0]` on one device. Draws such as `("tp", "dp")` of `(dp=2, tp=3)` in groups
    `((4, 0, 1), (2, 5, 3))`, pieces `[2, 3]`, `axis=-1`, tiled.
    """
    mesh = draw(small_meshes())
    axes = tuple(draw(st.lists(st.sampled_from(mesh.axis_names), unique=True, min_size=1)))
    p = mesh.axis_size(axes)
    order = draw(st.permutations(range(p)))
    length = draw(st.sampled_from([n for n in range(1, p + 1) if p % n == 0]))
    groups = tuple(tuple(order[i : i + length]) for i in range(0, p, length))
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    dimensions = st.integers(-len(shape), len(shape) - 1)
    destinations = draw(st.permutations(range(p)))
    return Exchange(
        mesh=mesh,
        axes=axes,
        groups=draw(st.sampled_from([None, groups])),
        shape=shape,
        axis=draw(dimensions),
        other_axis=draw(dimensions),
        tiled=draw(st.booleans()),
        perm=tuple((i, to) for i, to in enumerate(destinations) if draw(st.booleans())),
        offset=draw(st.integers(-2 * p, 2 * p)),
        root=draw(st.integers(0, p - 1)),
    )


def participants_of(mesh: MeshCase, axes: tuple[str, ...], groups: Groups, device: Device) -> list[Device]:
    """The devices that exchange with `device`, itself included, in logical order (or in its group's order)."""
    everyone = []
    for along in itertools.product(*(range(mesh.shape[name]) for name in axes)):
        at = dict(zip(mesh.axis_names, device, strict=True)) | dict(zip(axes, along, strict=True))
        everyone.append(tuple(at[name] for name in mesh.axis_names))
    if groups is None:
        return everyone
    [group] = [group for group in groups if everyone.index(device) in group]
    return [everyone[index] for index in group]


def device_by_device(
    blocks: np.ndarray, exchange: Exchange, groups: Groups, receive: Callable[[int, list[np.ndarray]], np.ndarray]
) -> np.ndarray:
    """What every device receives, one after the other: `receive(its place, the participants' blocks)`."""
    held = {device: np.asarray(blocks[device]) for device in np.ndindex(*exchange.mesh.sizes)}
    received = {}
    for device in held:
        participants = participants_of(exchange.mesh, exchange.axes, groups, device)
        received[device] = receive(participants.index(device), [held[participant] for participant in participants])
    in_order = np.stack([received[device] for device in np.ndindex(*exchange.mesh.sizes)])
    return in_order.reshape(*exchange.mesh.sizes, *in_order.shape[1:])


def along(dimension: int, part: int | slice) -> tuple[int | slice, ...]:
    """The index of `part` of one dimension."""
    return (*(slice(None),) * dimension, part)


def part_of(piece: int, pieces: int, size: int, tiled: bool) -> int | slice:
    """Where piece number `piece` is in a dimension of `size`: a slice if tiled, an entry if not."""
    return slice(piece * size // pieces, (piece + 1) * size // pieces) if tiled else piece


def assemble(parts: list[np.ndarray], axis: int, tiled: bool) -> np.ndarray:
    """The parts joined along the dimension `axis` of the result, in order."""
    shape = list(parts[0].shape)
    axis %= len(shape) + (not tiled)
    shape[axis : axis + tiled] = [len(parts) * shape[axis] if tiled else len(parts)]
    result = np.empty(shape, parts[0].dtype)
    for i, part in enumerate(parts):
        result[along(axis, part_of(i, len(parts), shape[axis], tiled))] = part
    return result


def total(blocks: list[np.ndarray]) -> np.ndarray:
    """The sum of the blocks, one after the other."""
    result = np.zeros_like(blocks[0])
    for block in blocks:
        result += block
    return result


def all_reduce(place: int, blocks: list[np.ndarray], *, op: str) -> np.ndarray:
    """Every participant receives the reduction of all."""
    if op == "sum":
        return total(blocks)
    if op == "mean":
        return (total(blocks) / len(blocks)).astype(np.float32 if blocks[0].dtype.kind == "i" else blocks[0].dtype)
    result = blocks[0]
    for block in blocks:
        result = np.where(block > result if op == "max" else block < result, block, result)
    return result


def all_gather(place: int, blocks: list[np.ndarray], *, axis: int, tiled: bool) -> np.ndarray:
    """Every participant receives all blocks."""
    return assemble(blocks, axis, tiled)


def reduce_scatter(place: int, blocks: list[np.ndarray], *, scatter_dimension: int, tiled: bool) -> np.ndarray:
    """A participant receives its own piece of the sum."""
    dimension = scatter_dimension % blocks[0].ndim
    return total(blocks)[along(dimension, part_of(place, len(blocks), blocks[0].shape[dimension], tiled))]


def all_to_all(place: int, blocks: list[np.ndarray], *, split_axis: int, concat_axis: int, tiled: bool) -> np.ndarray:
    """A participant receives from every participant the piece that is for it."""
    rank = blocks[0].ndim
    where = along(split_axis % rank, part_of(place, len(blocks), blocks[0].shape[split_axis], tiled))
    return assemble([block[where] for block in blocks], concat_axis % rank, tiled)


def permute(place: int, blocks: list[np.ndarray], *, perm: tuple[tuple[int, int], ...]) -> np.ndarray:
    """A participant receives from the source whose destination it is, or zeros."""
    for source, destination in perm:
        if destination == place:
            return blocks[source]
    return np.zeros_like(blocks[place])


def ring_shift(place: int, blocks: list[np.ndarray], *, offset: int) -> np.ndarray:
    """A participant receives from the one that is `offset` behind it on the ring."""
    for source in range(len(blocks)):
        if (source + offset) % len(blocks) == place:
            return blocks[source]
    raise AssertionError("a ring has no gaps")


def broadcast(place: int, blocks: list[np.ndarray], *, root: int) -> np.ndarray:
    """Every participant receives the root's block."""
    return blocks[root]


PAIR = MeshCase(("dp",), (2,))
TRANSPOSED = Exchange(
    mesh=MeshCase(("dp", "tp"), (2, 3)),
    axes=("tp", "dp"),
    groups=((4, 0, 1), (2, 5, 3)),
    shape=(2,),
    axis=0,
    other_axis=0,
    tiled=True,
    perm=((0, 5), (3, 3), (5, 1)),
    offset=-1,
    root=4,
)


@dataclass(frozen=True)
class Operation:
    """A collective: its definition, and how an exchange calls it."""

    name: str
    define: Callable[..., np.ndarray]
    arguments: Callable[[Exchange], dict[str, Any]]
    splits: bool = False
    grouped: bool = True
    variant: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.name, self.variant)))


def reduction(op: str) -> Operation:
    """An all-reduce by `op`."""
    return Operation("all_reduce", all_reduce, lambda _: {"op": op}, variant=op)


def gather_arguments(exchange: Exchange) -> dict[str, Any]:
    """The new dimension of a stack may also be the one after the last."""
    axis = exchange.axis if exchange.tiled or exchange.axis < 0 else exchange.other_axis % len(exchange.shape) + 1
    return {"axis": axis, "tiled": exchange.tiled}


LINEAR = (
    reduction("sum"),
    reduction("mean"),
    Operation("all_gather", all_gather, gather_arguments),
    Operation("reduce_scatter", reduce_scatter, lambda e: {"scatter_dimension": e.axis, "tiled": e.tiled}, splits=True),
    Operation(
        "all_to_all",
        all_to_all,
        lambda e: {"split_axis": e.axis, "concat_axis": e.other_axis, "tiled": e.tiled},
        splits=True,
    ),
    Operation("permute", permute, lambda e: {"perm": e.perm}, grouped=False),
    Operation("ring_shift", ring_shift, lambda e: {"offset": e.offset}, grouped=False),
    Operation("broadcast", broadcast, lambda e: {"root": e.root}, grouped=False),
)
NOT_LINEAR = (reduction("max"), reduction("min"))

MULTIPLE = math.lcm(*range(1, 9))
"""Means over up to 8 participants of multiples of this are integers."""


def integers(shape: tuple[int, ...], dtype: Any, *, stream: int = 0) -> np.ndarray:
    """Small integers in no order, of which a mean over up to 8 participants is exact in float64."""
    return np.asarray(MULTIPLE * np.random.default_rng(stream).integers(-999, 1000, shape), dtype)


def call(operation: Operation, exchange: Exchange) -> tuple[tuple[int, ...], Groups, dict[str, Any]]:
    """The block shape, the groups and the keyword arguments with which an exchange calls an operation."""
    groups = exchange.groups if operation.grouped else None
    shape = exchange.splittable if operation.splits else exchange.shape
    return shape, groups, operation.arguments(exchange)


def check_definition(operation: Operation, exchange: Exchange) -> None:
    """The oracle and the definition of an operation agree on every block, in value, shape and dtype."""
    shape, groups, arguments = call(operation, exchange)
    blocks = integers((*exchange.mesh.sizes, *shape), np.int32)
    expected = device_by_device(
        blocks, exchange, groups, lambda place, held: operation.define(place, held, **arguments)
    )
    oracle = getattr(collectives, operation.name)
    passed = arguments | ({"groups": groups} if operation.grouped else {})
    np.testing.assert_array_equal(oracle(blocks, exchange.mesh, exchange.axes, **passed), expected, strict=True)


@pytest.mark.parametrize("operation", LINEAR + NOT_LINEAR, ids=str)
@given(exchange=exchanges())
def test_an_oracle_is_its_definition(operation: Operation, exchange: Exchange) -> None:
    """Every device receives what the definition says of its place among the participants and of their blocks."""
    check_definition(operation, exchange)


@pytest.mark.parametrize("operation", [o for o in LINEAR + NOT_LINEAR if not o.splits], ids=str)
def test_scalars_are_exchanged_like_blocks(operation: Operation) -> None:
    """A block without dimensions is reduced, stacked and moved like any other."""
    check_definition(operation, replace(TRANSPOSED, shape=(), axis=-1, tiled=False))


@given(exchange=exchanges())
def test_axis_index_is_the_place_among_the_participants(exchange: Exchange) -> None:
    """The logical index of a device is its place among the participants, the last name varying fastest."""
    blank = np.zeros(exchange.mesh.sizes, np.int32)
    expected = device_by_device(blank, exchange, None, lambda place, held: np.array(place, np.int32))
    index = collectives.axis_index(exchange.mesh, exchange.axes)
    np.testing.assert_array_equal(index, expected, strict=True)


@pytest.mark.parametrize("operation", LINEAR, ids=str)
@given(exchange=exchanges())
def test_a_transpose_satisfies_the_adjoint_identity(operation: Operation, exchange: Exchange) -> None:
    """<F d, c> = <d, F^T c> exactly, over all blocks of all devices."""
    shape, groups, arguments = call(operation, exchange)
    arguments |= {"groups": groups} if operation.grouped else {}
    forward = getattr(collectives, operation.name)
    backward = getattr(transposes, f"{operation.name}_transpose")
    data = integers((*exchange.mesh.sizes, *shape), np.float64)
    image = forward(data, exchange.mesh, exchange.axes, **arguments)
    cotangent = integers(image.shape, np.float64, stream=1)
    pulled_back = backward(cotangent, exchange.mesh, exchange.axes, **arguments)
    assert pulled_back.shape == data.shape
    assert np.vdot(image, cotangent) == np.vdot(data, pulled_back)


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
    entered = transposes.enter(cotangent, mesh, spec)
    assert entered.shape == blocks.shape
    assert np.vdot(unshard(blocks, mesh, spec), cotangent) == np.vdot(blocks, entered)


@given(placement=placements())
def test_leave_is_the_transpose_of_shard(placement: Any) -> None:
    """<shard(x), c> = <x, leave(c)> exactly, for all blocks c, replicas or not."""
    mesh, spec, shape = placement
    array = integers(shape, np.int64)
    blocks = shard(array, mesh, spec)
    cotangent = integers(blocks.shape, np.int64, stream=1)
    left = transposes.leave(cotangent, mesh, spec)
    assert left.shape == array.shape
    assert np.vdot(blocks, cotangent) == np.vdot(array, left)


def test_a_sum_of_bool_counts() -> None:
    """All-reduce and reduce-scatter of bool count how many are true, in int32."""
    blocks = np.array([[True, True], [True, False]])
    expected = np.array([[2, 1], [2, 1]], np.int32)
    np.testing.assert_array_equal(collectives.all_reduce(blocks, PAIR, "dp"), expected, strict=True)
    scattered = collectives.reduce_scatter(blocks, PAIR, "dp")
    np.testing.assert_array_equal(scattered, np.array([2, 1], np.int32), strict=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_the_extremes_of_bool_are_bool(op: str) -> None:
    """The maximum of bool is whether any is true and the minimum whether all are, as bool."""
    blocks = np.array([[True, True, False], [True, False, False]])
    row = {"max": [True, True, False], "min": [True, False, False]}[op]
    np.testing.assert_array_equal(collectives.all_reduce(blocks, PAIR, "dp", op=op), np.array([row, row]), strict=True)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, ml_dtypes.int4])
def test_a_mean_of_exact_numbers_is_float32(dtype: Any) -> None:
    """The mean of bool and of integers is the true quotient, in float32."""
    mean = collectives.all_reduce(np.array([[1, 0], [0, 0]]).astype(dtype), PAIR, "dp", op="mean")
    np.testing.assert_array_equal(mean, np.array([[0.5, 0], [0.5, 0]], np.float32), strict=True)


@pytest.mark.parametrize(
    ("dtype", "addend", "doubled"),
    [
        (np.int8, 100, -56),
        (np.int8, -100, 56),
        (np.uint8, 200, 144),
        (np.int32, 2**30, -(2**31)),
        (ml_dtypes.int4, 5, -6),
    ],
)
def test_integer_sums_wrap_around(dtype: Any, addend: int, doubled: int) -> None:
    """A sum of integers is held modulo two to the number of bits."""
    blocks = np.full((2, 2), addend).astype(dtype)
    expected = np.full((2, 2), doubled).astype(dtype)
    np.testing.assert_array_equal(collectives.all_reduce(blocks, PAIR, "dp"), expected, strict=True)
    np.testing.assert_array_equal(collectives.reduce_scatter(blocks, PAIR, "dp"), expected[0], strict=True)


def test_float_sums_are_rounded_once() -> None:
    """A sum in bfloat16 is that of the exact numbers, rounded at the end and not after every addition."""
    mesh = MeshCase(("dp",), (3,))
    blocks = np.array([256, 1, 1]).astype(ml_dtypes.bfloat16)
    expected = np.array([258, 258, 258]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(collectives.all_reduce(blocks, mesh, "dp"), expected, strict=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_have_no_transpose(op: str) -> None:
    """The transpose of a reduction that is not linear is refused with the op and those that are."""
    with pytest.raises(ValueError, match=f"^op={op!r}: only sum and mean are linear$"):
        transposes.all_reduce_transpose(np.zeros(2), PAIR, "dp", op=op)


def test_what_is_not_tiled_has_one_entry_per_participant() -> None:
    """Splitting a dimension that is not tiled and has another size than there are participants is refused with both."""
    with pytest.raises(ValueError, match="has size 3: expected 2, one piece per participant"):
        collectives.reduce_scatter(np.zeros((2, 3)), PAIR, "dp")


def test_the_largest_uint64_is_the_largest() -> None:
    """Numbers of uint64 beyond those of int64 keep their order in a maximum and a minimum, and wrap around in a sum."""
    mesh = MeshCase(("dp",), (2,))
    blocks = np.array([[2, 2**64 - 1], [2**64 - 1, 3]], np.uint64)
    found = {op: collectives.all_reduce(blocks, mesh, "dp", op=op)[0].tolist() for op in ("max", "min", "sum")}
    assert found == {"max": [2**64 - 1, 2**64 - 1], "min": [2, 3], "sum": [1, 2]}
