"""What a halo exchange means: the array is a circle, and every participant gets its own rows and those around them.

Derivatives are exact, in `wide` floats, and their transpose is taken over all blocks of all devices: each
has its own cotangent (see `oracles.transposes`).
"""

from collections.abc import Sequence

import numpy as np

from shardproof.oracles.algorithms import messages
from shardproof.oracles.collectives import Axes, Blocks, among_participants
from shardproof.oracles.communication import Cost, built_in, built_in_backward
from shardproof.oracles.dtypes import wide
from shardproof.oracles.mesh import MeshCase


def rows_held(n: int, p: int, before: int, after: int) -> np.ndarray:
    """Which rows of the whole array each of p participants holds afterwards: `[p, before + n + after]`."""
    return (n * np.arange(p)[:, None] + np.arange(-before, n + after)) % max(1, n * p)


class HaloExchange:
    """`[N_Y, …]` to `[before + N_Y + after, …]` along the dimension `axis` of a block."""

    def value(
        self, operands: Sequence[Blocks], mesh: MeshCase, axes: Axes, *, before: int, after: int, axis: int = 0
    ) -> list[Blocks]:
        """Participant i holds the rows from `before` in front of its own n to `after` behind them, wrapping round."""
        (x,) = operands
        at = len(mesh.sizes) + axis % (x.ndim - len(mesh.sizes))

        def exchange(participants: np.ndarray) -> np.ndarray:
            p, others, n, *rest = participants.shape
            whole = participants.swapaxes(1, 2).reshape(p * n, others, *rest)
            return whole[rows_held(n, p, before, after)].swapaxes(1, 2)

        rows_first = np.moveaxis(x.astype(wide(x.dtype)), at, len(mesh.sizes))
        return [np.moveaxis(among_participants(rows_first, mesh, axes, None, exchange), len(mesh.sizes), at)]

    def pushforward(
        self,
        operands: Sequence[Blocks],
        tangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        before: int,
        after: int,
        axis: int = 0,
    ) -> list[Blocks]:
        """Rows only move, so tangents move as they do."""
        return self.value(tangents, mesh, axes, before=before, after=after, axis=axis)

    def pullback(
        self,
        operands: Sequence[Blocks],
        cotangents: Sequence[Blocks],
        mesh: MeshCase,
        axes: Axes,
        *,
        before: int,
        after: int,
        axis: int = 0,
    ) -> list[Blocks]:
        """A row's cotangent is the sum of those of all places that it was put in."""
        (x,), (ct,) = operands, cotangents
        at = len(mesh.sizes) + axis % (x.ndim - len(mesh.sizes))
        n = x.shape[at]

        def exchange(participants: np.ndarray) -> np.ndarray:
            p, others, _, *rest = participants.shape
            whole = np.zeros((p * n, others, *rest), participants.dtype)
            with np.errstate(invalid="ignore"):  # infinities of both signs
                np.add.at(whole, rows_held(n, p, before, after), participants.swapaxes(1, 2))
            return whole.reshape(p, n, others, *rest).swapaxes(1, 2)

        rows_first = np.moveaxis(ct.astype(wide(ct.dtype)), at, len(mesh.sizes))
        return [np.moveaxis(among_participants(rows_first, mesh, axes, None, exchange), len(mesh.sizes), at)]


halo_exchange = HaloExchange()


def permutes_cost(p: int, n: int, row: int, *, before: int, after: int, bits: int = 8) -> Cost:
    """The rows that are missing, each once: n in a block, of `row` elements each; the gradient's permutes are as many.

    The rows in front of a block are the last ones of the participants 1, 2, … places behind, n of each but the last,
    and those behind it the first ones of those ahead. The participant d places behind is p - d ahead as well: what it
    sends is in one permute where the two make up its block, and in two where rows between them are not needed. None
    waits for another.
    """
    sent: list[int] = []
    for distance in range(1, p):
        tail = min(n, max(0, before - (distance - 1) * n))
        head = min(n, max(0, after - (p - distance - 1) * n))
        sent += [n * row] if tail + head >= n else [tail * row, head * row]
    return messages(sent, bits, steps=1)


def gathered_cost(p: int, n: int, *, bits: int = 8, backward: bool = False) -> Cost:
    """One all-gather of a block of n elements; its gradient is the transpose, as rows are taken whatever is in them."""
    if backward:
        return built_in_backward("all_gather", p, n, bits=bits)
    return built_in("all_gather", n, bits=bits)
