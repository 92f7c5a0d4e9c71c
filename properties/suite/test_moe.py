"""Every law for each dispatch of a mixture of experts and each loss of its router, on each engine."""

from shardproof.impl import moe
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract("moe_layer")
def test_moe_layer(verify: Verify) -> None:
    """Tokens go to the experts that their router chooses, and come back weighed."""
    verify()


@of_contract("load_balancing_loss")
def test_load_balancing_loss(verify: Verify) -> None:
    """How unevenly a router spreads tokens over experts."""
    verify()


@of_contract("router_z_loss")
def test_router_z_loss(verify: Verify) -> None:
    """How large the logits of a router are."""
    verify()


def test_all_dispatches_are_here() -> None:
    """Every dispatch of the package is an implementation of a contract."""
    checked = {claim.function for other in CONTRACTS.values() for claim in other.implementations.values()}
    assert {function for name, function in vars(moe).items() if name.endswith("_moe")} <= checked
