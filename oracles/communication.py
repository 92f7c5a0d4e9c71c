"""The least communication of collectives: over how many steps, with how many bytes.

Bounds are in p, the number of participants, and n, the bytes of the *full vector*: an all-gather's result; a
reduce-scatter's, an all-reduce's, an all-to-all's, a broadcast's operand.
"""

from fractions import Fraction

KINDS = ("permute", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "ragged_all_to_all")


def lower_bound(contract: str, p: int, n: int | Fraction) -> tuple[int, Fraction]:
    """The fewest steps, and the fewest bytes that a device must send, for p participants and a full vector of n bytes.

    Steps: after k steps at most 2**k participants can depend on one participant's data, so a collective takes
    ceil(log2 p). Bytes: a participant must get what it lacks, (p-1)n/p; in an all-reduce it must also send its share of
    the terms, as much again; in a broadcast, all n (Chan et al. 2007, section 3). Permutes may be identities and are
    bounded by nothing. Bounds are of algorithms out of permutes: a built-in collective does not send its operand.

    Raises:
        ValueError: if there is no such contract.
    """
    kind = OTHER_KINDS.get(contract, contract)
    if kind not in KINDS:
        raise ValueError(f"contract={contract!r}: expected one of {', '.join(sorted({*KINDS, *OTHER_KINDS}))}")
    if kind == "permute" or p == 1 or n == 0:
        return 0, Fraction(0)
    times = 2 if contract == "all_reduce" else 1
    sent = Fraction(n) if contract == "broadcast" else times * Fraction(p - 1, p) * n
    return (p - 1).bit_length(), sent


OTHER_KINDS = {"all_gather_invariant": "all_gather", "ring_shift": "permute", "broadcast": "all_gather"}
"""Contracts that are served by a collective of another kind."""
