"""Which links a collective loads: against every piece's way, link by link."""

from collections import Counter
from fractions import Fraction
from itertools import product

import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.performance.commands.drawing import bare, parse_arrays
from shardproof.properties.performance.operations import operations_of
from shardproof.properties.performance.routes import Link, Loads, Undetermined, exchange_loads, ring_loads

NAMES = ("a", "b", "c")
SIZES = [(1,), (2,), (3,), (4,), (5,), (8,), (4, 4), (4, 2), (2, 4), (3, 4), (1, 4), (2, 2), (2, 3, 4)]


def grid(sizes: tuple[int, ...]) -> MeshCase:
    """A mesh of these sizes."""
    return MeshCase(NAMES[: len(sizes)], sizes)


def ways(sizes: tuple[int, ...]) -> dict[Link, Fraction]:
    """The load of the busiest link of each kind, in operands, if every device sends every other a piece of its own.

    A piece goes along one axis after the other, the shorter way round each; where both are as long, half of it goes
    either way, but between two devices, which one link connects.
    """
    names, places = NAMES[: len(sizes)], [*product(*map(range, sizes))]
    piece, loads = Fraction(1, len(places)), Counter[tuple[tuple[int, ...], Link]]()
    for start, end in product(places, places):
        at = list(start)
        for d, (name, n) in enumerate(zip(names, sizes, strict=True)):
            ahead = (end[d] - at[d]) % n
            shares = {1: piece} if 2 * ahead < n or n == 2 else {-1: piece}
            if 2 * ahead == n > 2:
                shares = {1: piece / 2, -1: piece / 2}
            for way, share in shares.items():
                for step in range(ahead if way == 1 else n - ahead):
                    place = (*at[:d], (at[d] + way * step) % n, *at[d + 1 :])
                    loads[place, (name, way)] += share  # type: ignore[assignment] # a Counter of fractions
            at[d] = end[d]
    busiest: dict[Link, Fraction] = {}
    for (_, link), load in loads.items():
        busiest[link] = max(busiest.get(link, Fraction(0)), Fraction(load))
    return busiest


@pytest.mark.either_end
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_an_all_to_all_loads_links_as_its_pieces_do(sizes: tuple[int, ...]) -> None:
    """On rings of odd and even length, of two, and on tori whose axes are as long or not."""
    mesh, size = grid(sizes), 240
    loads = exchange_loads(mesh.axis_names, mesh, size)
    assert dict(loads.bytes) == {link: load * size for link, load in ways(sizes).items()}
    p = mesh.size
    assert loads.sent == Fraction(p - 1, p) * size * bool(loads)
    assert loads.hops == sum(n // 2 for n in sizes)
    assert loads.stages == 1


@pytest.mark.either_end
@pytest.mark.parametrize(("n", "operands"), [(4, Fraction(1, 2)), (8, Fraction(1)), (16, Fraction(2))])
def test_another_axis_does_not_change_a_link(n: int, operands: Fraction) -> None:
    """An eighth of an operand for each device along the axis of a link, on a ring as on a torus."""
    for sizes in ((n,), (n, n), (n, 2)):
        mesh = grid(sizes)
        assert exchange_loads(mesh.axis_names, mesh, 1).bytes["a", 1] == operands


@pytest.mark.either_end
def test_rings_have_their_steps() -> None:
    """Through a switch a ring of p has p-1 steps, and 2 (p-1) if it goes round twice."""
    mesh = grid((4, 2))
    seven = Fraction(7)
    for name, steps, sent in (("all_gather", 7, seven), ("reduce_scatter", 7, seven / 8), ("psum", 14, seven / 4)):
        loads = ring_loads(mesh.axis_names, mesh, 8, name, 1)
        assert (loads.stages, loads.sent) == (steps, sent)
        assert sum(loads.bytes.values()) == sent
    assert ring_loads(("a",), grid((4,)), 2, "psum", 8).stages == 2  # groups of two
    assert ring_loads(("a",), grid((4,)), 1, "psum", 8) == Loads()


def exchange(x: Array, axes: tuple[str, ...]) -> Array:
    """An all-to-all."""
    return lax.all_to_all(x, axes, 0, 0, tiled=True)


def ragged(x: Array, a: str) -> Array:
    """One that sends a row to each of four."""
    ones, places = jnp.ones(4, jnp.int32), jnp.arange(4, dtype=jnp.int32)
    ones, places, target = (lax.pcast(y, a, to="varying") for y in (ones, places, jnp.zeros((64, 2), x.dtype)))
    return lax.ragged_all_to_all(x, target, places, ones, places, ones, axis_name=a)


def loads_of_only(function: object, arrays: str, mesh: MeshCase) -> Loads:
    """The loads of the one transfer of a function of blocks."""
    assert callable(function)
    (block,) = operations_of(bare(function, parse_arrays(arrays, mesh, "float32"), mesh, mesh.axis_names), mesh)
    (loads,) = [operation.loads for operation in block.body if operation.transfers]
    return loads


def test_traced_exchanges() -> None:
    """Over a tuple of axes, and a ragged one, of whose arrays the first alone is sent."""
    mesh = grid((4, 2))
    assert loads_of_only(exchange, "64@ax8", mesh) == exchange_loads(mesh.axis_names, mesh, 16 * 8 * 4)
    ring = grid((4,))
    assert loads_of_only(ragged, "16@ax2", ring) == exchange_loads(("a",), ring, 4 * 2 * 4)


def test_exchanges_in_groups_are_not_priced() -> None:
    """Within groups pieces do not go as far, and load some links more than others."""
    groups = [[0, 1], [2, 3]]
    program = lambda x, a: lax.all_to_all(x, a, 0, 0, tiled=True, axis_index_groups=groups)  # noqa: E731
    with pytest.raises(Undetermined, match="all_to_all has axis_index_groups: expected none"):
        loads_of_only(program, "16@ax2", grid((4,)))
