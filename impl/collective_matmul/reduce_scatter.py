"""Matrix products that scatter their sum, overlapped: every term is computed while the sum that it goes to travels.

p is the number of participants; a piece is one participant's part of the result. Source of the idea: Wang et al., 2023
(doi 10.1145/3567955.3567959). All of them: `A[…, M, K_Y] W[K_Y, N] -> [M_Y, N]` (dimension 0) or
`[M, N_Y]` (dimension 1), typed varying, over one axis or a tuple of axes in any order. A piece is cut in half in the
dimension that is scattered; an odd row goes with the first half, and a half without rows is not sent.

`sums` says in which dtype sums of 16-bit floats travel: `"accumulator"`, in float32, rounded once, where they
arrive, an error of half a unit in the last place beside that of float32; or `"operands"`, in half the bytes, rounded at
every one of p - 1 hops: an error of at most p - 1 units of roundoff more, times the sum of the absolute values of the
terms (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 4.2).

A loop of up to `UNROLLED` participants is unrolled where it is compiled.
"""

from collections.abc import Callable

import jax.numpy as jnp

from shardproof.impl.arguments import AxisName, check_axis_count
from shardproof.impl.collective_matmul import paired, reduced
from shardproof.impl.collective_matmul.operands import Axes, Left, Result, Right, check_scattered
from shardproof.impl.collective_matmul.reduced import Sums, check_sums

Algorithm = Callable[[reduced.Reducing, Axes], Result]


def ring_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """Sums go round the ring: p - 1 permutes of a piece.

    Best where a link takes as long as the products beside it: of all forms this one alone exposes nothing then, forward
    and with its gradient.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, one that does not divide by the number of participants, or `sums` that is neither.
    """
    return _scatter("ring", reduced.ring, lhs, rhs, axis_name, scatter_dimension, sums)


def alternating_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "operands"
) -> Result:
    """Half sums go each way, in turns: a half's product is computed, added and rounded while the other half travels.

    Best in time, as XLA:TPU schedules it, at 1024x8192 by 8192x2048 over 4 participants of v4, v5e and v5p, and at
    8192x16384 by 16384x8192 over 4 of v4, v5e and v6e: it makes one kernel of a product, an addition and a rounding,
    and takes 1.03 times the unsharded product on v5e there (1.42 with `sums="accumulator"`).

    Raises:
        ValueError: as `ring_matmul_reduce_scatter`.
    """
    return _scatter("alternating", reduced.alternating, lhs, rhs, axis_name, scatter_dimension, sums)


def paired_matmul_reduce_scatter(lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0) -> Result:
    """Sums in two parts each way, in pairs that take turns; backward the cotangent is gathered once. No forward mode.

    Sums of 16-bit floats travel in 16 bits. Best in time for large products, but on v4 and v6e, and in the gradient,
    and exposes nothing where links take as long as products, of pieces of four rows and more: at 8192 cubed over 4
    participants of v5e 1.07 times the unsharded product, as XLA:TPU schedules it, and its gradient 1.15 times two; at
    8192x16384 by 16384x8192 over 8 of them 1.07 times, where `alternating` takes 1.51.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, or one that does not divide by the number of participants.
    """
    axes = check_scattered("paired_matmul_reduce_scatter", lhs, rhs, axis_name, scatter_dimension)
    return paired.scattered(lhs, rhs, axes, scatter_dimension)


def shorter_way_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """Two sums come from either side: p - 1 permutes of a piece in floor(p/2) steps.

    Best in latency: the fewest steps.

    Raises:
        ValueError: as `ring_matmul_reduce_scatter`.
    """
    return _scatter("shorter_way", reduced.shorter_way, lhs, rhs, axis_name, scatter_dimension, sums)


def nested_matmul_reduce_scatter(
    lhs: Left, rhs: Right, axis_name: AxisName, *, scatter_dimension: int = 0, sums: Sums = "accumulator"
) -> Result:
    """A ring over the tuple's first axis of rings over its second: p - 1 permutes, each along one axis.

    Best where the first axis is slow: a link of it carries a - 1 pieces of ab, in a ring over both ab - 1.

    Raises:
        ValueError: for an unknown axis, operands whose contracted sizes differ, a dimension that is
            neither 0 nor 1, one that does not divide by the number of participants, or `sums` that is neither.
        NotImplementedError: unless the axis tuple has two axes.
    """
    return _scatter("nested", reduced.nested, lhs, rhs, axis_name, scatter_dimension, sums)


def _scatter(
    way: str, algorithm: Algorithm, lhs: Left, rhs: Right, axis_name: AxisName, scatter_dimension: int, sums: Sums
) -> Result:
    function = f"{way}_matmul_reduce_scatter"
    axes = check_scattered(function, lhs, rhs, axis_name, scatter_dimension)
    if algorithm is reduced.nested:
        check_axis_count(function, axes, (2,))
    check_sums(function, sums)
    piece = algorithm(reduced.scattered(lhs, rhs, axes, scatter_dimension, sums), axes)
    return piece.astype(jnp.result_type(lhs, rhs))
