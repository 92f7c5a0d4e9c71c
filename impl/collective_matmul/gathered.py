"""Rings that gather one operand of a product block by block, and multiply each block as it passes by.

Nobody holds the gathered operand: a block is multiplied while it travels on. Both depend on what a loop
carries alone, since no compiler moves work from one iteration into another; so the first hop, beside the
product of a participant's own block, comes before the loop, and the last product after it. All loops are
`lax.scan`, so that a ring of 512 participants is traced as fast as one of 2. A permute's transpose is the
permute back, so the gradient of each ring is a ring as well: that of the block that moves is a matrix
product with a reduce-scatter, hop by hop, and that of the operand that stays reuses the blocks that came by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from shardproof.impl.algorithms.pieces import WAYS, shift
from shardproof.impl.arguments import AxisName, check_axis_count
from shardproof.impl.collective_matmul.operands import (
    UNROLLED,
    Axes,
    Left,
    Result,
    Right,
    aligned,
    check_gathered_columns,
    check_gathered_rows,
    check_whole,
    counted,
    multiply,
    places_back,
    unwritten,
)
from shardproof.impl.collectives import Block, axis_index

Arrivals = Sequence[tuple[Block, Array]]
"""Parts of blocks, each with the row at which it starts in the gathered dimension: one, or two that are joined."""

Origin = Callable[[Array], Array]
"""The logical index of the participant so far against the direction of travel (negative: along it)."""


@dataclass(frozen=True)
class Gathering:
    """A product of which one operand is gathered.

    Arguments:
        moving: this participant's block of that operand, whole or in two halves.
        dimension: the dimension in which it is gathered, and cut in two where both ways are used.
        absorb: multiplies what arrived, in one product, and adds it to the state (None: there is none yet).
        in_place: whether it does so by writing rows that nothing else is written to, in the order of arrival.
    """

    moving: tuple[Block, ...]
    dimension: int
    absorb: Callable[[Block | None, Arrivals], Block]
    in_place: bool = False

    @property
    def rows(self) -> int:
        """The size of a block in the gathered dimension."""
        return sum(part.shape[self.dimension] for part in self.moving)

    @property
    def whole(self) -> Block:
        """The block."""
        return _joined(self.moving, self.dimension)

    def halves(self) -> list[Block]:
        """The two halves of the block, the first one row longer if the rows are odd; of one row, that row alone."""
        if self.rows < 2 or len(self.moving) > 1:
            return [*self.moving]
        return jnp.split(self.whole, [self.rows - self.rows // 2], axis=self.dimension)


@dataclass(frozen=True)
class Travel:
    """Parts of blocks on their ways along a ring, the first rightward and the second leftward.

    Arguments:
        gathering: what becomes of them.
        axes: of the ring.
        origin: where they come from.
        at_once: whether those that arrive together are multiplied in one product.
    """

    gathering: Gathering
    axes: Axes
    origin: Origin
    at_once: bool = False

    def own(self) -> Block:
        """The state with this participant's own block alone."""
        return self.absorbed(None, [*self.gathering.moving], jnp.asarray(0))

    def absorbed(self, state: Block | None, parts: list[Block], distance: Array) -> Block:
        """The state with parts that have come so far: whole blocks, or two halves, the second behind the first."""
        sizes = [part.shape[self.gathering.dimension] for part in parts]
        starts = [0, 0 if sizes[-1] == self.gathering.rows else sizes[0]]
        arrivals = [
            (part, self.origin(way * distance) * self.gathering.rows + start)
            for part, way, start in zip(parts, WAYS, starts, strict=False)
        ]
        *first, last = [arrivals] if self.at_once else [[one] for one in arrivals]
        for together in first:
            state = self.gathering.absorb(state, together)
        return self.gathering.absorb(state, last)

    def along(self, parts: list[Block], steps: int, state: Block) -> tuple[list[Block], Block]:
        """Parts after so many steps, and the state with all that came by before: the last are left to the caller."""
        if not steps:
            return parts, state

        def step(carry: tuple[list[Block], Block], distance: Array) -> tuple[tuple[list[Block], Block], None]:
            held, state = carry
            return (self._passed_on(held), self.absorbed(state, held, distance)), None

        unroll = lax.axis_size(self.axes) <= UNROLLED
        return lax.scan(step, (self._passed_on(parts), state), counted(1, steps), unroll=unroll)[0]

    def all_along(self, parts: list[Block], steps: int, state: Block) -> Block:
        """The state with all that comes by in so many steps."""
        arrived, state = self.along(parts, steps, state)
        return self.absorbed(state, arrived, jnp.asarray(steps)) if steps else state

    def _passed_on(self, parts: list[Block]) -> list[Block]:
        return [shift(part, self.axes, way) for part, way in zip(parts, WAYS, strict=False)]


