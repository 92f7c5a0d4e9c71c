"""What the classical algorithms cost that build a collective out of permutes.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
2005; Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing
Systems", 1997; Chan et al., "Collective communication: theory, practice, and experience", 2007;
Rabenseifner, "Optimization of Collective Reduction Operations", 2004; Patarasuk and Yuan, "Bandwidth
Optimal All-reduce Algorithms for Clusters of Workstations", 2009.

Formulas are in p, the number of participants (or `sizes`, those of the axes in the tuple's order), and n, the
elements of the *full vector*: an all-gather's result; a reduce-scatter's, an all-reduce's, an
all-to-all's, a broadcast's operand. An element has `bits` bits: as they stand, n counts bytes. What is
empty is not sent. Bytes are those of the operands: a permute in which few participants send counts in full.

All are costs of the forward direction. A permute is a linear map whose transpose is the permute of
the inverse pairs, so the gradient of each costs what the algorithm itself does: see `backward`.
"""

import math
from collections.abc import Iterable, Sequence

from shardproof.oracles.communication import Cost


def ceil_log2(p: int) -> int:
    """The least k such that 2**k >= p."""
    return (p - 1).bit_length()


def backward(forward: Cost) -> Cost:
    """The gradient's own cost: every permute, transposed, once, in the reverse order."""
    return forward


def messages(sizes: Iterable[int], bits: int, *, steps: int | None = None) -> Cost:
    """Permutes of so many elements each, without the empty ones; `steps` is their number unless some overlap."""
    sent = [math.ceil(size * bits / 8) for size in sizes if size]
    return Cost.permutes(len(sent), sum(sent), None if steps is None or not sent else steps)


