"""The collectives by hand: every classical algorithm, out of permutes alone.

Each function has the signature of its collective in `shardproof.impl.collectives` and the same meaning. Where one
does not serve what the collective allows, it raises NotImplementedError and says what it expects.
"""

from shardproof.impl.algorithms.reductions import (
    bidirectional_all_reduce,
    bidirectional_reduce_scatter,
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
    ring_all_reduce,
    ring_reduce_scatter,
    torus_all_reduce,
    tree_all_reduce,
)
from shardproof.impl.algorithms.transfers import (
    bidirectional_all_gather,
    bruck_all_gather,
    bruck_all_to_all,
    pairwise_all_to_all,
    ring_all_gather,
    scatter_all_gather_broadcast,
    shorter_way_all_gather,
    tree_broadcast,
    two_phase_all_to_all,
)

__all__ = [
    "bidirectional_all_gather",
    "bidirectional_all_reduce",
    "bidirectional_reduce_scatter",
    "bruck_all_gather",
    "bruck_all_to_all",
    "pairwise_all_to_all",
    "rabenseifner_all_reduce",
    "recursive_doubling_all_reduce",
    "recursive_halving_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter_all_gather_broadcast",
    "shorter_way_all_gather",
    "torus_all_reduce",
    "tree_all_reduce",
    "tree_broadcast",
    "two_phase_all_to_all",
]
