"""Matrix products of sharded operands: naive forms, and forms that overlap communication with computation.

The left operand may have leading batch dimensions. Sums of 16-bit floats are carried in float32 across devices as well,
but where a function says that they travel in 16 bits.
"""

from shardproof.impl.collective_matmul.all_gather import (
    bidirectional_all_gather_matmul_lhs,
    bidirectional_all_gather_matmul_lhs_contracting,
    chunked_all_gather_matmul_lhs_contracting,
    joined_all_gather_matmul_rhs,
    ring_all_gather_matmul_lhs,
    ring_all_gather_matmul_lhs_contracting,
    ring_all_gather_matmul_rhs,
)
from shardproof.impl.collective_matmul.naive import (
    all_gather_matmul_lhs,
    all_gather_matmul_lhs_contracting,
    all_gather_matmul_rhs,
    matmul_all_reduce,
    matmul_reduce_scatter,
    transformer_block,
)
from shardproof.impl.collective_matmul.paired import (
    paired_all_gather_matmul_lhs,
    paired_all_gather_matmul_lhs_contracting,
    paired_all_gather_matmul_rhs,
    paired_matmul_reduce_scatter,
    paired_transformer_block,
)
from shardproof.impl.collective_matmul.reduce_scatter import (
    alternating_matmul_all_reduce,
    alternating_matmul_reduce_scatter,
    alternating_transformer_block,
    overlapped_transformer_block,
    ring_matmul_reduce_scatter,
    scattered_matmul_all_reduce,
)
from shardproof.impl.rings import align_types, multiply

__all__ = [
    "align_types",
    "all_gather_matmul_lhs",
    "all_gather_matmul_lhs_contracting",
    "all_gather_matmul_rhs",
    "alternating_matmul_all_reduce",
    "alternating_matmul_reduce_scatter",
    "alternating_transformer_block",
    "bidirectional_all_gather_matmul_lhs",
    "bidirectional_all_gather_matmul_lhs_contracting",
    "chunked_all_gather_matmul_lhs_contracting",
    "joined_all_gather_matmul_rhs",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "multiply",
    "overlapped_transformer_block",
    "paired_all_gather_matmul_lhs",
    "paired_all_gather_matmul_lhs_contracting",
    "paired_all_gather_matmul_rhs",
    "paired_matmul_reduce_scatter",
    "paired_transformer_block",
    "ring_all_gather_matmul_lhs",
    "ring_all_gather_matmul_lhs_contracting",
    "ring_all_gather_matmul_rhs",
    "ring_matmul_reduce_scatter",
    "scattered_matmul_all_reduce",
    "transformer_block",
]
