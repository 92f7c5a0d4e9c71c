"""What each overlapped form of a product claims of how it hides what it sends."""

import math
from fractions import Fraction

from shardproof.oracles.dtypes import width
from shardproof.oracles.matmul_costs import JOINED_FORWARD, MOST_IN_CHUNKS, MOST_IN_PARTS, PARTS, chunk_sizes
from shardproof.properties.cases.case import Case
from shardproof.properties.programs.expectation import value
from shardproof.properties.programs.overlap import Limit, Overlap

BOTH_WAYS = ("bidirectional", "joined", "alternating", "chunked", "paired")
MOVING = {
    "all_gather_matmul_lhs_contracting": "lhs",
    "all_gather_matmul_lhs": "lhs",
    "all_gather_matmul_rhs": "rhs",
    "matmul_reduce_scatter": "out",
}
BLOCKS = {"ring": 2, "bidirectional": 2, "joined": 3, "alternating": 2, "paired": 4}
"""For how many moving blocks there is room: one comes and one goes, on each ring; and two halves joined."""

TURNS_AND_MORE = (
    ("alternating", "matmul_all_reduce"),
    ("alternating", "transformer_block"),
    ("paired", "transformer_block"),
)
"""Forms in which parts of a sum take turns, with a gather before or behind."""


def hidden_by(way: str, contract: str) -> Overlap:
    """What a form claims of a contract, on a machine whose busiest link needs as long as p-1 of p products."""
    return Overlap(exposed_by(way, contract), 2 if way in BOTH_WAYS else 1, held_by(way, contract))


def exposed_by(way: str, contract: str) -> Limit:
    """The part of what it sends that is exposed: of a ring, nothing.

    The first two blocks, or last, that come the shorter way have one product beside them. A
    transformer block of 16-bit floats sends sums of twice the bytes of what it gathers: what is balanced in all is not
    in each. Where halves take turns, a half has the other half's product beside it, and not all of a step's: with what
    is gathered behind, or before, beside fewer products, five eighths at most, of three rows, which a `paired` block
    sends in halves as well. What is `scattered` is gathered with nothing beside it, as is the first of several chunks.
    What is `paired` exposes more in the gradient: rows that are gathered again have the other gradient's terms beside
    them, and not the product that waits for all.
    """
    if (way, contract) in TURNS_AND_MORE:
        return "5/8"
    if way == "scattered":
        return "7/11"
    if way == "alternating":
        return in_turns
    if way == "paired" and contract == "matmul_reduce_scatter":
        return in_quarters
    if way == "paired":
        return "1/2" if contract == "all_gather_matmul_lhs" else "2/p"
    if way == "chunked":
        return first_chunk
    return "1/6" if contract == "transformer_block" else "0"


def first_chunk(case: Case) -> Fraction:
    """The first chunk's part of the rows, and a row more if chunks are uneven.

    Among more than eight participants all rows come the shorter way: 2/p.
    """
    if case.participants > MOST_IN_CHUNKS:
        return Fraction(2, case.participants)
    sizes = chunk_sizes(case.operands[0].block[-2])
    return Fraction(sizes[0] + (sizes[0] < sizes[-1]), sum(sizes)) if sizes else Fraction(0)


def three_chunks(case: Case) -> Fraction:
    """Three gathered chunks besides operands, result and sum.

    That is lhs+rhs+5*out+4*lhs+8*p+64 and the chunks; where there are none, what the shorter way holds.
    """
    lhs, rhs = (math.ceil(math.prod(o.block) * width(o.numpy_dtype) / 8) for o in case.operands)
    (*batch, m, _), n, p = case.operands[0].block, case.operands[1].block[-1], case.participants
    out = math.prod(batch) * m * n * width(case.operands[0].numpy_dtype) // 8
    if p > MOST_IN_CHUNKS:
        return value(_rings_hold("paired", case.contract), p=p, lhs=lhs, rhs=rhs, out=out)
    chunk = Fraction(max(chunk_sizes(m), default=0), max(m, 1)) * p * lhs
    return lhs + rhs + 5 * out + 4 * lhs + 8 * p + 64 + 3 * chunk


def in_turns(case: Case) -> Fraction:
    """The larger half's transfer less the other half's product beside it, as a part of the time in which one travels.

    A link takes as long for the larger half as all of a step's products do.
    """
    dimension = case.keywords["scatter_dimension"]
    rows = (case.operands[0].block[-2], case.operands[1].block[-1])[dimension] // case.participants
    larger, smaller = rows - rows // 2, rows // 2
    return larger / max(Fraction(rows), smaller * (1 + Fraction(rows, larger))) if smaller else Fraction(0)


def in_quarters(case: Case) -> Fraction:
    """Half: backward, among four, the cotangent's block from the opposite one takes two links, beside one product.

    Forward nothing, of quarters that are even. Of fewer than four rows, and among more than eight participants, halves
    take turns.
    """
    dimension = case.keywords["scatter_dimension"]
    rows = (case.operands[0].block[-2], case.operands[1].block[-1])[dimension] // case.participants
    if case.participants > MOST_IN_PARTS:
        return in_turns(case)
    return Fraction(1, 2) if rows >= PARTS else max(Fraction(1, 2), in_turns(case))


def held_by(way: str, contract: str) -> Limit | None:
    """The bytes that are held."""
    if way == "chunked":
        return three_chunks
    if (way, contract) == JOINED_FORWARD:
        way = "joined"
    return _rings_hold(way, contract) if contract in MOVING else None


def _rings_hold(way: str, contract: str) -> str:
    """Operands, the result and its sum in float32, a few moving blocks and what meets them, and indices."""
    joined = "+2*out/p" if way == "joined" else ""
    return f"lhs+rhs+5*out+{2 * BLOCKS[way]}*{MOVING[contract]}+4*(lhs+rhs)/p+8*p+64{joined}"
