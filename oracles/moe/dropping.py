"""The tokens that an expert keeps, by every policy.

A *pair* is a token and one of its choices. Tokens are numbered over all participants, in logical order: those of
participant 0 first. Experts are as well: participant i has experts `[i E/p, (i + 1) E/p)`.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardproof.oracles.moe.routing import Routing

POLICIES = ("probability", "position", "choice", "sender")


class Pair(NamedTuple):
    """A token and one of its choices."""

    token: int  # the token's number
    choice: int  # which of its choices it is: 0 is that of its highest logit
    expert: int  # the expert's number
    gate: float  # the expert's weight
    sender: int  # the participant that holds the token
    receiver: int  # the participant that holds the expert


ORDERS: dict[str, Callable[[Pair], tuple[float, ...]]] = {
    "probability": lambda pair: (-pair.gate, pair.token),
    "position": lambda pair: (pair.token, pair.choice),
    "choice": lambda pair: (pair.choice, pair.token),
    "sender": lambda pair: (pair.sender, pair.expert, pair.token),
}
"""The orders of pairs. "probability": the highest gate, ties by the token. "position": the first token. "choice": first
choices, then second ones, each by the token. "sender": the first participant, and of its pairs those of the lowest
expert, each by the token."""


@dataclass(frozen=True)
class Dispatch:
    """The kept and dropped pairs of p participants that have T tokens, and E / p experts, each."""

    kept: tuple[Pair, ...]  # the pairs that reach their expert, in the order of the policy
    dropped_by_sender: tuple[Pair, ...]  # those that their own participant leaves out
    dropped_by_receiver: tuple[Pair, ...]  # those that there is no room for where their expert is


def pairs_of(routing: Routing, participants: int, experts: int) -> list[Pair]:
    """All pairs, token by token."""
    tokens, top_k = routing.experts.shape
    return [
        Pair(
            token=t,
            choice=c,
            expert=int(routing.experts[t, c]),
            gate=float(routing.gates[t, c]),
            sender=t // (tokens // participants),
            receiver=int(routing.experts[t, c]) // (experts // participants),
        )
        for t in range(tokens)
        for c in range(top_k)
    ]


def dispatch(
    routing: Routing,
    participants: int,
    experts: int,
    *,
    capacity: int | None,
    policy: str,
    capacity_per_sender: int | None = None,
) -> Dispatch:
    """An expert keeps its first `capacity` pairs, in the policy's order; None: all of them.

    By the policy "sender" the experts of a participant share one buffer of `capacity` rows for each of them, and the
    first pairs that come to it are kept, whichever of its experts they are for. Before anything is sent a participant
    drops, in the policy's order, what is more than `capacity_per_sender` for one expert.
    """
    for name, most in (("capacity", capacity), ("capacity_per_sender", capacity_per_sender)):
        if most is not None and most < 0:
            raise ValueError(f"{name}={most}: expected at least 0, or None")
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}")
    if experts % participants or len(routing.experts) % participants:
        raise ValueError(
            f"experts={experts}, tokens={len(routing.experts)}: expected multiples of {participants} participants"
        )
    in_order = sorted(pairs_of(routing, participants, experts), key=ORDERS[policy])
    sent, unsent = first_of_each(in_order, lambda pair: (pair.sender, pair.expert), capacity_per_sender)
    if policy == "sender":
        room = None if capacity is None else capacity * (experts // participants)
        kept, refused = first_of_each(sent, lambda pair: pair.receiver, room)
    else:
        kept, refused = first_of_each(sent, lambda pair: pair.expert, capacity)
    return Dispatch(kept=tuple(kept), dropped_by_sender=tuple(unsent), dropped_by_receiver=tuple(refused))


def first_of_each(
    pairs: Iterable[Pair], place: Callable[[Pair], object], most: int | None
) -> tuple[list[Pair], list[Pair]]:
    """The first `most` pairs of each place, and all others."""
    first: list[Pair] = []
    others: list[Pair] = []
    count: Counter[object] = Counter()
    for pair in pairs:
        (first if most is None or count[place(pair)] < most else others).append(pair)
        count[place(pair)] += 1
    return first, others


@dataclass(frozen=True)
class Counters:
    """Numbers of pairs by expert: int64 `[E]`, of all participants' experts one after the other."""

    chosen: np.ndarray  # those whose token chose the expert
    sent: np.ndarray  # those that their own participant does not drop, even if it is the expert's as well
    dropped_by_sender: np.ndarray  # those that it drops
    dropped_by_receiver: np.ndarray  # those that the expert's participant has no room for
    kept: np.ndarray  # those that the expert gets


def count_drops(result: Dispatch, experts: int) -> Counters:
    """The numbers of pairs of each of `experts`."""
    arriving = (*result.kept, *result.dropped_by_receiver)
    return Counters(
        chosen=_by_expert((*arriving, *result.dropped_by_sender), experts),
        sent=_by_expert(arriving, experts),
        dropped_by_sender=_by_expert(result.dropped_by_sender, experts),
        dropped_by_receiver=_by_expert(result.dropped_by_receiver, experts),
        kept=_by_expert(result.kept, experts),
    )


def _by_expert(pairs: Iterable[Pair], experts: int) -> np.ndarray:
    found = Counter(pair.expert for pair in pairs)
    return np.array([found[e] for e in range(experts)], np.int64)
