"""What collective matrix products cost, in communication and in arithmetic, per device.

Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
Models", 2023, sections 5.1 and 5.4 (one ring, and two of half the block); the counts are those of the
all-gathers and reduce-scatters that the products take the place of (see `shardproof.oracles.algorithms`).

Formulas are in p, the number of participants; `piece`, the elements that one participant contributes to what is
gathered or receives of what is scattered; `rows`, its size in the dimension that is gathered or scattered,
in which a piece is cut in half; and `bits`, those of an element while it travels: of the operand that is
gathered, of the dtype in which a sum travels. The gradient of a permute is a permute of as much, so that of each
form made of permutes costs what the form does: `backward` is its own cost, beside a forward pass. A
gradient that is computed alone needs the gathered operand as well, which costs what gathering it does; that of a
`paired` form always does, since it keeps the operands alone.
"""

import math
from collections.abc import Callable

from shardproof.oracles import algorithms
from shardproof.oracles.communication import Cost, built_in, built_in_backward

WAYS = (
    "naive",
    "ring",
    "bidirectional",
    "chunked",
    "joined",
    "alternating",
    "scattered",
    "paired",
)
"""How the pieces come together."""

PARTS = 4
"""Into how many parts a `paired` sum is cut, the first ones of a row more; if it has fewer rows, into halves."""

JOINED_FORWARD = ("paired", "all_gather_matmul_rhs")
"""The form and the contract whose pieces come in two halves forward, which are joined, and whole in the gradient."""

MOST_IN_PARTS = 8
"""Among how many participants; among more of them it is cut into halves."""

CHUNKS = 8
"""Into how many chunks M rows of a `chunked` product are cut, some of a row more; if M < 15, into ceil(M/2)."""

MOST_IN_CHUNKS = 8
"""Among how many participants; among more of them it is one chunk."""


def all_gather_matmul(
    way: str, p: int, piece: int, *, rows: int, bits: int = 8, backward: bool = False, in_place: bool = False
) -> Cost:
    """The operand that is gathered moves: as one all-gather (backward: a reduce-scatter), or as p - 1 pieces.

    Of pieces that are multiplied `in_place`, the shorter way, none of four waits for another: that of the participant
    opposite comes from its owner. In a `paired` gradient it is passed on, and sums wait for those from both sides: with
    what gathers them again, three steps. Beside `alternating` sums, pieces come the shorter way.
    """
    if way == "naive":
        return _built_in("all_gather", p, piece, bits, backward)
    if way == "alternating":
        way = "paired"
    if in_place and p == 4 and way == "paired" and not backward:
        return algorithms.messages([piece] * (p - 1), bits, steps=1)
    return passed(way, p, piece, rows=rows, bits=bits)


def matmul_reduce_scatter(way: str, p: int, piece: int, *, rows: int, bits: int = 8, backward: bool = False) -> Cost:
    """The sum moves: as one reduce-scatter (backward: an all-gather), or as p - 1 pieces."""
    if way == "naive":
        return _built_in("reduce_scatter", p, p * piece, bits, backward)
    if way == "paired" and p > MOST_IN_PARTS:
        way = "alternating"
    if way == "paired" and not backward:
        return in_parts(p, piece, rows=rows, bits=bits)
    return passed(way, p, piece, rows=rows, bits=bits)


def matmul_all_reduce(
    way: str,
    p: int,
    rows: int,
    columns: int,
    *,
    batch: int = 1,
    bits: int = 8,
    result_bits: int = 8,
    backward: bool = False,
) -> Cost:
    """All of the sum, so many matrices (`batch`) of `rows` by `columns`, on every participant.

    Naive: one all-reduce, whose gradient
    sends nothing, since the cotangent of an invariant result is known to all. Scattered: p pieces of ceil(M/p) rows are
    scattered as sums, and collected by one all-gather, as results of `result_bits` bits; the gradient is that of the
    naive form. Alternating: 2p pieces of ceil(M/2p) rows, of which p are gathered while the others are scattered; of
    fewer rows, p pieces.

    Raises:
        ValueError: for another way.
    """
    if way == "scattered" and not backward:
        cut = math.ceil(rows / p)
        piece = batch * cut * columns
        sums = passed("alternating", p, piece, rows=cut, bits=bits)
        return sums + _built_in("all_gather", p, piece, result_bits, backward)
    if way == "alternating":
        parts = 2 if rows >= 2 * p else 1
        cut = math.ceil(rows / (parts * p))
        sent, back = (passed(way, p, batch * cut * columns, rows=cut, bits=of) for of in (bits, result_bits))
        return sent + sent.beside(back) + back if parts > 1 else sent + back
    if way not in ("naive", "scattered"):
        raise ValueError(f"way={way!r}: expected naive, scattered or alternating")
    return Cost.of({"all_reduce": 0 if backward else 1}, {"all_reduce": math.ceil(batch * rows * columns * bits / 8)})


