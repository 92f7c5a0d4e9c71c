"""The collectives by hand: classical algorithms, out of permutes alone.

Each function has the signature of its collective in `shardproof.impl.collectives` and the same meaning. Where one
does not serve what the collective allows, it raises NotImplementedError and says what it expects.
"""

from shardproof.impl.algorithms.reductions import (
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
    recursive_halving_reduce_scatter,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from shardproof.impl.algorithms.transfers import (
    bruck_all_gather,
    bruck_all_to_all,
    pairwise_all_to_all,
    ring_all_gather,
    scatter_all_gather_broadcast,
    tree_broadcast,
)

__all__ = [
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
    "tree_all_reduce",
    "tree_broadcast",
]
