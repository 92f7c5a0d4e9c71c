"""Blocks and sums that come the shorter way share links: which of them is sent first."""

from collections.abc import Sequence

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts.products import product_case
from shardproof.properties.performance.choosing import scheduled
from shardproof.properties.performance.operations import Operation
from shardproof.properties.programs.implementations import OVERLAPPED

GATHERING = ("all_gather_matmul_lhs_contracting", "all_gather_matmul_lhs", "all_gather_matmul_rhs")


def needed(operations: Sequence[Operation], place: int) -> set[int]:
    """The places of all operations that one needs, directly or not."""
    found, left = set[int](), [place]
    while left:
        new = operations[left.pop()].reads - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("contract", GATHERING)
@pytest.mark.parametrize(("p", "counts"), [(2, [0]), (3, [2, 2]), (4, [0, 2]), (5, [4, 4]), (8, [0, 6])])
def test_the_first_sums_are_sent_behind_the_blocks_from_both_sides(contract: str, p: int, counts: list[int]) -> None:
    """So many transfers come before the first sum each way; of an even number, before that of the one opposite."""
    case = product_case(contract, MeshCase(("x",), (p,)), "x", (4, 4, 4))
    one = next(one for one in OVERLAPPED if one.name == f"paired_{contract}")
    *_, backward = scheduled(one, case, gradient=True)
    operations = backward.body
    products = {place for place, one in enumerate(operations) if one.flops}
    sums = {place for place, one in enumerate(operations) if one.transfers and needed(operations, place) & products}
    first = [place for place in sums if not needed(operations, place) & sums]
    blocks = [sum(operations[read].transfers for read in needed(operations, place)) for place in first]
    assert sorted(blocks) == counts
