"""Shapes of blocks, small: bugs of layout show on few elements, and every element costs time."""

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument


@st.composite
def shapes(
    draw: st.DrawFn, *, min_rank: int = 0, max_rank: int = 4, min_side: int = 0, max_side: int = 4
) -> tuple[int, ...]:
    """Shapes of `min_rank` to `max_rank` dimensions with sides from `min_side` to `max_side`.

    Shrinks to `min_rank` ones. Draws such as
    `()`, `(2,)`, `(3, 1)`, `(1, 2, 0, 3)`.

    Raises:
        InvalidArgument: if a maximum is below its minimum.
    """
    if not 0 <= min_rank <= max_rank or not 0 <= min_side <= max_side:
        raise InvalidArgument(f"shapes: {min_rank=}, {max_rank=}, {min_side=}, {max_side=}: empty range")
    side = st.integers(min(max(1, min_side), max_side), max_side)
    rank = draw(st.integers(min_rank, max_rank), label="rank")
    shape = draw(st.lists(side, min_size=max_rank, max_size=max_rank), label="sides")[:rank]
    if draw(st.integers(0, 9), label="empty") == 9 and min_side == 0 and shape:
        shape[draw(st.integers(0, len(shape) - 1), label="empty dimension")] = 0
    return tuple(shape)
