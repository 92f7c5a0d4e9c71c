"""Tokens, routers and experts of which no choice, and of who is kept nothing, depends on a rounding.

Tokens are multiples of 1/64 up to 1, routers up to 2, of four features at most: their products are multiples of 2^-12
below 128, exact in float32 in whatever order they are added up. Gates of different tokens are further apart than any
roundings of them, or equal for equal logits, which gives them the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import reject

from shardproof.oracles.moe.routing import route

FAR = 64.0
"""How much less, at least, the logits of experts are that nobody chooses."""

APART = 2.0**-12
"""Gates of different tokens for one expert differ by this part of them, or not at all: their roundings are those of an
exponential, of a sum of at most 64 terms and of a division, less than 100 times 2^-24."""

TRIES = 2000
"""Tokens that are drawn for one that is apart from all others; then the case is given up."""

UNIT = 64


@dataclass(frozen=True)
class Kind:
    """What operands are like.

    Arguments:
        repeated: whether several tokens have the same logits, so that their gates tie.
        tied: whether several experts have the same logits.
        telling: whether an expert makes its own number of the last feature of a token, which is 1, so that results are
            `[N, E]`, the gates of those who keep it; otherwise experts and that feature, which the router does not
            see, are random.
    """

    repeated: bool = False
    tied: bool = False
    telling: bool = False


def routers(rng: np.random.Generator, features: int, experts: int, *, tied: bool = False) -> np.ndarray:
    """Routers `[features + 2, experts]`: the first feature of a token is 1, and the last one is in no logit.

    No two columns are equal, unless `tied`: of these half are copies of others.
    """
    columns: dict[tuple[int, ...], None] = {}
    while len(columns) < experts:
        columns[tuple(rng.integers(-2 * UNIT, 2 * UNIT + 1, features))] = None
    inner = np.array([*columns]).T / UNIT
    if tied:
        copies = rng.permutation(experts)[: experts // 2]
        inner[:, copies] = inner[:, rng.integers(0, experts, len(copies))]
    return np.concatenate([np.zeros((1, experts)), inner, np.zeros((1, experts))]).astype(np.float32)


def tokens_for(
    rng: np.random.Generator, router: np.ndarray, count: int, kind: Kind, *, top_k: int, over: str
) -> np.ndarray:
    """Tokens `[count, D]` for a router `[D, E]`: no two logits of one are equal, if the router's columns are not.

    Gates of different ones for an expert are clearly apart, so far as there are different gates.
    """
    features = len(router) - 2
    different = max(1, -(-count // 3)) if kind.repeated else count
    is_clear = clearly(router, top_k, over, kind)
    rows: list[np.ndarray] = []
    for _ in range(different):
        for _ in range(TRIES):
            row = np.concatenate([[UNIT], rng.integers(-UNIT, UNIT + 1, features), [0]]) / UNIT
            if is_clear(row):
                break
        else:
            reject()
        rows.append(row)
    each = rng.permutation(np.arange(count) % different) if kind.repeated else np.arange(count)
    result = np.array(rows).reshape(different, -1)[each].astype(np.float32)
    result[:, -1] = 1 if kind.telling else rng.standard_normal(count)
    return result


def clearly(router: np.ndarray, top_k: int, over: str, kind: Kind) -> Callable[[np.ndarray], bool]:
    """Whether a token is clearly apart from a zero one, and from those that were so before."""
    experts = router.shape[1]
    only_gate = (top_k if over == "chosen" else experts) == 1
    zero = route(np.zeros((1, experts)), top_k, over=over)
    known: dict[int, list[float]] = {int(e): [float(g)] for e, g in zip(zero.experts[0], zero.gates[0], strict=True)}

    def is_clear(row: np.ndarray) -> bool:
        logits = row @ router.astype(np.float64)
        if not kind.tied and len({*logits.tolist()}) < experts:
            return False
        chosen, gates = (x[0] for x in route(logits[None], top_k, over=over))
        pairs = [(int(e), float(g)) for e, g in zip(chosen, gates, strict=True)]
        if not only_gate and any(_near(g, known.get(e, []), kind.tied) for e, g in pairs):
            return False
        for e, g in pairs:
            known.setdefault(e, []).append(g)
        return True

    return is_clear


def _near(gate: float, others: list[float], equal: bool) -> bool:
    """Whether a gate is within roundings of another; an equal one is not, where `equal` ones are fine."""
    known = np.asarray(others, np.float64)
    near = np.abs(known - gate) <= APART * np.maximum(known, gate)
    return bool((near & (known != gate) if equal else near).any())


def experts_for(rng: np.random.Generator, features: int, experts: int, outputs: int, kind: Kind) -> np.ndarray:
    """Experts `[E, D, F]`; those that tell who they are have as many outputs as there are experts."""
    if kind.telling:
        result = np.zeros((experts, features + 2, experts), np.float32)
        result[:, -1] = np.eye(experts)
        return result
    return rng.standard_normal((experts, features + 2, outputs)).astype(np.float32)


def bound(tokens: np.ndarray, experts: np.ndarray, top_k: int) -> np.ndarray:
    """How far two right results `[N, F]` of the same tokens may be apart.

    A result is a sum over choices, whose gates add up to 1 at most, of gate times a sum over features: that many
    additions, a softmax over all experts, and 8 roundings for an exponential, each of 2^-24 of the sum of the terms'
    absolute values; in each of two results.
    """
    features, count = experts.shape[1], len(experts)
    most = np.abs(tokens).astype(np.float64) @ np.abs(experts).max(axis=0).astype(np.float64)
    return np.asarray(2 * (features + top_k + count + 12) * 2.0**-24 * most)
