"""Every law for each implementation of each collective, on each engine."""

from shardproof.properties.runner.contract_tests import Verify, of_contract


@of_contract("all_reduce")
def test_all_reduce(verify: Verify) -> None:
    """Every participant gets the sum, mean, maximum or minimum of the blocks of all."""
    verify()


@of_contract("all_gather")
def test_all_gather(verify: Verify) -> None:
    """Every participant gets the blocks of all, in logical order."""
    verify()


@of_contract("all_gather_invariant")
def test_all_gather_invariant(verify: Verify) -> None:
    """Every participant gets the blocks of all, typed the same on all of them."""
    verify()


@of_contract("reduce_scatter")
def test_reduce_scatter(verify: Verify) -> None:
    """Every participant gets its part of the sum of all blocks."""
    verify()


@of_contract("all_to_all")
def test_all_to_all(verify: Verify) -> None:
    """Every participant sends a part of its block to each other, and gets one from each."""
    verify()


@of_contract("permute")
def test_permute(verify: Verify) -> None:
    """Blocks go along the pairs of a permutation, and where none comes there are zeros."""
    verify()


@of_contract("ring_shift")
def test_ring_shift(verify: Verify) -> None:
    """Every block goes as many participants on, round the ring."""
    verify()


@of_contract("broadcast")
def test_broadcast(verify: Verify) -> None:
    """Every participant gets the block of the root."""
    verify()


@of_contract("halo_exchange")
def test_halo_exchange(verify: Verify) -> None:
    """Every block gets the edges of its neighbours attached, round the ring."""
    verify()


@of_contract("ragged_all_to_all")
def test_ragged_all_to_all(verify: Verify) -> None:
    """Slices of any length go where their offsets say."""
    verify()


@of_contract("reshard")
def test_reshard(verify: Verify) -> None:
    """A global array is the same in another layout."""
    verify()
