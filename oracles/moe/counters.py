"""How many pairs of a token and its choice are sent, dropped, kept, and how many rows are padded."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.moe.dropping import Dispatch


@dataclass(frozen=True)
class Counters:
    """Numbers of pairs, of every participant: int64 `[p]`, and of every expert: `[E]`.

    Arguments:
        sent: those of its own tokens that a participant does not drop itself, its own experts' among them.
        dropped_by_sender: those of its own tokens that it drops itself.
        dropped_by_receiver: those that come to it, and that it has no room for.
        received: those that it keeps for its experts.
        padded: the rows of its buffer that hold none.
        kept_by_expert: those that each expert keeps, all participants' experts one after the other.
    """

    sent: np.ndarray
    dropped_by_sender: np.ndarray
    dropped_by_receiver: np.ndarray
    received: np.ndarray
    padded: np.ndarray
    kept_by_expert: np.ndarray


def count(result: Dispatch, participants: int, experts: int) -> Counters:
    """What becomes of all pairs, in numbers."""
    arriving = (*result.kept, *result.dropped_by_receiver)
    return Counters(
        sent=_tally((pair.sender for pair in arriving), participants),
        dropped_by_sender=_tally((pair.sender for pair in result.dropped_by_sender), participants),
        dropped_by_receiver=_tally((pair.receiver for pair in result.dropped_by_receiver), participants),
        received=_tally((pair.receiver for pair in result.kept), participants),
        padded=np.array(result.padded, np.int64),
        kept_by_expert=_tally((pair.expert for pair in result.kept), experts),
    )


def _tally(numbers: Iterable[int], size: int) -> np.ndarray:
    found = Counter(numbers)
    return np.array([found[i] for i in range(size)], np.int64)