def columns_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M, K_Y] W[K, N_Z]`: a block of columns of A meets its rows of W."""
    moving, stays = aligned(lhs, rhs, axes)

    def absorb(total: Block | None, arrivals: Arrivals) -> Block:
        ((part, at),) = arrivals
        return _added(total, multiply(part, lax.dynamic_slice_in_dim(stays, at, part.shape[-1], 0)))

    return Gathering((moving,), lhs.ndim - 1, absorb)


def rows_of_rhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M_Z, K] W[K_Y, N]`: a block of rows of W meets its columns of A."""
    stays, moving = aligned(lhs, rhs, axes)

    def absorb(total: Block | None, arrivals: Arrivals) -> Block:
        columns = [lax.dynamic_slice_in_dim(stays, at, part.shape[0], stays.ndim - 1) for part, at in arrivals]
        return _added(total, multiply(_joined(columns, -1), _joined([part for part, _ in arrivals], 0)))

    return Gathering((moving,), 0, absorb)


def rows_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M_Y, K] W[K, N_Z]`: a block of rows of A times all of W gives these rows of the result."""
    moving, stays = aligned(lhs, rhs, axes)
    dtype = jnp.result_type(lhs, rhs)
    *batch, m, _ = lhs.shape
    shape = (*batch, m * lax.axis_size(axes), rhs.shape[1])

    def absorb(result: Block | None, arrivals: Arrivals) -> Block:
        product = multiply(_joined([part for part, _ in arrivals], -2), stays).astype(dtype)
        start, written = 0, []
        for part, at in arrivals:
            written.append((lax.slice_in_dim(product, start, start + part.shape[-2], axis=lhs.ndim - 2), at))
            start += part.shape[-2]
        return _written(unwritten(shape, product) if result is None else result, written)

    return Gathering((moving,), lhs.ndim - 2, absorb, in_place=True)


def rows(halves: Sequence[Block], into: Block, first: int) -> Gathering:
    """`C[…, M_Y, N]`, in halves: their rows are written where they belong in an array, from one on."""

    def absorb(result: Block | None, arrivals: Arrivals) -> Block:
        return _written(into if result is None else result, [(part, first + at) for part, at in arrivals])

    return Gathering(tuple(halves), into.ndim - 2, absorb, in_place=True)


def ring(gathering: Gathering, axes: Axes) -> Result:
    """Every block goes round the ring, and is multiplied wherever it comes by."""
    travel = Travel(gathering, axes, places_back(axes))
    return travel.all_along([gathering.whole], lax.axis_size(axes) - 1, travel.own())


def bidirectional(gathering: Gathering, axes: Axes, *, at_once: bool = False) -> Result:
    """Half of every block goes each way; a step multiplies two halves one by one, or joined `at_once`."""
    travel = Travel(gathering, axes, places_back(axes), at_once)
    return travel.all_along(gathering.halves(), lax.axis_size(axes) - 1, travel.own())


