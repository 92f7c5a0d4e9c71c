"""What becomes of the pairs of a token and its choice, in numbers, by expert."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.moe.dropping import Dispatch, Pair


@dataclass(frozen=True)
class Counters:
    """Numbers of pairs by expert: int64 `[E]`, of all participants' experts one after the other."""

    chosen: np.ndarray  # those whose token chose the expert
    sent: np.ndarray  # those that their own participant does not drop, even if it is the expert's as well
    dropped_by_sender: np.ndarray  # those that it drops
    dropped_by_receiver: np.ndarray  # those that the expert's participant has no room for
    kept: np.ndarray  # those that the expert gets


def count_drops(result: Dispatch, experts: int) -> Counters:
    """What becomes of all pairs, of so many experts."""
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
