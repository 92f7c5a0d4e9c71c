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
        """Whether an axis of one dimension goes to another one, in front of an axis that is there already."""
        elsewhere = [{n for j, a in enumerate(self.held) if j != i for n in a} for i in range(len(self.held))]
        return any(
            name in held and elsewhere[i] & {*wanted[:at]}
            for i, (held, wanted) in enumerate(zip(self.held, self.wanted, strict=True))
            for at, name in enumerate(wanted)
        )

    @property
    def gathered(self) -> int:
        """How many elements a device receives that gathers the whole array."""
        return int(self.array.size - shard(self.array, self.mesh, self.held)[(0,) * len(self.mesh.sizes)].size)
