"""What a mixture of experts sends, in the worst case: buffers have room for as many pairs as there may be.

All formulas are in the numbers of one participant, of the forward pass or of the gradient alone (`backward`). A
gradient sends again what products need: tokens or weights on their way there, and what experts made of tokens on its
way back, by which gates are derived; a sum of that over experts is not needed. Besides, it sends the transpose of each
way, in the accumulator's dtype: cotangents are sums. What adding up the gradient of the router costs, which all
participants have, and of whatever else is the same along an axis, is not in here.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from shardproof.oracles import ragged
from shardproof.oracles.communication import NOTHING, Cost, built_in, built_in_backward
from shardproof.oracles.moe.dropping import Pair

INTEGER = 32
"""The bits of a number of an expert, of a row, of a queue's length."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer.

    Arguments:
        participants: p.
        tokens: T of each.
        features: D.
        outputs: F.
        held: the experts of each.
        top_k: how many a token chooses.
        capacity: the most pairs of an expert; None: all.
        policy: who is kept.
        bits: those of an element of tokens and weights, which travel as they are.
        wide: those of a gate, and of what experts make of tokens: sums of them are rounded once.
        hidden: H of gated MLPs; None: experts are matrices.
        per_sender: the most pairs that a participant sends to an expert; None: all.
    """

    participants: int
    tokens: int
    features: int
    outputs: int
    held: int
    top_k: int
    capacity: int | None
    policy: str
    bits: int
    wide: int
    hidden: int | None = None
    per_sender: int | None = None

    @property
    def experts(self) -> int:
        """Those of all participants."""
        return self.participants * self.held

    @property
    def room(self) -> int:
        """The most pairs that a participant can send to one expert, each of another token."""
        most = self.tokens if self.per_sender is None else min(self.tokens, self.per_sender)
        if self.capacity is None:
            return most
        return min(most, self.capacity * (self.held if self.policy == "sender" else 1))

    @property
    def buffer(self) -> int:
        """The most pairs that a participant can keep."""
        most = self.participants * min(self.held * self.room, self.tokens * self.top_k)
        return most if self.capacity is None else min(most, self.capacity * self.held)

    @property
    def nothing(self) -> bool:
        """Whether no pair can be kept."""
        return self.room == 0


Formula = Callable[[Sizes, bool], Cost]
"""Of a layer's sizes, and of its gradient alone or not."""


def agreement(sizes: Sizes) -> Cost:
    """What participants tell one another to know who is kept; no token.

    By "probability" all pairs' experts and gates; else the lengths of queues: of every expert by "position", of every
    expert's k-th choices, and their sums, by "choice", and of every participant's buffer by "sender".
    """
    if sizes.capacity is None or sizes.nothing:
        return NOTHING
    pairs = sizes.tokens * sizes.top_k
    if sizes.policy == "probability":
        return built_in("all_gather", pairs, bits=INTEGER) + built_in("all_gather", pairs, bits=sizes.wide)
    if sizes.policy == "choice":
        queues = sizes.top_k * sizes.experts
        return built_in("all_gather", queues, bits=INTEGER) + built_in("all_reduce", queues, bits=INTEGER)
    return built_in("all_gather", sizes.participants if sizes.policy == "sender" else sizes.experts, bits=INTEGER)


def buffers_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """Two all-to-alls of a buffer of `room` rows for each of all experts: of tokens, and of what is made of them."""
    if sizes.nothing:
        return NOTHING
    rows = sizes.experts * sizes.room
    cost = agreement(sizes) + built_in("all_to_all", rows * sizes.features, bits=sizes.bits)
    cost += built_in("all_to_all", rows * sizes.outputs, bits=sizes.wide)
    for width in (sizes.outputs, sizes.features) if backward else ():
        cost += built_in_backward("all_to_all", sizes.participants, rows * width, bits=sizes.wide)
    return cost


def gathered_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """Tokens, choices and gates are gathered, and the sums for all tokens reduced and scattered.

    Backward the cotangents of sums are gathered, and those of tokens and of gates scattered; no sum is needed again.
    """
    if sizes.nothing:
        return NOTHING
    p, choices = sizes.participants, sizes.tokens * sizes.top_k
    cost = agreement(sizes) + built_in("all_gather", sizes.tokens * sizes.features, bits=sizes.bits)
    cost += built_in("all_gather", choices, bits=INTEGER) + built_in("all_gather", choices, bits=sizes.wide)
    sums = p * sizes.tokens * sizes.outputs
    if not backward:
        return cost + built_in("reduce_scatter", sums, bits=sizes.wide)
    cost += built_in_backward("reduce_scatter", p, sums, bits=sizes.wide)
    for n in (sizes.tokens * sizes.features, choices):
        cost += built_in_backward("all_gather", p, n, bits=sizes.wide)
    return cost


def weights_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """The experts are gathered, and no token travels; backward, their gradients are scattered."""
    if sizes.nothing:
        return NOTHING
    d, f, h = sizes.features, sizes.outputs, sizes.hidden
    cost = agreement(sizes)
    for n in (d * f,) if h is None else (d * h, d * h, h * f):
        cost += built_in("all_gather", sizes.held * n, bits=sizes.bits)
        if backward:
            cost += built_in_backward("all_gather", sizes.participants, sizes.held * n, bits=sizes.wide)
    return cost


