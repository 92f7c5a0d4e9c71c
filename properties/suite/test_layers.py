"""Every law for each implementation of layers over sequences and stages, on each engine."""

from shardproof.properties.runner.contract_tests import of_contract

test_attention = of_contract("attention")
test_pipeline = of_contract("pipeline")
test_sequence_parallel_mlp = of_contract("sequence_parallel_mlp")
test_normalised_sequence_parallel_mlp = of_contract("normalised_sequence_parallel_mlp")
