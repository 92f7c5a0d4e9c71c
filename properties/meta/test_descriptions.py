"""Contracts follow from the descriptions of their arguments, and cases are laid out as these say."""

from collections.abc import Collection

import pytest

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.meta.drawn import drawn


def cases_of(contract: str, count: int = 40) -> tuple[Case, ...]:
    """Cases of a contract with all of its features."""
    return tuple(drawn(CONTRACTS[contract].cases(Scope(features=CONTRACTS[contract].features)), count))


@pytest.mark.parametrize(
    ("contract", "auxiliary", "replicated"),
    [
        ("masked_mean", {"mask"}, {}),
        ("embedding_lookup", {"ids"}, {}),
        ("projected_cross_entropy", {"labels"}, {"x"}),
        ("pipeline", {}, {"x"}),
        ("all_gather_matmul_lhs", {}, {}),
    ],
)
def test_what_is_the_same_on_all_participants_is_replicated(
    contract: str, auxiliary: Collection[str], replicated: Collection[str]
) -> None:
    """An argument without gradients is auxiliary; others that no `@axis_name` shards are replicated."""
    call = CONTRACTS[contract].call
    assert ({*call.auxiliary}, {*call.replicated}) == ({*auxiliary}, {*replicated})
    for case in cases_of(contract):
        same = [o for name, o in zip(call.operands, case.operands, strict=True) if name in replicated]
        assert all(o.placement.axes.isdisjoint(case.axes) for o in same)


def test_a_mask_is_laid_out_as_its_values() -> None:
    """Arguments of one description that have no gradient correspond to the first; weights of one need not."""
    assert all(
        values.placement == mask.placement for case in cases_of("masked_mean") for values, mask in [case.operands]
    )
    assert all(len({o.placement for o in case.operands[2:]}) == 1 for case in cases_of("ragged_all_to_all"))
    assert any(len({o.placement for o in case.operands}) > 1 for case in cases_of("attention"))


def test_layouts_are_free_unless_they_are_stated() -> None:
    """With `@others` a dimension is sharded as its description says; otherwise blocks may be stacked."""
    for case in cases_of("sequence_parallel_mlp"):
        (positions, batch, features), weights = case.operands[0].placement.spec, case.operands[1].placement.spec
        assert (positions, features, weights) == (case.axes, (), ((), case.axes))
        assert {*batch}.isdisjoint(case.axes)
    assert any(case.operands[0].placement.stacked for case in cases_of("global_norm"))


def test_a_feature_adds_a_description() -> None:
    """Experts are gated only where that is claimed; an array that is whole has the parts of all participants."""
    contract = CONTRACTS["moe_layer"]
    cases = cases_of("moe_layer")
    assert {len(case.operands) for case in cases} == {3, 5}
    assert {len(case.operands) for case in drawn(contract.cases(Scope()), 40)} == {3}
    for case in cases:
        assert case.operands[1].block[1] == case.participants * case.operands[2].block[0]


@pytest.mark.parametrize("contract", ["masked_mean", "projected_cross_entropy", "pipeline"])
def test_something_is_sent_where_arguments_are_shared(contract: str) -> None:
    """There is a lower bound, if every argument that is described as shared has its parts on different participants."""
    least = CONTRACTS[contract].least
    assert least is not None
    assert {least(case) for case in cases_of(contract)} == {0, 1}
