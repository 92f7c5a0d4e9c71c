"""Losses over 64 participants, and attention round a ring of them, in the interpreter: values, gradients, bytes."""

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.laws.forward import check_value
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.programs.built_in import OPERATIONS
from shardproof.properties.programs.implementations import Implementation

MESH = MeshCase(("dp", "tp"), (4, 16))
SMOOTHED = (("label_smoothing", 0.1), ("ignore_index", 3))

Described = list[tuple[tuple[int, ...], str, bool]]
"""Blocks, dtypes, and whether they vary along both axes."""

LOSSES: dict[str, tuple[Described, tuple[tuple[str, object], ...]]] = {
    "masked_mean": ([((3,), "bfloat16", True), ((3,), "bool", True)], ()),
    "vocab_parallel_cross_entropy": ([((5, 2), "bfloat16", True), ((5,), "int32", False)], SMOOTHED),
    "projected_cross_entropy": (
        [((5, 3), "bfloat16", False), ((3, 2), "bfloat16", True), ((5,), "int32", False)],
        SMOOTHED,
    ),
}
OF_LOSSES = [one for one in OPERATIONS if one.contract.name in LOSSES]
RINGS = [one for one in OPERATIONS if one.contract.name == "attention" and one.name.endswith("ring")]


def case_of(contract: str, described: Described, params: tuple[tuple[str, object], ...]) -> Case:
    """Both axes of the mesh, the last one first, over blocks that vary along both or none."""
    operands = tuple(
        Operand(block, dtype, Placement(((),) * len(block), MESH.axis_names if varies else ()))
        for block, dtype, varies in described
    )
    data = (Data("real", 1), Data("real", 2))
    return Case(CONTRACTS[contract], MESH, MESH.axis_names[::-1], operands, params, data)


@pytest.mark.parametrize("one", OF_LOSSES, ids=str)
def test_over_sixty_four_participants(one: Implementation) -> None:
    """Values and gradients are the oracle's, and what is sent is as the formula says."""
    assert {loss for loss in CONTRACTS if loss.endswith(("mean", "entropy"))} == {*LOSSES}
    case, simulate = case_of(one.contract.name, *LOSSES[one.contract.name]), engine_named("simulate")
    for check in (check_value, check_gradient, check_communication):
        assert check(one, case, simulate).checked > 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("one", RINGS, ids=str)
def test_round_a_ring_of_many(one: Implementation, causal: bool) -> None:
    """Over 64 participants every query's result is the oracle's."""
    case = case_of("attention", [((2, 1, 1), "float32", True)] * 3, (("causal", causal),))
    assert check_value(one, case, engine_named("simulate")).checked > 0
