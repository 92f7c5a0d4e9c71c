"""Every law for each implementation of losses, means, norms and lookups, on each engine."""

from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract("vocab_parallel_cross_entropy")
def test_vocab_parallel_cross_entropy(verify: Verify) -> None:
    """The loss of each token, with classes sharded."""
    verify()


@of_contract("projected_cross_entropy")
def test_projected_cross_entropy(verify: Verify) -> None:
    """A projection and the loss of each token, with classes sharded."""
    verify()


@of_contract("embedding_lookup")
def test_embedding_lookup(verify: Verify) -> None:
    """The rows of a sharded table, with zeros for what is not in it."""
    verify()


@of_contract("masked_mean")
def test_masked_mean(verify: Verify) -> None:
    """The mean over all unmasked elements of all participants."""
    verify()


@of_contract("global_norm")
def test_global_norm(verify: Verify) -> None:
    """The square root of the sum of all squares."""
    verify()


@of_contract("rms_norm")
def test_rms_norm(verify: Verify) -> None:
    """Rows over the root of their mean squares, with features sharded."""
    verify()


@of_contract("mlp_loss")
def test_mlp_loss(verify: Verify) -> None:
    """The loss of a multilayer perceptron in any parallelisation."""
    verify()
