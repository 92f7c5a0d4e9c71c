"""Few drawn cases are such that nothing can go wrong in them, and a run says how many."""

import dataclasses

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.report.report import total
from shardproof.properties.runner.tally import Tally

CASES = 60


@pytest.mark.lengthy
@pytest.mark.parametrize("name", CONTRACTS)
def test_few_cases_are_trivial(name: str) -> None:
    """With all features that a contract has, some of which are empty blocks."""
    cases = drawn(CONTRACTS[name].cases(Scope(features=CONTRACTS[name].features)), CASES)
    assert sum(case.trivial for case in cases) < len(cases) / 2


def shift(sizes: tuple[int, int], rows: int, offset: int, over: str | tuple[str, ...] = "tp") -> Case:
    """A shift on a mesh of two axes."""
    operand = Operand((rows, 2), "float32", Placement((("tp",), ())))
    return Case(
        CONTRACTS["ring_shift"], MeshCase(("dp", "tp"), sizes), over, (operand,), (("offset", offset), ("wrap", True))
    )


@pytest.mark.parametrize(
    ("case", "trivial"),
    [
        (shift((2, 3), 2, 1), False),
        (shift((2, 3), 2, -4), False),
        (shift((2, 3), 2, 6), True),
        (shift((2, 3), 0, 1), True),
        (shift((2, 1), 2, 1), True),
        (shift((2, 1), 2, 1, ("tp", "dp")), False),
        (dataclasses.replace(shift((2, 3), 2, 1, "ep"), forbidden="axis_name"), False),
    ],
    ids=["moved", "moved_back", "whole_turns", "empty", "alone", "alone_on_one_axis", "forbidden"],
)
def test_what_is_trivial(case: Case, trivial: bool) -> None:
    """A shift by whole turns, of an empty block, or along one device; no other."""
    assert case.trivial == trivial


def test_a_run_says_how_many_were() -> None:
    """The sentence of a run has their share."""
    tally = Tally("ring_shift", "one", "value")
    for offset in (1, 3, 2, 4):
        tally.count(shift((2, 3), 2, offset), 1)
    assert total([tally]).endswith("and 25% trivial")
