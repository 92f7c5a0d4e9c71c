"""Every law for each implementation of each collective, on each engine."""

from shardproof.properties.runner.contract_tests import of_contract

test_all_reduce = of_contract("all_reduce")
test_all_gather = of_contract("all_gather")
test_all_gather_invariant = of_contract("all_gather_invariant")
test_reduce_scatter = of_contract("reduce_scatter")
test_all_to_all = of_contract("all_to_all")
test_permute = of_contract("permute")
test_ring_shift = of_contract("ring_shift")
test_broadcast = of_contract("broadcast")
test_halo_exchange = of_contract("halo_exchange")
test_ragged_all_to_all = of_contract("ragged_all_to_all")
test_reshard = of_contract("reshard")
test_shard_mean = of_contract("shard_mean")
test_shard_roll = of_contract("shard_roll")
