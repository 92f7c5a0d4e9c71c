"""Matrix products that add up on every participant, overlapped: `A[…, M, K_Y] W[K_Y, N] -> [M, N]`.

p is the number of participants. Over one axis or a tuple of axes in any order. Sums of 16-bit floats are kept in
float32 and rounded once; where a ring gathers them back they are rounded before.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms import all_gather, pieces
from shardproof.impl.arguments import AxisName
from shardproof.impl.collective_matmul import reduced
from shardproof.impl.collective_matmul.operands import Axes, Left, Result, Right, aligned, check_whole, multiply
from shardproof.impl.collectives import Block, all_reduce


def tiled_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """Up to p tiles of ceil(N/p) columns, each multiplied while the one before is added up; typed invariant.

    Best in type, invariant, and by timelines of v4, v5e and v6e where latency counts; XLA:TPU makes its all-reduces
    synchronous, so that it is slower than the naive form there.

    No compiler moves work from one iteration of a loop into another: so a loop adds up the product that it carries.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    axes = check_whole("tiled_matmul_all_reduce", lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)
    n, dtype = rhs.shape[1], jnp.result_type(lhs, rhs)
    width = max(1, -(-n // lax.axis_size(axes)))
    tiles, rest = divmod(n, width)

    def product(start: Array | int, columns: int) -> Block:
        return multiply(lhs, lax.dynamic_slice_in_dim(rhs, start, columns, 1))

    def total(product: Block) -> Block:
        return all_reduce(product, axes).astype(dtype)

    def step(carried: Block, start: Array) -> tuple[Block, Block]:
        return product(start, width), total(carried)

    if not n:
        return total(product(0, n))
    last, before = lax.scan(step, product(0, width), jnp.arange(1, tiles) * width)
    joined = pieces.join(before, lhs.ndim - 1, tiled=True)
    behind = [total(last), *([total(product(n - rest, rest))] if rest else [])]
    return jnp.concatenate([joined, *behind], axis=-1)


def ring_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """A ring matmul reduce-scatter and a ring all-gather: 2(p-1) permutes of ceil(N/p) columns; typed varying.

    Columns are filled up to a multiple of p. Best where links carry one transfer at a time: H100, by timelines.

    Raises:
        ValueError: for an unknown axis, or operands whose contracted sizes differ.
    """
    return _scattered_and_gathered("ring_matmul_all_reduce", reduced.ring, all_gather.ring, lhs, rhs, axis_name)


def bidirectional_matmul_all_reduce(lhs: Left, rhs: Right, axis_name: AxisName) -> Result:
    """The same along both ways of the ring, half of every piece each way: 2(p-1) steps of two permutes.

    Sums are cut in half along the columns, finished pieces along their longest dimension. Best where the links are the
    limit, by timelines of v4, v5p and TPU7x; as XLA:TPU schedules it for v5e the naive form is faster.

    Raises:
        ValueError: as `ring_matmul_all_reduce`.
    """
    function = "bidirectional_matmul_all_reduce"
    return _scattered_and_gathered(function, reduced.bidirectional, all_gather.bidirectional, lhs, rhs, axis_name)


def _scattered_and_gathered(
    function: str,
    scatter: Callable[[reduced.Reducing, Axes], Result],
    gather: Callable[[Block, Axes], Array],
    lhs: Left,
    rhs: Right,
    axis_name: AxisName,
) -> Result:
    axes = check_whole(function, lhs, rhs, axis_name)
    lhs, rhs = aligned(lhs, rhs)  # before it is filled up: the gradient of a replica is added up without the filling
    n = rhs.shape[1]
    filled = jnp.pad(rhs, ((0, 0), (0, -n % lax.axis_size(axes))))
    piece = scatter(reduced.scattered(lhs, filled, axes, 1), axes).astype(jnp.result_type(lhs, rhs))
    return pieces.join(gather(piece, axes), lhs.ndim - 1, tiled=True)[..., :n]
