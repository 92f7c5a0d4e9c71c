"""What operations cost that are made of a few collectives, or of a few permutes: per device, forward and backward.

Each formula follows from the definition of its form: what is gathered, summed or exchanged, in which dtype. They are
in p, the number of participants; sizes of blocks, in elements; `bits`, those of an element of the operands; and
`sum_bits`, those of the accumulator, in which sums travel.

Backward is the gradient alone, which consists of two parts. Of the forward pass, it sends again what it is computed
from: its residuals. What a result depends on linearly is none of them. Then come the transposes: of an all-gather a
reduce-scatter, of an all-to-all and of a permute one of its own kind; of a sum or a gather typed invariant, none, since
its cotangent is known to all (see `shardproof.oracles.communication.built_in_backward`). The cast of an invariant sum
to varying, where it meets what varies, has a sum for its transpose.

Where an operand is the same along axes along which another one varies, there is another cast, and another sum, along
those axes: of `summed_replicas`, with the elements and bits of what is cast.
"""

import math

from shardproof.oracles import algorithms
from shardproof.oracles.communication import Cost, built_in, built_in_backward

INDEX_BITS = 32
"""Those of what says where something lies, and of counts."""

BOOL_BITS = 8

NOTHING = Cost.permutes(0, 0)


def summed_replicas(n: int, *, bits: int = 8) -> Cost:
    """The gradients of replicas, added up: one all-reduce of n elements, none of nothing."""
    return Cost.of({"all_reduce": 1}, {"all_reduce": math.ceil(n * bits / 8)}, 1) if n else NOTHING


def halo_exchange(p: int, n: int, row: int, *, before: int, after: int, bits: int = 8) -> Cost:
    """The rows that are missing, each once; permutes are their own transposes, and none waits for another.

    The rows in front of a block of n are the last ones of the participants 1, 2, … places behind, n of each but the
    last, and those behind it the first ones of those ahead. The participant d places behind is p - d ahead as well:
    both parts are in one permute where they make up its block, and in two where rows of it are not needed.
    """
    sent: list[int] = []
    for distance in range(1, p):
        tail = min(n, max(0, before - (distance - 1) * n))
        head = min(n, max(0, after - (p - distance - 1) * n))
        sent += [n * row] if tail + head >= n else [tail * row, head * row]
    return algorithms.messages(sent, bits, steps=1)


def gathered_halo_exchange(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One all-gather of a block of n elements, or its transpose: which rows are taken depends on no data."""
    return _transposed("all_gather", p, n, bits) if backward else built_in("all_gather", n, bits=bits)


def masked_mean(p: int, *, sum_bits: int = 32, backward: bool = False) -> Cost:
    """The sum and the count of what counts, an all-reduce of a number each; the gradient divides by the count alone."""
    count = built_in("all_reduce", 1, bits=INDEX_BITS)
    return count if backward else count + built_in("all_reduce", 1, bits=sum_bits)


def gathered_masked_mean(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """All values and their masks; the gradient needs the masks alone."""
    mask = built_in("all_gather", n, bits=BOOL_BITS)
    return mask if backward else mask + built_in("all_gather", n, bits=bits)


def embedding_lookup(p: int, result: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One all-reduce of the rows that were looked up; each participant knows the cotangents of those that it has."""
    return NOTHING if backward else built_in("all_reduce", result, bits=bits)


def gathered_embedding_lookup(p: int, table: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One all-gather of the table, of which a block has so many elements; its gradient is a slice of the whole's."""
    return NOTHING if backward else built_in("all_gather", table, bits=bits)


def global_norm(p: int, *, sum_bits: int = 32) -> Cost:
    """One sum of squares, an all-reduce of a number; the gradient is x by the norm, which takes the same again."""
    return built_in("all_reduce", 1, bits=sum_bits)


def gathered_global_norm(p: int, n: int, *, bits: int = 8) -> Cost:
    """One all-gather of a block of n elements; the gradient is x by the norm, which takes the same again."""
    return built_in("all_gather", n, bits=bits)


def rms_norm(p: int, tokens: int, *, sum_bits: int = 32, backward: bool = False) -> Cost:
    """A sum of squares per token, an all-reduce.

    Backward, the same again and one more of as much: the cotangent of a token's sum has a term from every feature.
    """
    return built_in("all_reduce", tokens, bits=sum_bits) * (2 if backward else 1)


def gathered_rms_norm(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One all-gather of a block of n elements; backward, the same again, and its transpose."""
    gather = built_in("all_gather", n, bits=bits)
    return gather + _transposed("all_gather", p, n, bits) if backward else gather


def ragged_all_to_all(p: int, rows: int, result: int, entries: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One collective of the operand, its four lists not counted.

    Backward, one of the result's cotangent; an all-to-all of two lists before it tells where the slices come from, and
    where they go.
    """
    if not backward:
        return built_in("ragged_all_to_all", rows, bits=bits)
    return _lists(entries) + built_in("ragged_all_to_all", result, bits=bits)


def gathered_ragged_all_to_all(p: int, rows: int, entries: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """All operands, and an all-to-all of two lists that tells which rows of them are whose; backward, the lists again.

    The gather is linear in what it gathers and no residual: of it there is only the transpose.
    """
    moved = _transposed("all_gather", p, rows, bits) if backward else built_in("all_gather", rows, bits=bits)
    return _lists(entries) + moved


def cross_entropy(p: int, tokens: int, *, smoothed: bool, sum_bits: int = 32, backward: bool = False) -> Cost:
    """All-reduces of a number per token: a maximum, the sum of exponentials, the label's logit, the sum of all logits.

    The last only where the loss is smoothed. A gradient is a softmax less what is constant: it takes the first two.
    """
    count = 2 if backward else 3 + smoothed
    return built_in("all_reduce", tokens, bits=sum_bits) * count


def gathered_cross_entropy(p: int, n: int, *, bits: int = 8) -> Cost:
    """One all-gather of a block of n logits; the gradient takes the same again, and is a slice of the whole's."""
    return built_in("all_gather", n, bits=bits)


def gathered_attention(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """Keys and values are gathered, blocks of n elements; backward, both again, and both transposes."""
    gathers = 2 * built_in("all_gather", n, bits=bits)
    return gathers + 2 * _transposed("all_gather", p, n, bits) if backward else gathers


def ring_attention(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """Keys and values go round the ring side by side, as in an all-gather; backward, they do so again, and then back.

    Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023, section 3.
    """
    key = algorithms.ring_all_gather(p, p * n, bits=bits)
    both = key.beside(key)
    return both + algorithms.backward(both) if backward else both


def heads_attention(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """Four all-to-alls of blocks of n elements; backward, three of them again, and the transposes of all four.

    Jacobs et al., "DeepSpeed Ulysses", 2023, section 3.1. What the last one moves is the result, and no residual.
    """
    return built_in("all_to_all", n, bits=bits) * (3 + 4 if backward else 4)


def chunks(n: int, chunk: int) -> tuple[int, int]:
    """In how many chunks n elements are computed with, and of what length, where none is longer than `chunk`."""
    size = min(chunk, n)
    return math.ceil(n / size), size


def _lists(entries: int) -> Cost:
    return built_in("all_to_all", 2 * entries, bits=INDEX_BITS)


def _transposed(kind: str, p: int, n: int, bits: int) -> Cost:
    return built_in_backward(kind, p, n, bits=bits)