def ring_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """Tokens, choices and gates go p - 1 times to the next participant, and the sums follow them, one step behind.

    Backward the cotangents of sums go the other way, as do those of tokens and gates once their visitors are there.
    """
    steps = sizes.participants - 1
    if sizes.nothing or not steps:
        return agreement(sizes)
    choices, sums = sizes.tokens * sizes.top_k, sizes.tokens * sizes.outputs * sizes.wide
    visitors = sizes.tokens * sizes.features * sizes.bits + choices * (INTEGER + sizes.wide)
    if not backward:
        return agreement(sizes) + Cost.permutes(4 * steps, steps * (visitors + sums) // 8, steps + 1)
    derived = sums + sizes.tokens * sizes.features * sizes.wide + choices * sizes.wide
    return agreement(sizes) + Cost.permutes(6 * steps, steps * (visitors + derived) // 8, 2 * steps)


def ragged_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """Two ragged all-to-alls: of all pairs' tokens, and of the buffer of what is made of them; and where they go.

    What an operand of a ragged exchange holds is counted, not what of it is sent. Offsets and sizes of each
    participant are exchanged before, then where buffers begin, and how many rows are for which expert.
    """
    if sizes.nothing:
        return NOTHING
    p, pairs = sizes.participants, sizes.tokens * sizes.top_k
    cost = agreement(sizes) + _bookkeeping(sizes)
    # of each way, the rows of the operand and of the result, and what travels forward
    for rows, result, width, bits in (
        (pairs, sizes.buffer, sizes.features, sizes.bits),
        (sizes.buffer, pairs, sizes.outputs, sizes.wide),
    ):
        cost += ragged.native_cost(rows * width, result * width, p, bits=bits)
        if backward:
            cost += ragged.native_cost(rows * width, result * width, p, bits=sizes.wide, backward=True)
    return cost


def gathered_ragged_cost(sizes: Sizes, backward: bool = False) -> Cost:
    """The same, where every exchange gathers its operand, after an all-to-all of two lists.

    Backward the cotangents of what is gathered are scattered. The lists are exchanged once for both, unless cotangents
    are wider than what was sent: theirs is an exchange of its own.
    """
    if sizes.nothing:
        return NOTHING
    p, pairs = sizes.participants, sizes.tokens * sizes.top_k
    cost = agreement(sizes) + _bookkeeping(sizes)
    for n, bits in ((pairs * sizes.features, sizes.bits), (sizes.buffer * sizes.outputs, sizes.wide)):
        cost += ragged.gathered_cost(p, n, p, bits=bits)
        if backward:
            cost += built_in_backward("all_gather", p, n, bits=sizes.wide)
            cost += ragged.lists_cost(p) if bits != sizes.wide else NOTHING
    return cost


def _bookkeeping(sizes: Sizes) -> Cost:
    lists = (2 * sizes.participants, sizes.participants, sizes.experts)
    return sum((built_in("all_to_all", entries, bits=INTEGER) for entries in lists), NOTHING)


def chunked_cost(sizes: Sizes, chunk: int, rounds: int | Fraction, backward: bool = False) -> Cost:
    """In each of so many rounds, all-to-alls of p chunks: tokens, their experts' numbers, and what is made of them.

    How many rounds there are, all participants agree on first, by the largest number of any. Backward both ways are
    taken again in each round, and back. A fraction is the mean of several process groups.
    """
    if sizes.nothing:
        return NOTHING
    p, rows = sizes.participants, sizes.participants * chunk
    each = built_in("all_to_all", rows * sizes.features, bits=sizes.bits) + built_in("all_to_all", rows, bits=INTEGER)
    each += built_in("all_to_all", rows * sizes.outputs, bits=sizes.wide)
    for width in (sizes.outputs, sizes.features) if backward else ():
        each += built_in_backward("all_to_all", p, rows * width, bits=sizes.wide)
    counts, sent = ({k: int(n * rounds) for k, n in numbers} for numbers in (each.counts, each.operand_bytes))
    return agreement(sizes) + built_in("all_reduce", 1, bits=INTEGER) + Cost.of(counts, sent)


def even_share(sizes: Sizes) -> int:
    """The pairs of a participant that go to each one if routing is even, rounded up: the chunk if none is asked for."""
    return -(-sizes.tokens * sizes.top_k // sizes.participants)


def rounds_of(kept: Iterable[Pair], chunk: int) -> int:
    """How many chunks take the kept pairs of the sender that has the most for any one receiver."""
    loads = Counter((pair.sender, pair.receiver) for pair in kept)
    return max((-(-load // chunk) for load in loads.values()), default=0)


def most_rounds(sizes: Sizes, chunk: int) -> int:
    """As many rounds as there can be: all pairs of one participant are for one other, as far as there is room."""
    most = min(sizes.tokens * sizes.top_k, sizes.held * sizes.room)
    if sizes.capacity is not None:
        most = min(most, sizes.held * sizes.capacity)
    return -(-most // chunk)


def kept_bytes(pairs: int, *, features: int, outputs: int, bits: int = 32, wide: int = 32) -> int:
    """What must travel if nothing else did: each of so many pairs once there, and what is made of it once back."""
    return pairs * (features * bits + outputs * wide) // 8
