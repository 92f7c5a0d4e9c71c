"""The implementations of this project, each against every law: for where `properties/suite` is not installed."""

from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract()
def test_built_in(verify: Verify) -> None:
    """An implementation satisfies every law."""
    verify()
