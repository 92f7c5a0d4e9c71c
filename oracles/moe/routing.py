"""The experts that each token chooses, and their gates: one token after the other.

A logit that is NaN counts as minus infinity. Equal logits have equal gates, infinite ones too: beside plus infinity
finite logits have gates of 0, and a token all of whose logits are minus infinity has equal gates.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from shardproof.oracles.softmax import through_softmax

GATES = ("chosen", "all")
"""The logits whose softmax gates are; gates of `all`, divided by their sum, are those of `chosen`."""


class Routing(NamedTuple):
    """The choices of T tokens: `experts [T, k]`, the best one first, and `gates [T, k]`."""

    experts: Int[np.ndarray, "T k"]
    gates: Shaped[np.ndarray, "T k"]


def route(logits: Shaped[np.ndarray, "T E"], top_k: int, *, over: str = "chosen") -> Routing:
    """Every token chooses the `top_k` experts of its highest logits, ties by the lowest number.

    Its gates are the softmax of its logits, over those that it chose, or over all of them.
    """
    tokens, count = logits.shape
    if not 1 <= top_k <= count:
        raise ValueError(f"top_k={top_k}: expected 1 to {count}, the number of experts")
    if over not in GATES:
        raise ValueError(f"over={over!r}: expected one of {', '.join(GATES)}")
    experts = np.zeros((tokens, top_k), np.int64)
    gates = np.zeros((tokens, top_k), logits.dtype)
    for t in range(tokens):
        known = without_nan(logits[t])
        experts[t] = highest(known, top_k)
        gates[t] = softmax(known[experts[t]]) if over == "chosen" else softmax(known)[experts[t]]
    return Routing(experts, gates)


def highest(logits: Shaped[np.ndarray, "E"], top_k: int) -> list[int]:
    """The places of the highest logits, the highest first, ties by the lowest place."""
    return sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:top_k]


def without_nan(logits: Shaped[np.ndarray, "E"]) -> Shaped[np.ndarray, "E"]:
    """The logits of a token, with minus infinity for NaN."""
    return np.where(np.isnan(logits), -np.inf, logits)


def softmax(logits: Shaped[np.ndarray, "n"]) -> Shaped[np.ndarray, "n"]:
    """`exp(l) / sum(exp(l))`; the largest logits weigh 1 before the division, even if they are infinite."""
    with np.errstate(invalid="ignore"):
        powers = np.where(logits == logits.max(), 1, np.exp(logits - logits.max()))
    return np.asarray(powers / powers.sum())


def gates_tangent(
    logits: Shaped[np.ndarray, "E"], tangent: Shaped[np.ndarray, "E"], chosen: Int[np.ndarray, "k"], over: str
) -> Shaped[np.ndarray, "k"]:
    """The tangent of a token's gates by that of its logits; what is NaN is constant."""
    known, moved = without_nan(logits), np.where(np.isnan(logits), 0, tangent)
    if over == "chosen":
        return through_softmax(softmax(known[chosen]), moved[chosen])
    return through_softmax(softmax(known), moved)[chosen]


def logits_cotangent(
    logits: Shaped[np.ndarray, "E"], cotangent: Shaped[np.ndarray, "k"], chosen: Int[np.ndarray, "k"], over: str
) -> Shaped[np.ndarray, "E"]:
    """The cotangent of a token's logits by that of its gates: those that it did not choose have none of `chosen`."""
    known, spread = without_nan(logits), np.zeros_like(logits)
    if over == "chosen":
        spread[chosen] = through_softmax(softmax(known[chosen]), cotangent)
    else:
        spread[chosen] = cotangent
        spread = through_softmax(softmax(known), spread)
    return np.where(np.isnan(logits), 0, spread)
