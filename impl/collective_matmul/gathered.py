"""Rings that gather one operand of a product block by block, and multiply each block as it passes by.

Nobody holds the gathered operand: while a block is multiplied, the next one is on its way. All loops are
`lax.scan`, so that a ring of 512 members is traced as fast as one of 2. A permute's transpose is the
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
    Axes,
    Left,
    Result,
    Right,
    aligned,
    check_gathered_columns,
    check_gathered_rows,
    check_whole,
    multiply,
)
from shardproof.impl.collectives import Block, axis_index, cast_varying, varying

Arrivals = Sequence[tuple[Block, Array]]
"""Parts of blocks, each with the row at which it starts in the gathered dimension."""

Origin = Callable[[Array], Array]
"""The logical index of the member so far against the direction of travel (negative: along it)."""


@dataclass(frozen=True)
class Gathering:
    """A product of which one operand is gathered.

    Arguments:
        moving: this member's block of that operand.
        dimension: the dimension in which it is gathered, and cut in two where both ways are used.
        absorb: multiplies what arrived, in one product, and adds it to the state (None: there is none yet).
    """

    moving: Block
    dimension: int
    absorb: Callable[[Block | None, Arrivals], Block]

    @property
    def rows(self) -> int:
        """The size of a block in the gathered dimension."""
        return self.moving.shape[self.dimension]

    def halves(self) -> list[Block]:
        """The two halves of the block, the first one row longer if the rows are odd; of one row, that row alone."""
        if self.rows < 2:
            return [self.moving]
        return jnp.split(self.moving, [self.rows - self.rows // 2], axis=self.dimension)


def columns_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M, K_Y] W[K, N_Z]`: a block of columns of A meets its rows of W."""
    moving, stays = aligned(lhs, rhs, axes)

    def absorb(total: Block | None, arrivals: Arrivals) -> Block:
        rows = [lax.dynamic_slice_in_dim(stays, at, part.shape[-1], 0) for part, at in arrivals]
        return _added(total, multiply(_joined([part for part, _ in arrivals], -1), _joined(rows, 0)))

    return Gathering(moving, lhs.ndim - 1, absorb)


