"""Shapes of blocks, small, since bugs of layout show on few elements; and the data in them."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from shardproof.oracles.dtypes import as_dtype, is_float
from shardproof.properties.cases.data import Data
from shardproof.properties.cases.strategies.making import Composite, sampled

LONG = (5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300)
"""Long sides: beside the powers of two, at which tiles, chunks and narrow indices end."""

LARGE = (512, 1000, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 3000, 4097)
"""The longest sides of large blocks, of some thousands of elements."""


@Composite
def shapes(
    draw: st.DrawFn, *, min_rank: int = 0, max_rank: int = 4, min_side: int = 0, max_side: int = 4, long: bool = False
) -> tuple[int, ...]:
    """Shapes of `min_rank` to `max_rank` dimensions with sides from `min_side` to `max_side`.

    Where `min_side` is 0, one side may be that. If `long`, one may be of `LONG`, and no other is above 2 then, or of
    `LARGE`, beside ones. Shrinks to `min_rank` ones. Draws such as `()`, `(2,)`, `(3, 1)`, `(1, 2, 0, 3)`, `(2, 129)`,
    `(1, 2049)`.
    """
    if not 0 <= min_rank <= max_rank or not 0 <= min_side <= max_side:
        raise InvalidArgument(f"shapes: {min_rank=}, {max_rank=}, {min_side=}, {max_side=}: empty range")
    side = st.integers(min(max(1, min_side), max_side), max_side)
    rank = draw(st.integers(min_rank, max_rank), label="rank")
    shape = draw(st.lists(side, min_size=max_rank, max_size=max_rank), label="sides")[:rank]
    longer = [sampled(tuple(side for side in (*LONG, *LARGE) if side > max_side))] if long else []
    others = st.one_of(st.none(), *longer, st.integers(min_side, max_side))
    at, other = draw(st.tuples(st.integers(0, max(rank - 1, 0)), others), label="other")
    if other is not None and shape:
        most = max_side if other <= max_side else 2 if other in LONG else 1
        shape = [min(side, max(min_side, most)) for side in shape]
        shape[at] = other
    return tuple(shape)


@Composite
def data_sets(draw: st.DrawFn, kinds: Sequence[str], *, count: int = 6) -> tuple[Data, ...]:
    """Several data sets for one structure, of all kinds in turn, under one drawn seed.

    Shrinks to the first seed. Compiling a structure costs a hundred times as much as running it,
    so each is run on `count` of them.
    """
    seed = draw(st.integers(0, 2**16), label="seed")
    return tuple(Data(kinds[i % len(kinds)], seed + i) for i in range(count))


def kinds_of(dtype: str) -> tuple[str, ...]:
    """All kinds of data that suit a dtype; distinct ones first: their values show which block is misplaced."""
    usual = ("distinct", "exact", "special")
    return (*usual[:2], "real", *usual[2:], "nan", "scaled") if is_float(as_dtype(dtype)) else usual
