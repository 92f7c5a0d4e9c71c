"""Every law for each implementation of each matrix product that communicates, on each engine."""

from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract("all_gather_matmul_lhs_contracting")
def test_all_gather_matmul_lhs_contracting(verify: Verify) -> None:
    """The left operand, sharded along the contracted dimension, is gathered and multiplied."""
    verify()


@of_contract("all_gather_matmul_lhs")
def test_all_gather_matmul_lhs(verify: Verify) -> None:
    """The left operand, sharded along its rows, is gathered and multiplied."""
    verify()


@of_contract("all_gather_matmul_rhs")
def test_all_gather_matmul_rhs(verify: Verify) -> None:
    """The right operand, sharded along the contracted dimension, is gathered and multiplied."""
    verify()


@of_contract("matmul_reduce_scatter")
def test_matmul_reduce_scatter(verify: Verify) -> None:
    """Partial products are added up, and each participant gets its part."""
    verify()


@of_contract("matmul_all_reduce")
def test_matmul_all_reduce(verify: Verify) -> None:
    """Partial products are added up, and every participant gets the sum."""
    verify()


@of_contract("transformer_block")
def test_transformer_block(verify: Verify) -> None:
    """Two products with a relu between them, gathered before and scattered after."""
    verify()


@of_contract("sharded_matmul")
def test_sharded_matmul(verify: Verify) -> None:
    """A product of global arrays in any layouts."""
    verify()


@of_contract("two_matmuls")
def test_two_matmuls(verify: Verify) -> None:
    """Two products of global arrays, one after the other."""
    verify()
