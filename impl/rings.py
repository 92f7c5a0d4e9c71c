"""The parts of a matrix product round a ring: the product of blocks, the block that is passed on, and the loop."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from shardproof.impl.arguments import AxisName, as_axes
from shardproof.impl.collectives import Block, Blocks, accumulator, axis_index, cast_varying, permute, varying
from shardproof.impl.indices import around

Left = Shaped[Array, "*batch _ _"]
Right = Shaped[Array, "_ _"]
Result = Shaped[Array, "*batch _ _"]
"""Blocks: the contracted dimension has one size on the left and another on the right until it is gathered."""

UNROLLED = 8
"""The most participants for which a ring's loop is unrolled when it is compiled: each step of a loop costs XLA:TPU a
copy of the carry, and a barrier. It is traced as a loop either way: 512 participants are traced as fast as 2."""

WAYS = (1, -1)
"""The direction of the first half and of the second, where both links of a device are used."""

Carry = TypeVar("Carry")


def align_types(*operands: Blocks, axis_name: AxisName = ()) -> tuple[Any, ...]:
    """The operands, typed varying along `axis_name` and along whatever one of the others varies along.

    A product casts its operands by itself, but the transpose of a cast is a sum over the axes that were
    missing: here it is one sum of a block, in a loop it would be one in every step.
    """
    along = {*as_axes(axis_name)}.union(*map(varying, jax.tree.leaves(operands)))
    return tuple(cast_varying(operand, along) for operand in operands)


def multiply(lhs: Shaped[Array, "*batch m k"], rhs: Shaped[Array, "k n"]) -> Shaped[Array, "*batch m n"]:
    """`lhs @ rhs` in the accumulator's dtype."""
    return jnp.matmul(lhs, rhs, preferred_element_type=accumulator(lhs, rhs))


def rounded_product(lhs: Shaped[Array, "*batch m k"], rhs: Shaped[Array, "k n"]) -> Shaped[Array, "*batch m n"]:
    """`lhs @ rhs`, rounded once to the operands' dtype."""
    return multiply(lhs, rhs).astype(jnp.result_type(lhs, rhs))


def send(x: Block, axes: AxisName, perm: Sequence[tuple[int, int]]) -> Block:
    """`permute`, which sends nothing where there is nothing to send."""
    return permute(x, axes, perm=perm) if x.size else x


def shift(x: Block, axes: AxisName, offset: int) -> Block:
    """The block of participant i on participant i + offset, wrapping."""
    p = lax.axis_size(axes)
    return send(x, axes, [(i, (i + offset) % p) for i in range(p)])


def shift_both(right: Block, left: Block, axes: AxisName) -> tuple[Block, Block]:
    """One block passed on rightward, to participant i + 1, and one leftward."""
    return shift(right, axes, 1), shift(left, axes, -1)


def ring_loop(step: Callable[[Carry, Array], Carry], carry: Carry, start: int, stop: int, axis_name: AxisName) -> Carry:
    """`step(carry, distance)` for every distance from `start` to `stop - 1`.

    Up to `UNROLLED` participants it is unrolled when it is compiled. Distances are constants: from a traced `arange`
    XLA:TPU would compute the rows of all steps as it runs.
    """
    distances: Any = np.arange(start, stop)
    unroll = lax.axis_size(axis_name) <= UNROLLED
    return lax.scan(lambda carry, at: (step(carry, at), None), carry, distances, unroll=unroll)[0]


def pass_round(blocks: Sequence[Any], state: Carry, use: Callable[..., Carry], axis_name: AxisName) -> Carry:
    """The state once `use(state, *blocks, distance)` has had the blocks of every other participant.

    Each block is passed on while it is used.

    A first block goes rightward and is that of the participant `distance` behind; a second one, from as far ahead, goes
    leftward. No compiler moves work from one step of a loop into another: so the first hop, which can be beside what is
    done with a participant's own blocks, comes before the loop, and the last use after it.
    """
    p = lax.axis_size(axis_name)

    def passed(blocks: Sequence[Any]) -> list[Any]:
        ways = zip(blocks, WAYS, strict=False)
        return [jax.tree.map(lambda x, way=way: shift(x, axis_name, way), block) for block, way in ways]

    def step(carry: tuple[list[Any], Carry], distance: Array) -> tuple[list[Any], Carry]:
        blocks, state = carry
        return passed(blocks), use(state, *blocks, distance)

    if p == 1:
        return state
    last, state = ring_loop(step, (passed(blocks), state), 1, p - 1, axis_name)
    return use(state, *last, p - 1)


