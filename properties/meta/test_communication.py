"""What communication costs: formulas of algorithms against the literature and against what any algorithm needs."""

import math
from collections.abc import Mapping
from fractions import Fraction

import pytest
from shardproof.properties.programs.costs import HALVING

from shardproof.oracles import algorithms as formulas
from shardproof.oracles.communication import Cost, built_in, built_in_backward, lower_bound
from shardproof.properties.meta.test_algorithms import AXES, SIZES, serves
from shardproof.properties.programs.implementations import ALGORITHMS

CONTRACT = {i.name: i.contract for i in ALGORITHMS}
BOTH_LINKS = (*HALVING, "bidirectional_all_reduce", "shorter_way_all_gather")
"""Algorithms that send to two participants in one step."""


def formula_of(name: str, sizes: tuple[int, ...], n: int) -> Cost:
    """The formula's cost of n bytes, where pieces that are halved have as many rows as bytes."""
    p = math.prod(sizes)
    extra: Mapping[str, int] = {"rows": n // p} if name in HALVING else {}
    cost: Cost = getattr(formulas, name)(sizes if name in AXES else p, n, **extra)
    return cost


@pytest.mark.parametrize("name", CONTRACT)
def test_no_formula_is_below_the_lower_bound(name: str) -> None:
    """Steps and bytes of every algorithm are at least what any needs (Chan et al. 2007)."""
    tried = 0
    for sizes in [*SIZES, (1,), (1, 4), (64,), (127,), (8, 16), (4, 4, 4)]:
        p = math.prod(sizes)
        for n in (0, p, 3 * p, 1000 * p):
            if serves(name, sizes):
                cost = formula_of(name, sizes, n)
                steps, least = lower_bound(CONTRACT[name], p, n, ports=1 + (name in BOTH_LINKS))
                assert cost.steps is not None
                assert cost.steps >= steps, (sizes, n)
                assert cost.total_bytes >= least, (sizes, n)
                tried += 1
    assert tried >= 20


@pytest.mark.parametrize(
    ("name", "sizes", "permutes", "steps", "sent"),
    [  # of n = 960 bytes
        ("ring_all_gather", (5,), 4, 4, 768),
        ("bidirectional_all_gather", (5,), 8, 4, 768),
        ("shorter_way_all_gather", (5,), 4, 2, 768),
        ("shorter_way_all_gather", (6,), 5, 3, 800),
        ("recursive_doubling_all_gather", (8,), 3, 3, 840),
        ("bruck_all_gather", (6,), 3, 3, 800),
        ("ring_reduce_scatter", (6,), 5, 5, 800),
        ("bidirectional_reduce_scatter", (6,), 10, 5, 800),
        ("recursive_halving_reduce_scatter", (4,), 2, 2, 720),
        ("ring_all_reduce", (6,), 10, 10, 1600),
        ("bidirectional_all_reduce", (6,), 20, 10, 1600),
        ("rabenseifner_all_reduce", (8,), 6, 6, 1680),
        ("recursive_doubling_all_reduce", (8,), 3, 3, 2880),
        ("tree_all_reduce", (6,), 6, 6, 5760),
        ("torus_all_reduce", (4, 3), 10, 10, 1760),
        ("hierarchical_all_reduce", (4, 3), 10, 10, 1760),
        ("hierarchical_all_reduce", (2, 2, 4), 10, 10, 1800),
        ("pairwise_all_to_all", (6,), 5, 5, 800),
        ("bruck_all_to_all", (6,), 3, 3, 7 * 160),
        ("two_phase_all_to_all", (4, 3), 5, 5, 720 + 640),
        ("tree_broadcast", (5,), 3, 3, 2880),
        ("scatter_all_gather_broadcast", (5,), 7, 7, 1536),
    ],
)
def test_formulas_are_those_of_the_literature(
    name: str, sizes: tuple[int, ...], permutes: int, steps: int, sent: int
) -> None:
    """Worked examples: permutes, steps and bytes, where all divides."""
    assert formula_of(name, sizes, 960) == Cost.permutes(permutes, sent, steps)


@pytest.mark.parametrize(
    ("contract", "p", "n", "ports", "bound"),
    [
        ("all_gather", 5, 100, 1, (3, 80)),
        ("all_gather", 5, 100, 2, (2, 80)),
        ("all_gather_invariant", 8, 80, 1, (3, 70)),
        ("reduce_scatter", 4, 100, 1, (2, 75)),
        ("all_reduce", 4, 102, 1, (2, 153)),
        ("all_reduce", 3, 4, 1, (2, Fraction(16, 3))),
        ("all_to_all", 2, 100, 1, (1, 50)),
        ("broadcast", 9, 100, 1, (4, 100)),
        ("broadcast", 1, 100, 1, (0, 0)),
        ("permute", 4, 100, 1, (0, 0)),
        ("ring_shift", 4, 100, 1, (0, 0)),
    ],
)
def test_lower_bounds(contract: str, p: int, n: int, ports: int, bound: tuple[int, Fraction]) -> None:
    """Worked examples of the bounds."""
    assert lower_bound(contract, p, n, ports=ports) == bound


def test_formulas_of_what_is_not_served() -> None:
    """A formula of powers of two, and a cost of an unknown contract, are not defined elsewhere."""
    with pytest.raises(ValueError, match="p=6: expected a power of two"):
        formulas.rabenseifner_all_reduce(6, 12)
    for function in (
        lambda: built_in("gather", 1),
        lambda: built_in_backward("gather", 2, 1),
        lambda: lower_bound("gather", 2, 1),
    ):
        with pytest.raises(ValueError, match="contract='gather': expected one of all_gather, all_gather_invariant"):
            function()


def test_costs_add_up() -> None:
    """Costs add and multiply kind by kind, and their steps where all are known."""
    cost = Cost.permutes(2, 10) + Cost.of({"all_reduce": 1}, {"all_reduce": 4}, 1)
    assert 3 * cost == cost * 3 == cost + cost + cost
    assert str(3 * cost) == "all_reduce=3 (12 bytes), permute=6 (30 bytes)"
    assert (3 * cost).steps == 9
    assert (2 * Cost.of({"all_reduce": 1}, {"all_reduce": 4})).steps is None
