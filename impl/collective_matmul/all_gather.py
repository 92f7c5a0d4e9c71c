"""Matrix products that gather an operand, overlapped: each block is multiplied while the next travels.

p is the number of participants. Source of the idea: Wang et al., "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models", 2023 (doi 10.1145/3567955.3567959). Sums of 16-bit floats
are kept in float32 until all blocks have come by, and rounded once. A block is cut in half in the dimension
that is gathered; an odd row goes with the first half, and a half without rows is not sent.

What each form is the best in, `python -m shardproof.properties.benchmark survivors` shows. Shapes are those of whole
products in bfloat16, over 4 participants of v5e, as XLA:TPU schedules them. Loops of up to `UNROLLED` participants are
unrolled when compiled.

All of them are typed varying, over one axis or a tuple of axes in any order. Backward, cotangents of the
gathered operand go round the same rings, in that operand's dtype, in which JAX adds up cotangents.

All raise ValueError for an unknown axis, and for operands whose contracted sizes differ.
"""

from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul import chunked, gathered, paired
from shardproof.impl.collective_matmul.gathered import COLUMNS_OF_LHS, ROWS_OF_LHS, ROWS_OF_RHS
from shardproof.impl.collective_matmul.operands import Left, Result, Right


def ring_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    return COLUMNS_OF_LHS.along("ring", gathered.ring, lhs, rhs, axis_name)


def bidirectional_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    return COLUMNS_OF_LHS.along("bidirectional", gathered.bidirectional, lhs, rhs, axis_name)


def shorter_way_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Whole blocks of A come the shorter way round: p - 1 permutes in floor(p/2) steps.

    Best where products take longer than transfers: the fastest at 8192x8192 by 8192x16384. The fewest steps.
    """
    return COLUMNS_OF_LHS.along("shorter_way", gathered.shorter_way, lhs, rhs, axis_name)


def chunked_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Eight chunks of rows, each gathered whole, the shorter way, while the one before is multiplied: 8 (p - 1) permutes
    of 15 rows or more. Among more than 8 participants as `shorter_way`.

    Best where sums in memory take longer than products: at 8192x8192 by 8192x16384 the fastest over 4 of v4, v5p, v6e
    and tpu7x; on v5e 1.10 times the product, where `shorter_way` takes 1.01.
    """
    axes = COLUMNS_OF_LHS.check("chunked_all_gather_matmul_lhs_contracting", lhs, rhs, axis_name)
    return chunked.by_rows(lhs, rhs, axes)


def paired_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    Forward as `shorter_way`; backward both gradients beside one another, as `paired` says. No forward mode.

    Best in the gradient: at 8192x8192 by 8192x16384 1.05 times the unsharded products.
    """
    axes = COLUMNS_OF_LHS.check("paired_all_gather_matmul_lhs_contracting", lhs, rhs, axis_name)
    return paired.columns_of_lhs(lhs, rhs, axes)


def nested_all_gather_matmul_lhs_contracting(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M, K_Y] W[K, N_Z] -> [M, N_Z]`.

    A ring over the tuple's first axis of rings over its second: p - 1 permutes, each along one axis.

    Best where the first axis is slow: a link of it carries a - 1 blocks of ab, in a ring over both ab - 1.

    Raises:
        NotImplementedError: unless the axis tuple has two axes.
    """
    return COLUMNS_OF_LHS.along("nested", gathered.nested, lhs, rhs, axis_name)


def ring_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Blocks of A go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    return ROWS_OF_LHS.along("ring", gathered.ring, lhs, rhs, axis_name)


def bidirectional_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way round the ring: p - 1 steps of two permutes, and of two products.

    Best where the links are the limit: the fastest at 8192 cubed.
    """
    return ROWS_OF_LHS.along("bidirectional", gathered.bidirectional, lhs, rhs, axis_name)


def shorter_way_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Whole blocks of A come the shorter way round: p - 1 permutes in floor(p/2) steps.

    Best where products take longer than transfers: the fastest at 1024x2048 by 2048x8192. The fewest steps.
    """
    return ROWS_OF_LHS.along("shorter_way", gathered.shorter_way, lhs, rhs, axis_name)


def joined_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Half blocks of A go each way, and the two that arrive are joined: p - 1 steps of one product of full size.

    Best where the links are the limit and products are small: the fastest at 1024x2048 by 2048x8192 on v4.
    """
    return ROWS_OF_LHS.along("joined", gathered.joined, lhs, rhs, axis_name)


def paired_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    Forward as `shorter_way`; backward both gradients beside one another, as `paired` says. No forward mode.

    Best in the gradient: at 8192x8192 by 8192x16384 1.13 times the unsharded products.
    """
    axes = ROWS_OF_LHS.check("paired_all_gather_matmul_lhs", lhs, rhs, axis_name)
    return paired.rows_of_lhs(lhs, rhs, axes)


def nested_all_gather_matmul_lhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Y, K] W[K, N_Z] -> [M, N_Z]`.

    A ring over the tuple's first axis of rings over its second: p - 1 permutes, each along one axis.

    Best where the first axis is slow: a link of it carries a - 1 blocks of ab, in a ring over both ab - 1.

    Raises:
        NotImplementedError: unless the axis tuple has two axes.
    """
    return ROWS_OF_LHS.along("nested", gathered.nested, lhs, rhs, axis_name)


def ring_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Blocks of W go round the ring: p - 1 permutes of a block.

    Best where links carry one transfer at a time: the fastest on H100 by timelines.
    """
    return ROWS_OF_RHS.along("ring", gathered.ring, lhs, rhs, axis_name)


def shorter_way_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Whole blocks of W come the shorter way round: p - 1 permutes in floor(p/2) steps.

    Best in latency: the fewest steps.
    """
    return ROWS_OF_RHS.along("shorter_way", gathered.shorter_way, lhs, rhs, axis_name)


def joined_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Half blocks of W go each way, and the two that arrive are joined: p - 1 steps of one product of full size.

    Best where the links are the limit: the fastest at 8192 cubed, since halves of W make small products.
    """
    return ROWS_OF_RHS.along("joined", gathered.joined, lhs, rhs, axis_name)


def paired_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    Forward as `joined`; backward both gradients beside one another, as `paired` says. No forward mode.

    Best in the gradient: at 8192x8192 by 8192x16384 1.87 times the unsharded products, where links that are full all
    the time would take 1.68.
    """
    axes = ROWS_OF_RHS.check("paired_all_gather_matmul_rhs", lhs, rhs, axis_name)
    return paired.rows_of_rhs(lhs, rhs, axes)


def nested_all_gather_matmul_rhs(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """`A[…, M_Z, K] W[K_Y, N] -> [M_Z, N]`.

    A ring over the tuple's first axis of rings over its second: p - 1 permutes, each along one axis.

    Best where the first axis is slow: a link of it carries a - 1 blocks of ab, in a ring over both ab - 1.

    Raises:
        NotImplementedError: unless the axis tuple has two axes.
    """
    return ROWS_OF_RHS.along("nested", gathered.nested, lhs, rhs, axis_name)
