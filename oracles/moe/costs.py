"""What a mixture of experts sends, in the worst case: buffers have room for as many pairs as there may be.

All formulas are of the forward pass, in the numbers of one participant. A gradient is the router's as well, which all
participants have: what adding that up costs is JAX's own.
"""

from dataclasses import dataclass

from shardproof.oracles import ragged
from shardproof.oracles.communication import NOTHING, Cost, built_in

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

    @property
    def experts(self) -> int:
        """Those of all participants."""
        return self.participants * self.held

    @property
    def room(self) -> int:
        """The most pairs that a participant can send to one expert, each of another token."""
        if self.capacity is None:
            return self.tokens
        return min(self.tokens, self.capacity * (self.held if self.policy == "sender" else 1))

    @property
    def buffer(self) -> int:
        """The most pairs that a participant can keep."""
        most = self.participants * min(self.held * self.room, self.tokens * self.top_k)
        return most if self.capacity is None else min(most, self.capacity * self.held)

    @property
    def nothing(self) -> bool:
        """Whether no pair can be kept."""
        return self.room == 0


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


def buffers_cost(sizes: Sizes) -> Cost:
    """Two all-to-alls of a buffer of `room` rows for each of all experts: of tokens, and of what is made of them."""
    if sizes.nothing:
        return NOTHING
    rows = sizes.experts * sizes.room
    there = built_in("all_to_all", rows * sizes.features, bits=sizes.bits)
    return agreement(sizes) + there + built_in("all_to_all", rows * sizes.outputs, bits=sizes.wide)


def gathered_cost(sizes: Sizes) -> Cost:
    """Tokens, choices and gates are gathered, and the sums for all tokens reduced and scattered."""
    if sizes.nothing:
        return NOTHING
    choices = sizes.tokens * sizes.top_k
    there = built_in("all_gather", sizes.tokens * sizes.features, bits=sizes.bits)
    there += built_in("all_gather", choices, bits=INTEGER) + built_in("all_gather", choices, bits=sizes.wide)
    sums = sizes.participants * sizes.tokens * sizes.outputs
    return agreement(sizes) + there + built_in("reduce_scatter", sums, bits=sizes.wide)


def weights_cost(sizes: Sizes) -> Cost:
    """The experts are gathered, and no token travels."""
    if sizes.nothing:
        return NOTHING
    d, f, h = sizes.features, sizes.outputs, sizes.hidden
    of_each = (d * f,) if h is None else (d * h, d * h, h * f)
    gathers = (built_in("all_gather", sizes.held * n, bits=sizes.bits) for n in of_each)
    return agreement(sizes) + sum(gathers, NOTHING)


def ring_cost(sizes: Sizes) -> Cost:
    """Tokens, choices and gates go p - 1 times to the next participant, and the sums follow them, one step behind."""
    steps = sizes.participants - 1
    if sizes.nothing or not steps:
        return agreement(sizes)
    choices = sizes.tokens * sizes.top_k * (INTEGER + sizes.wide)
    visitors = sizes.tokens * sizes.features * sizes.bits + choices
    bits = visitors + sizes.tokens * sizes.outputs * sizes.wide
    return agreement(sizes) + Cost.permutes(4 * steps, steps * bits // 8, steps + 1)


def ragged_cost(sizes: Sizes) -> Cost:
    """Two ragged all-to-alls: of all pairs' tokens, and of the buffer of what is made of them; and where they go.

    What an operand of a ragged exchange holds is counted, not what of it is sent. Offsets and sizes of each
    participant are exchanged before, then where buffers begin, and how many rows are for which expert.
    """
    if sizes.nothing:
        return NOTHING
    there = built_in("ragged_all_to_all", sizes.tokens * sizes.top_k * sizes.features, bits=sizes.bits)
    back = built_in("ragged_all_to_all", sizes.buffer * sizes.outputs, bits=sizes.wide)
    return agreement(sizes) + _bookkeeping(sizes) + there + back


def gathered_ragged_cost(sizes: Sizes) -> Cost:
    """The same, where every exchange gathers its operand, after an all-to-all of two lists."""
    if sizes.nothing:
        return NOTHING
    p, pairs = sizes.participants, sizes.tokens * sizes.top_k
    there = ragged.gathered_cost(p, pairs * sizes.features, p, bits=sizes.bits)
    back = ragged.gathered_cost(p, sizes.buffer * sizes.outputs, p, bits=sizes.wide)
    return agreement(sizes) + _bookkeeping(sizes) + there + back


def _bookkeeping(sizes: Sizes) -> Cost:
    lists = (2 * sizes.participants, sizes.participants, sizes.experts)
    return sum((built_in("all_to_all", entries, bits=INTEGER) for entries in lists), NOTHING)


def kept_bytes(sizes: Sizes, pairs: int) -> int:
    """What must travel if nothing else did: each of so many pairs once there, and what is made of it once back."""
    return pairs * (sizes.features * sizes.bits + sizes.outputs * sizes.wide) // 8
