"""A halo exchange: the array is a circle, and every participant gets its own rows and those around them."""

import numpy as np

from shardproof.oracles.collectives import among_participants
from shardproof.oracles.dtypes import wide
from shardproof.oracles.layout import Axes, Blocks, Operands
from shardproof.oracles.mesh import MeshCase


def rows_held(n: int, p: int, before: int, after: int) -> np.ndarray:
    """The rows of the whole array that each of p participants holds afterwards: `[p, before + n + after]`."""
    return (n * np.arange(p)[:, None] + np.arange(-before, n + after)) % max(1, n * p)


class HaloExchange:
    """`[N_Y, …]` to `[before + N_Y + after, …]` along the dimension `axis` of a block."""

    def value(
        self, operands: Operands, mesh: MeshCase, axes: Axes, *, before: int, after: int, axis: int = 0
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
        self, operands: Operands, tangents: Operands, mesh: MeshCase, axes: Axes, **options: int
    ) -> list[Blocks]:
        """Rows only move, so tangents move as they do."""
        return self.value(tangents, mesh, axes, **options)

    def pullback(
        self,
        operands: Operands,
        cotangents: Operands,
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
