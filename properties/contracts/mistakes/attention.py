"""What is easily mistaken in attention: which keys are seen, how logits are scaled, and what has a derivative."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardproof.oracles import attention
from shardproof.oracles.attention import turned
from shardproof.oracles.collectives import Axes, Blocks
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts.mistakes.powers import bounded_powers

Seen = Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], np.ndarray]
"""Which keys a query sees of which all are to be seen that are not behind it: given the positions of queries, of keys,
the numbers of heads, how many rows a participant has, and how many participants there are."""


class Mistaken:
    """Attention of which one thing is mistaken that depends on how many participants there are.

    Arguments:
        made: the mistaken attention, given their number.
    """

    def __init__(self, made: Callable[[int], attention.Attention]) -> None:
        self.made = made

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, **given: Any) -> list[Blocks]:
        """Its results."""
        return self.made(mesh.axis_size(axes)).value(operands, mesh, axes, **given)

    def pushforward(
        self, operands: Sequence[Blocks], tangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, **given: Any
    ) -> list[Blocks]:
        """Their tangents."""
        return self.made(mesh.axis_size(axes)).pushforward(operands, tangents, mesh, axes, **given)

    def pullback(
        self, operands: Sequence[Blocks], cotangents: Sequence[Blocks], mesh: MeshCase, axes: Axes, **given: Any
    ) -> list[Blocks]:
        """The cotangents of the operands."""
        return self.made(mesh.axis_size(axes)).pullback(operands, cotangents, mesh, axes, **given)


class OtherWeights(attention.Attention):
    """Attention with other weights.

    Arguments:
        p: the number of participants.
        causal: which keys are seen, where it is causal.
        always: which are seen of those, or of all.
        scale: what logits are divided by, given the number of features.
        blocks: which block of keys is met at which step, given the number of the query's and of the key's: the
            maximum so far, of the blocks that were met, is subtracted; without it, that of all.
    """

    def __init__(
        self,
        p: int,
        causal: Seen = lambda i, j, heads, rows, p: i >= j,
        always: Seen | None = None,
        scale: Callable[[int], float] = math.sqrt,
        blocks: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.p, self.causal, self.always, self.scale, self.blocks = p, causal, always, scale, blocks

    def weights(self, q: attention.Whole, k: attention.Whole, causal: bool) -> np.ndarray:
        """Weights that add up to 1."""
        heads, whole = q.shape[1:3]
        rows, (i, j) = whole // self.p, np.ogrid[:whole, :whole]
        given = (i, j, np.arange(heads)[:, None, None], rows, self.p)
        seen = np.ones((heads, whole, whole), bool)
        for rule in (self.causal if causal else None, self.always):
            seen &= True if rule is None else rule(*given)
        with np.errstate(all="ignore"):
            logits = np.where(seen, q @ turned(k) / q.dtype.type(self.scale(q.shape[-1])), -np.inf)
            most = logits.max(axis=-1, keepdims=True) if self.blocks is None else self.highest(logits)
            powers = np.exp(logits - most)
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def highest(self, logits: np.ndarray) -> np.ndarray:
        """For each logit the largest of those that were met by then."""
        assert self.blocks is not None
        whole = logits.shape[-1]
        i, j = np.ogrid[:whole, :whole]
        step = self.blocks(i * self.p // whole, j * self.p // whole) % self.p
        maxima = [np.where(step <= n, logits, -np.inf).max(axis=-1, keepdims=True) for n in range(self.p)]
        return np.asarray(np.select([step == n for n in range(self.p)], maxima))


class NoMaximum(attention.Attention):
    """Takes powers of the logits as they are."""

    def value(self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, causal: bool = False) -> list[Blocks]:
        """The mean of the values by those powers, of which none may be left, or too much."""

        def attend(q: attention.Whole, k: attention.Whole, v: attention.Whole) -> list[attention.Whole]:
            logits = q @ turned(k) / np.sqrt(attention.wide_of(q, q.shape[-1]))
            seen = np.tri(q.shape[-2], dtype=bool) | (not causal)
            powers, total = bounded_powers(np.where(seen, logits, -np.inf), operands[0].dtype)
            return [powers / total @ v]

        with np.errstate(all="ignore"):
            return attention.of_wholes(attend, operands, mesh, axes)


class OwnValues(attention.Attention):
    """Weighs a participant's own values with the weights of the keys that came from others.

    Arguments:
        p: the number of participants.
    """

    def __init__(self, p: int) -> None:
        self.p = p

    def weights(self, q: attention.Whole, k: attention.Whole, causal: bool) -> np.ndarray:
        """Of every participant's block of keys the weights are at the query's own."""
        right = super().weights(q, k, causal)
        rows = right.shape[-1] // self.p
        folded = right.reshape(*right.shape[:-1], self.p, rows).sum(axis=-2)
        return np.where(_own_block(right.shape[-1], rows), np.tile(folded, self.p), 0)


class ConstantSum(attention.Attention):
    """Has the right values, and a derivative in which the sum of the weights does not move."""

    def through_softmax(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The derivative of the powers alone."""
        return w * x


