"""Every law for each implementation of losses, means, norms and lookups, on each engine."""

from shardproof.properties.runner.contract_tests import of_contract

test_vocab_parallel_cross_entropy = of_contract("vocab_parallel_cross_entropy")
test_projected_cross_entropy = of_contract("projected_cross_entropy")
test_embedding_lookup = of_contract("embedding_lookup")
test_masked_mean = of_contract("masked_mean")
test_weighted_mean = of_contract("weighted_mean")
test_global_norm = of_contract("global_norm")
test_rms_norm = of_contract("rms_norm")
test_mlp_loss = of_contract("mlp_loss")
