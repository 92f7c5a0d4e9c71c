"""A change of layout: an array, how it is laid out, and how it is to be."""

from dataclasses import dataclass

import numpy as np

from shardproof.oracles.layout import Entries, shard
from shardproof.oracles.mesh import MeshCase


@dataclass(frozen=True)
class Resharding:
    """An array of so many dimensions, how it is laid out, and how it is to be."""

    mesh: MeshCase
    shape: tuple[int, ...]
    held: Entries
    wanted: Entries

    @property
    def array(self) -> np.ndarray:
        """All elements different."""
        return np.arange(np.prod(self.shape, dtype=int), dtype=np.int32).reshape(self.shape)

    @property
    def lacking(self) -> int:
        """How many elements some device is to have and does not have."""
        before, after = (shard(self.array, self.mesh, spec) for spec in (self.held, self.wanted))
        return max(len({*after[at].flat} - {*before[at].flat}) for at in np.ndindex(*self.mesh.sizes))

    @property
    def in_front_of_another(self) -> bool:
        """Whether an axis goes to another dimension, in front of an axis there, or away from there."""
        return in_front(self.held, self.wanted)

    @property
    def over_another_axis(self) -> bool:
        """Whether one dimension is to be sharded, over an axis of two, in place of others.

        In place of one, over another axis of two; or of two, over an axis of two each, of which the first one's goes to
        a dimension that is not between them.
        """
        held, wanted = (
            [(i, name) for i, axes in enumerate(entries) for name in axes if self.mesh.shape[name] > 1]
            for entries in (self.held, self.wanted)
        )
        if len(wanted) != 1 or any(self.mesh.shape[name] != 2 for _, name in (*held, *wanted)):
            return False
        ((to, over),) = wanted
        if len(held) == 1:
            return held[0][0] != to and held[0][1] != over
        if len(held) != 2:
            return False
        (first, moving), (second, _) = held
        return over == moving and first < second and not first <= to <= second

    @property
    def gathered(self) -> int:
        """How many elements a device receives that gathers the whole array."""
        return int(self.array.size - shard(self.array, self.mesh, self.held)[(0,) * len(self.mesh.sizes)].size)


def in_front(held: Entries, wanted: Entries) -> bool:
    """Whether an axis goes to another dimension, in front of one that does not come along, or leaves one."""
    return _arrives(held, wanted, stays=False) or _arrives(wanted, held, stays=True)


def _arrives(held: Entries, wanted: Entries, *, stays: bool) -> bool:
    for i, after in enumerate(wanted):
        elsewhere = {name for j, axes in enumerate(held) if j != i for name in axes}
        for at, name in enumerate(after):
            there = name in held[i] if stays else name not in elsewhere
            if there and elsewhere & {*after[:at]}:
                return True
    return False
