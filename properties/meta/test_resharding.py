"""Which changes of layout are those that XLA gets wrong: of all that there are over two axes."""

from itertools import permutations

import pytest

from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.resharding import Resharding, in_front

pytestmark = pytest.mark.either_end

LAYOUTS: list[Entries] = [
    (order[:cut], order[cut:]) for k in range(3) for order in permutations("ab", k) for cut in range(k + 1)
]
"""Every layout of a matrix over axes `a` and `b`."""

ABORTING: set[tuple[Entries, Entries]] = {
    # as seen with JAX 0.12 on 3 x 2 devices, each in a process of its own; and the same with a and b exchanged
    (((), ("a",)), (("a", "b"), ())),
    (((), ("a", "b")), (("a",), ("b",))),
    ((("a",), ()), ((), ("a", "b"))),
    ((("a",), ("b",)), ((), ("a", "b"))),
    ((("a",), ("b",)), (("b", "a"), ())),
    ((("a", "b"), ()), (("b",), ("a",))),
}


def exchanged(entries: Entries) -> Entries:
    """The layout with a for b, and b for a."""
    return tuple(tuple("ab"[name == "a"] for name in axes) for axes in entries)


def test_what_aborts_is_suspected_and_nothing_else() -> None:
    """Of 121 changes twelve end the process."""
    found = {(held, wanted) for held in LAYOUTS for wanted in LAYOUTS if in_front(held, wanted)}
    assert len(LAYOUTS) ** 2 == 121
    assert found == ABORTING | {(exchanged(held), exchanged(wanted)) for held, wanted in ABORTING}


@pytest.mark.parametrize(("sizes", "expected"), [((2, 2), 4), ((2, 3), 0), ((1, 2), 0)])
def test_what_goes_over_another_axis(sizes: tuple[int, int], expected: int) -> None:
    """One axis of two gives way to another one in another dimension: with others a gather would send more."""
    mesh = MeshCase(("a", "b"), sizes)
    cases = [Resharding(mesh, (6, 6), held, wanted) for held in LAYOUTS for wanted in LAYOUTS]
    assert sum(case.over_another_axis for case in cases) == expected


THREE: list[Entries] = [
    (order[:i], order[i:j], order[j:])
    for k in range(3)
    for order in permutations("ab", k)
    for i in range(k + 1)
    for j in range(i, k + 1)
]
"""Every layout of three dimensions over axes `a` and `b`."""


def test_what_goes_over_another_axis_in_three_dimensions() -> None:
    """Of 361 changes sixteen send more than a gather, on both ends: twelve from one dimension, four from two."""
    mesh = MeshCase(("a", "b"), (2, 2))
    cases = [Resharding(mesh, (8, 8, 8), held, wanted) for held in THREE for wanted in THREE]
    assert len(cases) == 361
    found = [case for case in cases if case.over_another_axis]
    assert len(found) == 16
    assert sorted((case.held, case.wanted) for case in found if sum(map(len, case.held)) == 2) == [
        (((), ("a",), ("b",)), (("a",), (), ())),
        (((), ("b",), ("a",)), (("b",), (), ())),
        ((("a",), ("b",), ()), ((), (), ("a",))),
        ((("b",), ("a",), ()), ((), (), ("b",))),
    ]