def ring_all_gather(p: int, n: int, *, bits: int = 8) -> Cost:
    """A piece of n/p in each of p - 1 steps (Thakur et al. 2005, section 4.1)."""
    return messages([n // p] * (p - 1), bits)


def bidirectional_all_gather(p: int, n: int, *, rows: int, bits: int = 8) -> Cost:
    """Two halves of n/p in each of p - 1 steps: of `rows` rows of a piece, the odd one goes with the first."""
    piece = n // p
    second = rows // 2 * (piece // rows) if rows else 0
    return messages([piece - second, second] * (p - 1), bits, steps=p - 1)


def shorter_way_all_gather(p: int, n: int, *, bits: int = 8) -> Cost:
    """A piece of n/p from each of p - 1 others, the farthest of whom is floor(p/2) participants away."""
    return messages([n // p] * (p - 1), bits, steps=p // 2)


def recursive_doubling_all_gather(p: int, n: int, *, bits: int = 8) -> Cost:
    """1, 2, 4, …, p/2 pieces: p - 1 in log2 p steps (Thakur et al. 2005, section 4.1).

    Raises:
        ValueError: unless p is a power of two.
    """
    return messages([n // p << step for step in range(_log2(p))], bits)


def bruck_all_gather(p: int, n: int, *, bits: int = 8) -> Cost:
    """1, 2, 4, … pieces and at last what is missing: p - 1 in ceil(log2 p) steps (Bruck et al. 1997, section 4)."""
    return messages([n // p * min(1 << step, p - (1 << step)) for step in range(ceil_log2(p))], bits)


def ring_reduce_scatter(p: int, n: int, *, bits: int = 8) -> Cost:
    """A piece of n/p in each of p - 1 steps: the all-gather's steps backwards."""
    return ring_all_gather(p, n, bits=bits)


def bidirectional_reduce_scatter(p: int, n: int, *, rows: int, bits: int = 8) -> Cost:
    """Two halves of n/p in each of p - 1 steps: the all-gather's steps backwards."""
    return bidirectional_all_gather(p, n, rows=rows, bits=bits)


def recursive_halving_reduce_scatter(p: int, n: int, *, bits: int = 8) -> Cost:
    """p/2, …, 4, 2, 1 pieces: p - 1 in log2 p steps (Thakur et al. 2005, section 4.2).

    Raises:
        ValueError: unless p is a power of two.
    """
    return recursive_doubling_all_gather(p, n, bits=bits)


def ring_all_reduce(p: int, n: int, *, bits: int = 8) -> Cost:
    """A reduce-scatter and an all-gather of p pieces of ceil(n/p) (Patarasuk and Yuan 2009, section 3)."""
    whole = padded(n, p)
    return ring_reduce_scatter(p, whole, bits=bits) + ring_all_gather(p, whole, bits=bits)


def bidirectional_all_reduce(p: int, n: int, *, bits: int = 8) -> Cost:
    """A reduce-scatter and an all-gather of p pieces of ceil(n/p), half of each either way."""
    whole = padded(n, p)
    return 2 * bidirectional_all_gather(p, whole, rows=whole // p, bits=bits)


def rabenseifner_all_reduce(p: int, n: int, *, bits: int = 8) -> Cost:
    """A reduce-scatter by halving and an all-gather by doubling of p pieces of ceil(n/p) (Rabenseifner 2004).

    Raises:
        ValueError: unless p is a power of two.
    """
    return 2 * recursive_doubling_all_gather(p, padded(n, p), bits=bits)


def recursive_doubling_all_reduce(p: int, n: int, *, bits: int = 8) -> Cost:
    """All n in each of log2 p steps (Thakur et al. 2005, section 4.5).

    Raises:
        ValueError: unless p is a power of two.
    """
    return messages([n] * _log2(p), bits)


def tree_all_reduce(p: int, n: int, *, bits: int = 8) -> Cost:
    """All n down a binomial tree and up again, ceil(log2 p) steps each (Chan et al. 2007, section 4)."""
    return 2 * tree_broadcast(p, n, bits=bits)


def torus_all_reduce(sizes: Sequence[int], n: int, *, bits: int = 8) -> Cost:
    """With pieces of m = ceil(n/(a*b)) on a x b: b*m in a - 1 steps there and back, m in b - 1 steps there and back.

    Without the rounding these are 2(a-1)n/a + 2(b-1)n/(ab) = 2(p-1)n/p.
    """
    a, b = sizes
    piece = padded(n, a * b) // (a * b)
    return 2 * (messages([b * piece] * (a - 1), bits) + messages([piece] * (b - 1), bits))


def pairwise_all_to_all(p: int, n: int, *, bits: int = 8) -> Cost:
    """A piece of n/p to each of p - 1 others (Thakur et al. 2005, section 4.3)."""
    return messages([n // p] * (p - 1), bits)


def bruck_all_to_all(p: int, n: int, *, bits: int = 8) -> Cost:
    """In step s, the pieces of all distances below p of which bit s is set (Bruck et al. 1997, section 3)."""
    moving = [sum(distance >> step & 1 for distance in range(p)) for step in range(ceil_log2(p))]
    return messages([n // p * count for count in moving], bits)


def two_phase_all_to_all(sizes: Sequence[int], n: int, *, bits: int = 8) -> Cost:
    """n/a to each of a - 1 others along the first axis, then n/b to each of b - 1 others along the second."""
    a, b = sizes
    return pairwise_all_to_all(a, n, bits=bits) + pairwise_all_to_all(b, n, bits=bits)


def tree_broadcast(p: int, n: int, *, bits: int = 8) -> Cost:
    """All n in each of ceil(log2 p) steps; p - 1 messages are sent (Chan et al. 2007, section 4)."""
    return messages([n] * ceil_log2(p), bits)


def scatter_all_gather_broadcast(p: int, n: int, *, bits: int = 8) -> Cost:
    """Pieces of ceil(n/p), of which p - 1 leave the root in ceil(log2 p) steps; then a ring (Thakur 2005, 4.4)."""
    whole = padded(n, p)
    piece = whole // p
    down = [piece * min(1 << step, p - (1 << step)) for step in reversed(range(ceil_log2(p)))]
    return messages(down, bits) + ring_all_gather(p, whole, bits=bits)


def padded(n: int, parts: int) -> int:
    """The least multiple of `parts` that is not below n."""
    return -(-n // parts) * parts


def _log2(p: int) -> int:
    if p & (p - 1):
        raise ValueError(f"p={p}: expected a power of two")
    return p.bit_length() - 1
