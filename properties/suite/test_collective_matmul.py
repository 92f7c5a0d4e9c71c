"""Every law for each implementation of each matrix product that communicates, on each engine."""

from shardproof.properties.runner.contract_tests import of_contract

test_all_gather_matmul_lhs_contracting = of_contract("all_gather_matmul_lhs_contracting")
test_all_gather_matmul_lhs = of_contract("all_gather_matmul_lhs")
test_all_gather_matmul_rhs = of_contract("all_gather_matmul_rhs")
test_matmul_reduce_scatter = of_contract("matmul_reduce_scatter")
test_matmul_all_reduce = of_contract("matmul_all_reduce")
test_transformer_block = of_contract("transformer_block")
test_sharded_matmul = of_contract("sharded_matmul")
test_two_matmuls = of_contract("two_matmuls")