def pass_whole(block: Block, dimension: int, state: Carry, use: Callable[..., Carry], axis_name: AxisName) -> Carry:
    """The state once `use(state, block, start)` has had the block of every other participant, round the ring.

    `start` is where a block begins in a dimension of all blocks, one after the other.
    """
    p, me, size = lax.axis_size(axis_name), axis_index(axis_name), block.shape[dimension]

    def use_block(state: Carry, block: Block, distance: Array | int) -> Carry:
        return use(state, block, around(me - distance, p) * size)

    return pass_round([block], state, use_block, axis_name)


def pass_halves(block: Block, dimension: int, state: Carry, use: Callable[..., Carry], axis_name: AxisName) -> Carry:
    """The same, of blocks whose halves go each way round the ring."""
    p, me, size = lax.axis_size(axis_name), axis_index(axis_name), block.shape[dimension]
    right, left = in_halves(block, dimension)

    def use_halves(state: Carry, right: Block, left: Block, distance: Array | int) -> Carry:
        state = use(state, right, around(me - distance, p) * size)
        return use(state, left, around(me + distance, p) * size + right.shape[dimension])

    return pass_round([right, left], state, use_halves, axis_name)


def pass_shorter_way(
    block: Block, dimension: int, state: Carry, use: Callable[..., Carry], axis_name: AxisName, *, direct: bool = False
) -> Carry:
    """The same, of whole blocks that come the shorter way: p - 1 permutes in floor(p/2) steps.

    A neighbour passes on the last. If `direct`, of four participants the owner sends that to the one opposite, over the
    same two links as a neighbour would, and so it can begin before anything has arrived.
    """
    p, me, size, right, left = lax.axis_size(axis_name), axis_index(axis_name), block.shape[dimension], block, block
    steps, opposite = (p - 1) // 2, [shift(block, axis_name, 2)] if direct and p == 4 else []

    def use_both(state: Carry, right: Block, left: Block, distance: Array | int) -> Carry:
        state = use(state, right, around(me - distance, p) * size)
        return use(state, left, around(me + distance, p) * size)

    def step(carry: tuple[Block, Block, Carry], distance: Array) -> tuple[Block, Block, Carry]:
        right, left, state = carry
        return *shift_both(right, left, axis_name), use_both(state, right, left, distance)

    if steps:
        right, left, state = ring_loop(step, (*shift_both(block, block, axis_name), state), 1, steps, axis_name)
    if p % 2 == 0:
        opposite = opposite or [shift(right, axis_name, 1)]
    if steps:
        state = use_both(state, right, left, steps)
    for one in opposite:
        state = use(state, one, around(me - p // 2, p) * size)
    return state


def empty_array(shape: Sequence[int], block: Array) -> Array:
    """An array whose elements are still to be written, typed and sharded like a block that is written into it."""
    empty = lax.empty(tuple(shape), block.dtype, out_sharding=jax.typeof(block).sharding)
    return cast(Array, cast_varying(empty, varying(block)))


write = lax.dynamic_update_slice_in_dim


def in_halves(block: Array, dimension: int) -> list[Array]:
    """Two halves of a block; the first has the odd row, and of a single row the second is empty, and is never sent."""
    rows = block.shape[dimension]
    return jnp.split(block, [rows - rows // 2], axis=dimension)


def schedule_after(block: Array | int, before: Sequence[Array]) -> Array:
    """A block, or an index, that depends on other blocks, so that it is computed after them; without derivatives."""
    ready: Array = lax.optimization_barrier((block, *map(lax.stop_gradient, before)))[0]
    return ready
