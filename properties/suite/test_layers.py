"""Every law for each implementation of layers over sequences and stages, on each engine."""

from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract("attention")
def test_attention(verify: Verify) -> None:
    """Attention over a sharded sequence."""
    verify()


@of_contract("pipeline")
def test_pipeline(verify: Verify) -> None:
    """Microbatches through the layers of all participants, in logical order."""
    verify()


@of_contract("sequence_parallel_mlp")
def test_sequence_parallel_mlp(verify: Verify) -> None:
    """An MLP with a sharded sequence before and after it."""
    verify()