def transformer_block(
    way: str, p: int, rows: int, columns: int, *, bits: int = 8, sum_bits: int = 8, backward: bool = False
) -> Cost:
    """A block of the input is gathered, of `rows` by `columns`, and a sum of the same size is scattered.

    What is `paired` gathers the input and the cotangent beside one another backward, and scatters a sum.
    """
    piece = rows * columns
    if way == "paired" and p <= MOST_IN_PARTS:
        once = passed(way, p, piece, rows=columns, bits=bits)
        if backward:
            return once.beside(once) + once
        return once + in_parts(p, piece, rows=columns, bits=sum_bits)
    first = all_gather_matmul(way, p, piece, rows=columns, bits=bits, backward=backward)
    return first + matmul_reduce_scatter(way, p, piece, rows=columns, bits=sum_bits, backward=backward)


def flops(batch: int, m: int, k: int, n: int) -> int:
    """Multiplications and additions of a product `[batch, m, k] @ [k, n]` on one device; no form may need more."""
    return 2 * batch * m * k * n


def chunked_all_gather_matmul(p: int, piece: int, *, rows: int, bits: int = 8) -> Cost:
    """Chunks of rows of the operand whose columns are gathered: each comes the shorter way, and waits for none.

    As in place, none of four pieces waits for another.
    """
    if p > MOST_IN_CHUNKS:
        return passed("paired", p, piece, rows=rows, bits=bits)
    chunks = [size * (piece // rows) for size in chunk_sizes(rows)]
    return algorithms.messages(chunks * (p - 1), bits, steps=1 if p == 4 else p // 2)


def chunk_sizes(rows: int) -> list[int]:
    """The rows of each chunk, the smaller ones first."""
    count = min(CHUNKS, math.ceil(rows / 2))
    return sorted(rows // count + (i < rows % count) for i in range(count))


def in_parts(p: int, piece: int, *, rows: int, bits: int = 8) -> Cost:
    """P - 1 pieces, each in four parts, the first ones of a row more; of fewer rows, in halves.

    Two parts go each way, one behind the other.
    """
    if rows < PARTS:
        return passed("alternating", p, piece, rows=rows, bits=bits)
    parts = [(rows // PARTS + (i < rows % PARTS)) * (piece // rows) for i in range(PARTS)]
    return algorithms.messages(parts * (p - 1), bits, steps=2 * (p - 1))


def passed(way: str, p: int, piece: int, *, rows: int, bits: int = 8) -> Cost:
    """P - 1 pieces, or twice as many halves, of which the odd row is in the first.

    Raises:
        ValueError: for a way that is none of `WAYS`, or not made of permutes alone.
    """
    n = p * piece
    formulas: dict[str, Callable[[], Cost]] = {
        "ring": lambda: algorithms.ring_all_gather(p, n, bits=bits),
        "bidirectional": lambda: algorithms.bidirectional_all_gather(p, n, rows=rows, bits=bits),
        "joined": lambda: algorithms.bidirectional_all_gather(p, n, rows=rows, bits=bits),
        "alternating": lambda: algorithms.bidirectional_all_gather(p, n, rows=rows, bits=bits),
        "paired": lambda: algorithms.shorter_way_all_gather(p, n, bits=bits),
    }
    if way not in formulas:
        raise ValueError(f"way={way!r}: expected one of {', '.join(formulas)}")
    return formulas[way]()


def _built_in(kind: str, p: int, n: int, bits: int, backward: bool) -> Cost:
    return built_in_backward(kind, p, n, bits=bits) if backward else built_in(kind, n, bits=bits)
