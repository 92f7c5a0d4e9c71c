"""Overlapped products beside an axis that is left to the compiler, with types unchecked: rarely drawn in one run."""

from dataclasses import replace

import pytest

from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.brief import first_of_each, marked
from shardproof.properties.programs.implementations import OVERLAPPED, Implementation
from shardproof.properties.runner.search import find_violation

SMALL = Scope(max_devices=8, available=8)
BESIDE = replace(LAWS["transformation"], chains=Chains(only=("partial_manual", "no_vma")))


@pytest.mark.parametrize("one", marked(OVERLAPPED, first_of_each(OVERLAPPED, lambda one: one.contract)))
def test_what_a_ring_writes_is_laid_out_as_its_blocks(one: Implementation) -> None:
    """An array that begins empty has the layout of no operand, and explicit axes refuse to write a block into it."""
    finding = find_violation(BESIDE, one, engine_named("simulate"), SMALL, max_examples=12, random_seed=1, shrink=False)
    assert finding.violation is None, str(finding.violation)
    assert finding.tally.structures > 0