def shorter_way(gathering: Gathering, axes: Axes) -> Result:
    """Every whole block comes the shorter way; the one from the participant opposite, for even p, comes last.

    It is passed on by a neighbour; but of four participants it is sent by its owner if the gathering is in place, over
    the same two links, and so it can begin before anything has arrived.
    """
    p, travel = lax.axis_size(axes), Travel(gathering, axes, places_back(axes))
    both, state = [gathering.whole, gathering.whole], travel.own()
    if p % 2:
        return travel.all_along(both, (p - 1) // 2, state)
    before, at_once = p // 2 - 1, p == 4 and gathering.in_place
    last = shift(gathering.whole, axes, 2) if at_once else gathering.whole
    parts, state = travel.along(both, before, state)
    last = last if at_once else shift(parts[0], axes, 1)
    if before:
        state = travel.absorbed(state, parts, jnp.asarray(before))
    return travel.absorbed(state, [last], jnp.asarray(p // 2))


def nested(gathering: Gathering, axes: Axes) -> Result:
    """A ring over the first axis of rings over the second: every permute goes along one axis alone."""
    outer, inner = (axes[0],), (axes[1],)
    a, b = lax.axis_size(outer), lax.axis_size(inner)

    def round_the_inner(state: Block | None, block: Block, away: Array) -> Block:
        first = (axis_index(outer) - away) % a * b

        def origin(away: Array) -> Array:
            return first + (axis_index(inner) - away) % b

        travel = Travel(gathering, inner, origin)
        return travel.all_along([block], b - 1, travel.absorbed(state, [block], jnp.asarray(0)))

    def step(carry: tuple[Block, Block], away: Array) -> tuple[tuple[Block, Block], None]:
        block, state = carry
        return (shift(block, outer, 1), round_the_inner(state, block, away)), None

    own = round_the_inner(None, gathering.whole, jnp.asarray(0))
    if a == 1:
        return own
    carry = (shift(gathering.whole, outer, 1), own)
    block, state = lax.scan(step, carry, counted(1, a - 1), unroll=a <= UNROLLED)[0]
    return round_the_inner(state, block, jnp.asarray(a - 1))


def joined(gathering: Gathering, axes: Axes) -> Result:
    """`bidirectional`, with one product of full size in every step."""
    return bidirectional(gathering, axes, at_once=True)


@dataclass(frozen=True)
class Product:
    """A contract of a product with a gathered operand.

    Arguments:
        contract: its name, which that of a function ends with.
        check: gives the axis tuple of what is legal.
        operands: says what is gathered.
    """

    contract: str
    check: Callable[[str, Left, Right, AxisName], Axes]
    operands: Callable[[Left, Right, Axes], Gathering]

    def along(
        self, way: str, gather: Callable[[Gathering, Axes], Result], lhs: Left, rhs: Right, axis_name: AxisName
    ) -> Result:
        """What a public function does: checks, gathers one `way` and multiplies, rounds."""
        function = f"{way}_{self.contract}"
        axes = self.check(function, lhs, rhs, axis_name)
        if gather is nested:
            check_axis_count(function, axes, (2,))
        return gather(self.operands(lhs, rhs, axes), axes).astype(jnp.result_type(lhs, rhs))


COLUMNS_OF_LHS = Product("all_gather_matmul_lhs_contracting", check_gathered_columns, columns_of_lhs)
ROWS_OF_LHS = Product("all_gather_matmul_lhs", check_whole, rows_of_lhs)
ROWS_OF_RHS = Product("all_gather_matmul_rhs", check_gathered_rows, rows_of_rhs)


def _written(result: Block, rows: Arrivals) -> Block:
    for one, at in rows:
        result = lax.dynamic_update_slice_in_dim(result, one, at, result.ndim - 2)
    return result


def _joined(parts: Sequence[Block], dimension: int) -> Block:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, dimension)


def _added(total: Block | None, product: Block) -> Block:
    return product if total is None else total + product