class NothingArrives(attention.Attention):
    """Has the right values, and a derivative in which keys and values of other participants are constants.

    Arguments:
        p: the number of participants.
    """

    def __init__(self, p: int) -> None:
        self.p = p

    def pushforward(
        self,
        operands: Sequence[Blocks],
        tangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        causal: bool = False,
    ) -> list[Blocks]:
        """The tangents of a query's own keys and values, and of the query."""
        (_, dk, dv), still = tangents, [np.zeros_like(x) for x in tangents]
        moving = super().pushforward(operands, [tangents[0], *still[1:]], mesh, axes, causal=causal)

        def attend(*x: attention.Whole) -> list[attention.Whole]:
            q, k, v, dk, dv = x
            w, own = self.weights(q, k, causal), _own_block(q.shape[-2], q.shape[-2] // self.p)
            dl = np.where(own, q @ turned(dk), 0) / np.sqrt(attention.wide_of(q, q.shape[-1]))
            return [self.through_softmax(w, dl) @ v + np.where(own, w, 0) @ dv]

        arriving = attention.of_wholes(attend, [*operands, dk, dv], mesh, axes)
        return [a + b for a, b in zip(moving, arriving, strict=True)]

    def pullback(
        self,
        operands: Sequence[Blocks],
        cotangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        causal: bool = False,
    ) -> list[Blocks]:
        """Of keys and values the cotangents of their own participant's queries."""

        def attend(*x: attention.Whole) -> list[attention.Whole]:
            q, k, v, ct = x
            w, own = self.weights(q, k, causal), _own_block(q.shape[-2], q.shape[-2] // self.p)
            of_logits = self.through_softmax(w, ct @ turned(v)) / np.sqrt(attention.wide_of(q, q.shape[-1]))
            return [of_logits @ k, turned(np.where(own, of_logits, 0)) @ q, turned(np.where(own, w, 0)) @ ct]

        return attention.of_wholes(attend, [*operands, *cotangents], mesh, axes)


def _own_block(whole: int, rows: int) -> np.ndarray:
    i, j = np.ogrid[:whole, :whole]
    return np.asarray(i // rows == j // rows)


MASKS: dict[str, Seen] = {
    "queries are masked by their positions in a participant's own piece": lambda i, j, h, n, p: i % n >= j,
    "queries and keys are masked by their positions in participants' own pieces": lambda i, j, h, n, p: i % n >= j % n,
    "keys are masked by their positions in their participant's own piece": lambda i, j, h, n, p: i >= j % n,
    "a query does not see the key at its own position": lambda i, j, h, n, p: (i > j) | (i + j == 0),
    "a query sees the keys behind it, and not those before": lambda i, j, h, n, p: i <= j,
    "a participant's own keys, and all those before, are seen by all its queries": lambda i, j, h, n, p: (
        i // n >= j // n
    ),
    "keys are masked as if they came from the other direction": (
        lambda i, j, h, n, p: i >= (2 * (i // n) - j // n) % p * n + j % n
    ),
    "queries are counted from the piece of the participant that has their heads, and not from the first": (
        lambda i, j, h, n, p: h * p // (h.max() + 1) * n + i >= j
    ),
}
"""Which keys may have been seen by a query, where it is causal."""

LACKING: dict[str, Seen] = {
    f"queries do not see the keys of {whose}": partial(lambda i, j, h, n, p, d: (i // n + d - j // n) % p != 0, d=d)
    for whose, d in (("their own participant", 0), ("the participant behind", 1), ("the participant before", -1))
}
"""Of whom keys and values may have been left out."""

MISTAKES = {
    **{text: Mistaken(partial(OtherWeights, causal=rule)) for text, rule in MASKS.items()},
    **{text: Mistaken(partial(OtherWeights, always=rule)) for text, rule in LACKING.items()},
    "logits are divided by the number of features, and not by its root": OtherWeights(1, scale=float),
    "logits are not divided by the root of the number of features": OtherWeights(1, scale=lambda features: 1.0),
    "sums so far are not corrected when a block has a larger maximum, each block after the one behind it": Mistaken(
        partial(OtherWeights, blocks=lambda query, key: query - key)
    ),
    "sums so far are not corrected when a block has a larger maximum, each block after the one before it": Mistaken(
        partial(OtherWeights, blocks=lambda query, key: key - query)
    ),
    "no maximum is subtracted from logits, whose powers overflow": NoMaximum(),
    "the keys of all participants meet the values of the query's own": Mistaken(OwnValues),
    "the sum of the weights is a constant in the derivative": ConstantSum(),
    "keys and values of other participants are constants in the derivative": Mistaken(NothingArrives),
}
