"""Timelines on published chips, against sums by hand: rings, loops, gathers and a switch."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array, lax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.performance.chips import CHIPS, REGISTER, Chip, chip, in_words
from shardproof.properties.performance.choosing import operations_for
from shardproof.properties.performance.commands.drawing import bare, parse_arrays
from shardproof.properties.performance.lanes import MOST_BARS, lay_out, text
from shardproof.properties.performance.operations import Operation, operations_of
from shardproof.properties.performance.routes import Loads
from shardproof.properties.performance.shaped import shaped_case
from shardproof.properties.performance.timeline import COMPUTE, Timeline, timeline
from shardproof.properties.programs.built_in import OVERLAPPED, PRODUCTS
from shardproof.properties.programs.implementations import Implementation

MICRO = Fraction(1, 10**6)
RING = MeshCase(("tp",), (4,))
V5E = CHIPS["v5e"]


def product(flops: int, *reads: int, memory: int = 0) -> Operation:
    """A product of bfloat16."""
    return Operation("dot_general", "", frozenset(reads), {"bfloat16": flops}, memory)


def sent(size: int, *reads: int, way: int = 1) -> Operation:
    """A permute to a neighbour along `tp`."""
    loads = Loads({("tp", way): Fraction(size)}, 1, sent=Fraction(size))
    return Operation("ppermute", "", frozenset(reads), loads=loads)


A_MICROSECOND = 197 * 10**6
"""Multiplications and additions, of bfloat16 on v5e."""


@pytest.mark.either_end
@pytest.mark.parametrize("name", CHIPS)
def test_every_figure_has_its_source(name: str) -> None:
    """Every figure of a chip has a source, and memory is faster than links and slower than arithmetic."""
    one = CHIPS[name]
    figures = {*(f"peak:{dtype}" for dtype in one.peak), "memory", "link", "latency"}
    figures |= set() if one.cycle is None else {"cycle"}
    assert {*one.sources} == figures
    assert one.assumed <= figures
    assert all("https://" in source for source in one.sources.values())
    assert one.name == name
    assert one.link < one.memory < one.rate("bfloat16")
    assert 0 < one.latency <= 10 * MICRO


@pytest.mark.either_end
def test_published_sums_of_links_are_not_exceeded() -> None:
    """The links of a chip have together at most the published bandwidth, and at least 5/6 of it."""
    published = {"v4": (600, 6), "v5e": (400, 4), "v5p": (1200, 6), "v6e": (800, 4), "tpu7x": (1200, 6)}
    published["h100"] = (900, 1)
    assert published.keys() == CHIPS.keys()
    for name, (both_ways, links) in published.items():
        part = both_ways * 10**9 // links // 2
        assert 5 * part <= 6 * CHIPS[name].link <= 6 * part
        assert CHIPS[name].dimensions == links // 2


@pytest.mark.either_end
def test_an_operation_takes_the_larger_of_two_times() -> None:
    """An operation takes the longer of its arithmetic and its memory traffic."""
    assert V5E.seconds(product(A_MICROSECOND, memory=819_000)) == MICRO
    assert V5E.seconds(product(A_MICROSECOND, memory=3 * 819_000)) == 3 * MICRO
    assert V5E.seconds(Operation("add", "", frozenset(), bytes=REGISTER - 1)) == 0
    assert V5E.seconds(Operation("add", "", frozenset(), bytes=819_000)) == MICRO
    mixed = Operation("dot_general", "", frozenset(), {"bfloat16": A_MICROSECOND, "int8": 393 * 10**6})
    assert V5E.seconds(mixed) == 2 * MICRO


@pytest.mark.either_end
def test_what_nobody_publishes_is_not_invented() -> None:
    """An unpublished peak or machine is refused with its name and the known ones."""
    with pytest.raises(RequestError, match=r"dtype=float64: no published peak of it on v5e: expected one of bfloat16,"):
        V5E.seconds(Operation("dot_general", "", frozenset(), {"float64": 8}))
    assert V5E.seconds(Operation("dot_general", "", frozenset(), {"float64": 0})) == 0
    with pytest.raises(ValueError, match=r"^machine='v5x': no such machine; did you mean 'v5p'\?$"):
        chip("v5x")
    with pytest.raises(ValueError, match="machine='abacus': no such machine; expected one of v4, v5e, v5p, v6e"):
        chip("abacus")


@pytest.mark.either_end
def test_a_mesh_lies_on_the_torus() -> None:
    """A mesh with more long axes than its torus has dimensions is refused."""
    V5E.check(MeshCase(("a", "b", "c"), (2, 1, 4)))
    CHIPS["h100"].check(MeshCase(("a", "b", "c", "d"), (2, 2, 2, 2)))
    with pytest.raises(ValueError, match=r"mesh=\(a=2, b=2, c=4\): v5e is a torus of 2 dimensions: expected at most"):
        V5E.check(MeshCase(("a", "b", "c"), (2, 2, 4)))


@pytest.mark.either_end
def test_times_are_read_at_once() -> None:
    """A time is printed in the largest unit in which it is at least one."""
    words = ["0", "0.5 ns", "1 us", "21.8 us", "12 s"]
    assert [*map(in_words, (Fraction(0), MICRO / 2000, MICRO, 218 * MICRO / 10, Fraction(12)))] == words


def times(function: Callable[..., Any], arrays: str, machine: Chip = V5E, mesh: MeshCase = RING) -> Timeline:
    """The timeline of a function of blocks of bfloat16."""
    program = bare(function, parse_arrays(arrays, mesh, "bfloat16"), mesh, mesh.axis_names)
    return timeline(operations_of(program, mesh), machine)


NEXT = [(i, (i + 1) % 4) for i in range(4)]


def ring(x: Array, w: Array, tp: str) -> list[Array]:
    """The products of all blocks, each multiplied while it travels on."""
    found = []
    for step in range(4):
        found.append(x @ w)
        x = lax.ppermute(x, tp, NEXT) if step < 3 else x
    return found


def looped(x: Array, w: Array, tp: str) -> list[Array]:
    """The same in a loop of three."""
    x, found = lax.scan(lambda x, _: (lax.ppermute(x, tp, NEXT), x @ w), x, length=3)
    return [found, x @ w]


@pytest.mark.parametrize("columns", [8192, 1024])
@pytest.mark.parametrize(("rows", "function"), [(512, ring), (2048, ring), (512, looped)])
def test_a_ring_of_four(rows: int, function: Callable[..., Any], columns: int) -> None:
    """A ring of four takes four products, or three permutes and a product where permutes are longer."""
    found = times(function, f"{4 * rows}@tpx2048,2048x{columns}")
    memory = Fraction(2 * (rows * (2048 + columns) + 2048 * columns), 819 * 10**9)
    t, c = Fraction(2 * rows * 2048 * columns, 197 * 10**12), MICRO + Fraction(rows * 2048 * 2, 45 * 10**9)
    t = memory if memory > t else t
    assert (t > c) == (columns == 8192)
    exposed = 3 * (c - t) if c > t else 0
    assert found.total == 4 * t + exposed
    assert [found.compute, found.communication, found.exposed] == [4 * t, 3 * c, exposed]


def gathered(x: Array, w: Array, tp: str) -> Array:
    """Gathers first."""
    return lax.all_gather(x, tp, tiled=True) @ w


def test_a_gather_first_is_exposed() -> None:
    """A gather before its product is exposed, over a ring as through a switch."""
    block, t = 512 * 2048 * 2, Fraction(2 * 2048 * 2048 * 8192, 197 * 10**12)
    found = times(gathered, "2048@tpx2048,2048x8192")
    assert found.exposed == found.communication == 2 * MICRO + Fraction(3 * block, 2 * 45 * 10**9)
    assert found.total == found.exposed + t
    switched = times(gathered, "2048@tpx2048,2048x8192", CHIPS["h100"])
    assert switched.communication == 3 * Fraction(34, 10) * MICRO + Fraction(3 * block, 450 * 10**9)


def opposite(x: Array, tp: str) -> Array:
    """To the device two places on."""
    return lax.ppermute(x, tp, [(i, (i + 2) % 4) for i in range(4)])


def both_ways(x: Array, tp: str) -> list[Array]:
    """To both neighbours."""
    return [lax.ppermute(x, tp, pairs) for pairs in (NEXT, [(j, i) for i, j in NEXT])]


def test_a_switch_knows_no_distance() -> None:
    """Distances count on a ring and not through a switch, where two directions take turns."""
    size, h100 = 512 * 2048 * 2, CHIPS["h100"]
    assert times(opposite, "2048@tpx2048").total == 2 * MICRO + Fraction(size, 45 * 10**9)
    assert times(opposite, "2048@tpx2048", h100).total == h100.latency + Fraction(size, 450 * 10**9)
    assert times(both_ways, "2048@tpx2048").total == MICRO + Fraction(size, 45 * 10**9)
    assert times(both_ways, "2048@tpx2048", h100).total == 2 * (h100.latency + Fraction(size, 450 * 10**9))


@pytest.mark.parametrize("one", [*PRODUCTS, *OVERLAPPED], ids=str)
def test_lanes_are_the_timeline(one: Implementation) -> None:
    """The lanes of a picture add up to the timeline, and no lane has two bars at once."""
    for gradient in (False, True):
        found = timeline(operations_for(one, shaped_case(one.contract.name, RING, "tp"), gradient=gradient), V5E)
        lanes = lay_out(found)
        assert not lanes.cuts
        assert lanes.total == found.total == max(bar.end for bar in lanes.bars)
        assert sum(end - start for start, end in lanes.exposed) == found.exposed
        for lane in lanes.names:
            bars = [bar for bar in lanes.bars if bar.lane == lane]
            assert all(one.end <= other.start for one, other in pairwise(bars))
        assert sum(bar.end - bar.start for bar in lanes.bars if bar.lane == COMPUTE) == found.compute
        assert found.total == found.compute + found.exposed


def test_thousands_of_devices_take_no_longer() -> None:
    """A loop of thousands of iterations is scheduled once, and its picture says how many are left out."""
    one = next(one for one in OVERLAPPED if one.name == "ring_all_gather_matmul_lhs")
    case = shaped_case(one.contract.name, MeshCase(("tp",), (4096,)), "tp", ((65536, 2048), (2048, 65536)))
    found = timeline(operations_for(one, case), V5E)
    lanes = lay_out(found)
    assert len(lanes.bars) <= MOST_BARS
    assert [left_out for _, _, left_out in lanes.cuts] == [4096 - 2 - 3]
    assert found.communication >= 4095 * MICRO
    assert all("~" in row for row in text(lanes))


@pytest.mark.either_end
def test_lanes_in_letters() -> None:
    """A lane in letters has a letter for each part of the time."""
    loop = Operation("scan", "", frozenset(), body=(product(A_MICROSECOND), sent(45_000)), times=2)
    lanes = lay_out(timeline([loop, product(2 * A_MICROSECOND), sent(225_000, way=-1)], V5E))
    assert text(lanes, 20) == [
        "compute  ##..##..####........",
        "tp ->    ==!!==!!............",
        "tp <-    ........====!!!!!!!!",
    ]
    assert text(lay_out(timeline([], V5E))) == []


def test_a_function_of_blocks_is_called_as_it_can_be() -> None:
    """A function of blocks is called with the axis tuple if it takes one, and wrong shapes are refused."""
    given = parse_arrays("8@tpx4,int32:12", RING, "float32")
    assert [(one.shape, np.dtype(one.dtype).name, one.spec) for one in given] == [
        ((8, 4), "float32", (("tp",), ())),
        ((12,), "int32", ((),)),
    ]
    assert times(lambda x: lax.psum(x, "tp"), "8@tpx4").communication > 0
    assert times(lambda x, *, scale=2: jax.nn.relu(x * scale), "4096@tpx4096").communication == 0
    for text_of, reason in (
        ("8x", r"expected the sides of whole arrays and axes of \(tp=4\), as in 512x2048@tp,int32:2048"),
        ("6@tp", r"expected tp of \(tp=4\) to divide 6"),
        ("8@dp", r"expected the sides of whole arrays and axes of \(tp=4\), as in 512x2048@tp"),
    ):
        with pytest.raises(ValueError, match=f"--shape={text_of}: {reason}"):
            parse_arrays(text_of, RING, "float32")
    mesh = MeshCase(("x", "expert"), (2, 2))
    given = parse_arrays("64@xx128,64@expertx128@x,64x4@x@expert", mesh, "float32")
    assert [one.shape for one in given] == [(64, 128), (64, 128), (64, 4)]
    assert [one.spec for one in given] == [(("x",), ()), (("expert",), ("x",)), ((), ("x", "expert"))]