def rows_of_rhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M_Z, K] W[K_Y, N]`: a block of rows of W meets its columns of A."""
    stays, moving = aligned(lhs, rhs, axes)

    def absorb(total: Block | None, arrivals: Arrivals) -> Block:
        columns = [lax.dynamic_slice_in_dim(stays, at, part.shape[0], stays.ndim - 1) for part, at in arrivals]
        return _added(total, multiply(_joined(columns, -1), _joined([part for part, _ in arrivals], 0)))

    return Gathering(moving, 0, absorb)


def rows_of_lhs(lhs: Left, rhs: Right, axes: Axes) -> Gathering:
    """`A[…, M_Y, K] W[K, N_Z]`: a block of rows of A times all of W gives these rows of the result."""
    moving, stays = aligned(lhs, rhs, axes)
    dtype = jnp.result_type(lhs, rhs)
    *batch, m, _ = lhs.shape
    shape = (*batch, m * lax.axis_size(axes), rhs.shape[1])

    def absorb(result: Block | None, arrivals: Arrivals) -> Block:
        product = multiply(_joined([part for part, _ in arrivals], -2), stays).astype(dtype)
        if result is None:
            result = cast_varying(jnp.zeros(shape, dtype), varying(product))
        start = 0
        for part, at in arrivals:
            rows = lax.slice_in_dim(product, start, start + part.shape[-2], axis=lhs.ndim - 2)
            result = lax.dynamic_update_slice_in_dim(result, rows, at, lhs.ndim - 2)
            start += part.shape[-2]
        return result

    return Gathering(moving, lhs.ndim - 2, absorb)


def ring(gathering: Gathering, axes: Axes) -> Result:
    """Every block goes round the ring, and is multiplied wherever it comes by."""
    origin = _round(axes)
    state = _own(gathering, origin)
    return _passed(gathering, axes, [gathering.moving], lax.axis_size(axes) - 1, state, origin)[1]


def bidirectional(gathering: Gathering, axes: Axes, *, at_once: bool = False) -> Result:
    """Half of every block goes each way; a step multiplies two halves one by one, or joined `at_once`."""
    origin = _round(axes)
    state = _own(gathering, origin)
    return _passed(gathering, axes, gathering.halves(), lax.axis_size(axes) - 1, state, origin, at_once)[1]


def shorter_way(gathering: Gathering, axes: Axes) -> Result:
    """Every whole block comes the shorter way; the one from the member opposite, for even p, comes last."""
    p, origin = lax.axis_size(axes), _round(axes)
    both = [gathering.moving, gathering.moving]
    (rightward, _), state = _passed(gathering, axes, both, (p - 1) // 2, _own(gathering, origin), origin)
    if p % 2 == 0:
        last = shift(rightward, axes, 1)
        state = gathering.absorb(state, [(last, origin(jnp.asarray(p // 2)) * gathering.rows)])
    return state


def nested(gathering: Gathering, axes: Axes) -> Result:
    """A ring over the first axis of rings over the second: every permute goes along one axis alone."""
    outer, inner = (axes[0],), (axes[1],)
    a, b = lax.axis_size(outer), lax.axis_size(inner)

    def round_the_inner(state: Block | None, block: Block, away: Array) -> Block:
        first = (axis_index(outer) - away) % a * b

        def origin(away: Array) -> Array:
            return first + (axis_index(inner) - away) % b

        state = gathering.absorb(state, [(block, origin(jnp.asarray(0)) * gathering.rows)])
        return _passed(gathering, inner, [block], b - 1, state, origin)[1]

    def step(carry: tuple[Block, Block], away: Array) -> tuple[tuple[Block, Block], None]:
        block = shift(carry[0], outer, 1)
        return (block, round_the_inner(carry[1], block, away)), None

    state = round_the_inner(None, gathering.moving, jnp.asarray(0))
    return lax.scan(step, (gathering.moving, state), jnp.arange(1, a))[0][1]


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


def _round(axes: Axes) -> Origin:
    p, index = lax.axis_size(axes), axis_index(axes)
    return lambda away: (index - away) % p


def _own(gathering: Gathering, origin: Origin) -> Block:
    return gathering.absorb(None, [(gathering.moving, origin(jnp.asarray(0)) * gathering.rows)])


def _passed(
    gathering: Gathering,
    axes: Axes,
    parts: list[Block],
    steps: int,
    state: Block,
    origin: Origin,
    at_once: bool = False,
) -> tuple[list[Block], Block]:
    """Parts passed on for some steps, the first rightward and the second leftward, and absorbed: both at the end.

    Whole blocks start at their first row; of two halves, the second starts behind the first.
    """
    whole = parts[-1].shape[gathering.dimension] == gathering.rows
    starts = [0, 0 if whole else parts[0].shape[gathering.dimension]]

    def step(carry: tuple[list[Block], Block], distance: Array) -> tuple[tuple[list[Block], Block], None]:
        moved = [shift(part, axes, way) for part, way in zip(carry[0], WAYS, strict=False)]
        arrivals = [
            (part, origin(way * distance) * gathering.rows + start)
            for part, way, start in zip(moved, WAYS, starts, strict=False)
        ]
        state = carry[1]
        for together in [arrivals] if at_once else [[one] for one in arrivals]:
            state = gathering.absorb(state, together)
        return (moved, state), None

    return lax.scan(step, (parts, state), jnp.arange(1, steps + 1))[0]


def _joined(parts: Sequence[Block], dimension: int) -> Block:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, dimension)


def _added(total: Block | None, product: Block) -> Block:
    return product if total is None else total + product
