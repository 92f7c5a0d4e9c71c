"""Every law for each dispatch of a mixture of experts and each loss of its router, on each engine."""

from shardproof.impl import moe
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.runner.contract_tests import of_contract

test_moe_layer = of_contract("moe_layer")
test_gated_moe_layer = of_contract("gated_moe_layer")
test_global_moe_layer = of_contract("global_moe_layer")
test_expert_choice_layer = of_contract("expert_choice_layer")
test_load_balancing_loss = of_contract("load_balancing_loss")
test_router_z_loss = of_contract("router_z_loss")
test_shard_load_balancing_loss = of_contract("shard_load_balancing_loss")
test_shard_router_z_loss = of_contract("shard_router_z_loss")


def test_all_dispatches_are_here() -> None:
    """Every dispatch of the package is an implementation of a contract."""
    checked = {claim.function for other in CONTRACTS.values() for claim in other.implementations.values()}
    assert {function for name, function in vars(moe).items() if name.endswith("_moe")} <= checked
