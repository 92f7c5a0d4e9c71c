"""What is said of planted bugs is what is wrong with them, on a case as it is caught."""

import re

import pytest

from shardproof.properties.meta.brief import first_of_each, marked
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.report.failures.text import diagnosed

CASES = ((1, False), (2, False), (3, True), (7, False), (1, True))
"""Seeds, and whether the case is shrunk: of long sides it cannot be told where one goes wrong, of short ones it is."""

SAID = {
    "attention_causal_by_local_positions": "if queries are masked by their positions in a participant's own piece",
    "attention_of_the_own_part": "the right ones of each participant alone",
    "block_with_a_gradient_everywhere": "if hidden values below zero have a derivative",
    "block_with_relu_of_partial_sums": "if relu is taken of every participant's terms, before they are added up",
    "broadcast_by_multiplication": "NaN: holds NaN where the right value is none",
    "broadcast_from_zero": "the blocks are the right ones for root=0",
    "broadcast_with_a_gradient_of_eight": "lacks the cotangents of",
    "exchange_of_int4_through_uint4": "negative numbers: wrong only where the right value is negative",
    "gather_always_in_front": "the blocks are the right ones for axis=0",
    "gather_by_multiplication": "NaN: holds NaN where the right value is none",
    "gather_float16_through_bfloat16": "all wrong values are numbers of bfloat16",
    "gather_in_mesh_order": r"\(the order of the mesh\)",
    "gather_of_a_hundred_elements": r"\] holds zeros",
    "gather_stops_a_step_early": "lacks the block of",
    "gather_with_an_unreduced_gradient": "(has|lacks) the cotangent of",
    "halo_sides_swapped": r"the blocks are the right ones for before=\d+, after=\d+",
    "halves_overlap_at_the_odd_row": r"has (row \d+|the block of .*) twice",
    "halves_without_the_odd_row": r"lacks (row \d+ of|the block of)",
    "lookup_that_wraps": "if negative ids count from the back of dimension 0 of table",
    "lookup_whose_duplicates_count_once": "zeros wherever it is wrong|has zeros in place of",
    "lookup_without_a_mask": "if every participant clamps ids to its own rows, and adds what it finds",
    "lookup_without_the_base": "if every participant takes ids for numbers of its own rows",
    "loss_in_sixteen_bits": "rounded too much",
    "loss_of_clamped_labels": "if every participant clamps labels to its own classes",
    "loss_of_labels_that_wrap": "if negative labels count from the back of dimension 1 of logits",
    "loss_without_a_maximum": "if no maximum is subtracted from logits",
    "max_ignores_nan": "NaN: wrong only where the right value or an input is NaN",
    "max_of_magnitudes": "with its magnitude in place of each number that goes in",
    "mean_of_integers_is_whole": "the blocks hold the whole number below in place of the right value",
    "mean_by_the_own_number": "the sum is divided by how many elements count on each participant alone",
    "mean_of_means": r"the mean over \(.*\) of what each participant has alone",
    "mean_of_the_masked": "the opposite of mask",
    "mean_over_all_elements": "zeros in values where mask is False, which count",
    "mean_with_a_masked_nan": "NaN: holds NaN where the right value is none",
    "norm_of_blocks_added_up": "if the participants' elements are added up before they are squared",
    "norm_of_norms_added": r"the sum over \(.*\) of what each participant has alone",
    "norm_of_squares_in_sixteen_bits": "overflow: holds infinities where the right value is finite",
    "norm_of_the_own_part": r"1 by the root of \d+ times the right values",
    "norm_over_the_first_axis": "the maximum over",
    "norm_without_its_half": "doubled: .* holds 2 times the right values",
    "product_one_step_long": "twice|2 times",
    "product_with_one_chunk": r"if block j of lhs met rows \(i\) mod",
    "ragged_from_the_start": "zeros in place of input_offsets",
    "ragged_in_mesh_order": "if entries of the lists are counted in the order of the mesh",
    "moe_of_last_senders": "left over: .* holds something wherever it is wrong, where zeros should be",
    "ragged_one_row_short": "what its own output has there, wherever it is wrong",
    "ragged_packed": "if slices lie one behind the other in the operand, whatever input_offsets says",
    "ragged_without_its_output": "zeros in place of output",
    "ring_gather_both_halves_rightward": "has the pieces along dimension",
    "ring_never_corrected": "if sums so far are not corrected when a block has a larger maximum",
    "ring_reduce_counts_the_opposite_twice": "twice",
    "ring_scatter_travels_in_bfloat16": "rounded too much: off by up to",
    "rms_of_the_own_features": "the right ones of each participant alone",
    "rms_whose_scale_learns_slowly": r"1/n of the right values \(n is the length of dimension 0 of x\)",
    "rms_with_a_constant_root": "if the root is a constant in the derivative",
    "rms_with_epsilon_outside": "if epsilon is added to the root, and not under it",
    "scatter_of_float16_is_whole": "the blocks hold its whole part, the fraction cut off in place of the right value",
    "scatter_without_the_last_term": "lacks the block of",
    "shard_mean_of_the_columns": "with x transposed",
    "shard_roll_the_other_way": "the blocks are the right ones for shift=",
    "shift_in_tiles_of_eight": r"at \[.*\] holds its own input, unchanged",
    "shift_one_too_far": "the blocks are the right ones for offset=",
    "sum_against_the_ring": "adds up the wrong terms: of",
    "sum_of_int8_saturates": "overflow: wrong only where the result does not fit into int8",
}


BRIEF = first_of_each(sorted({*SAID} - {"moe_of_last_senders"}), lambda name: MUTANTS[name].contract)
"""Without one that takes many seconds to find."""


@pytest.mark.parametrize("name", marked(sorted(SAID), BRIEF))
def test_a_planted_bug_is_told(name: str) -> None:
    """The diagnosis of a case as it is caught, or of the smallest one, says what the bug does."""
    said = []
    for seed, shrink in CASES:
        violation = hunt(MUTANTS[name], seed=seed, shrink=shrink).violation
        assert violation is not None
        said.append("\n".join(diagnosed(violation)))
        if re.search(SAID[name], said[-1]):
            return
    pytest.fail("\n\n".join(said))
