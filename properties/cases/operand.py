"""The array arguments of a case: their blocks, and how blocks make up global arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases import reading
from shardproof.properties.cases.strategies.dtypes import as_dtype

MOST_RANK = 16
MOST_ELEMENTS = 2**27
"""The most dimensions, and elements on all devices, of an operand of a case that is run from a file."""


@dataclass(frozen=True)
class Placement:
    """How blocks make up a global array: `spec` splits their own dimensions, `stacked` adds leading ones.

    An axis in `stacked` becomes a leading dimension of the global array that is as long as the
    axis, which lets blocks of rank 0 vary as well. Axes named in neither hold replicas.
    """

    spec: Entries
    stacked: tuple[str, ...] = ()

    @property
    def axes(self) -> frozenset[str]:
        """The axes along which blocks may differ."""
        return frozenset(self.stacked) | {name for entry in self.spec for name in entry}

    def partition(self, batch: Sequence[int] = ()) -> Entries:
        """The PartitionSpec of the global array, one tuple per dimension, with those of a batch."""
        return (*((name,) for name in self.stacked), *((),) * len(batch), *self.spec)

    def global_shape(self, block: tuple[int, ...], mesh: MeshCase, batch: Sequence[int] = ()) -> tuple[int, ...]:
        """The shape of the global array that blocks of shape `block` make up."""
        inner = tuple(n * mesh.axis_size(axes) for n, axes in zip(block, self.spec, strict=True))
        return (*(mesh.shape[name] for name in self.stacked), *batch, *inner)


@dataclass(frozen=True)
class Operand:
    """A global array: the shape and dtype of its blocks, and their placement."""

    block: tuple[int, ...]
    dtype: str
    placement: Placement

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype as NumPy knows it."""
        return as_dtype(self.dtype)

    def __str__(self) -> str:
        sides = []
        for size, axes in zip(self.block, self.placement.spec, strict=True):
            sides.append(f"{size}" + (f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})" if axes else ""))
        stacked = f" stacked over {','.join(self.placement.stacked)}" if self.placement.stacked else ""
        return f"{self.dtype}[{','.join(sides)}]{stacked}"


def check_operand(operand: Operand, mesh: MeshCase) -> None:
    """A decoded operand is one that can be drawn on the mesh.

    Raises:
        ValueError: if it is not.
    """
    for side in operand.block:
        reading.number("block", side, 0, MOST_ELEMENTS)
    if as_dtype(operand.dtype).name != operand.dtype:
        raise reading.Unreadable(f"dtype={reading.shown(operand.dtype)}: expected {as_dtype(operand.dtype).name!r}")
    if len(operand.block) > MOST_RANK:
        raise reading.Unreadable(f"block={reading.shown(operand.block)}: expected at most {MOST_RANK} dimensions")
    check_placement(operand.placement, mesh, len(operand.block))


def check_placement(placement: Placement, mesh: MeshCase, rank: int) -> None:
    """A decoded placement has an entry for each dimension, and names each axis of the mesh at most once.

    Raises:
        ValueError: if it is not so.
    """
    names = [*placement.stacked, *(name for entry in placement.spec for name in entry)]
    if len(placement.spec) != rank:
        raise reading.Unreadable(
            f"spec={reading.shown(placement.spec)}: expected an entry for each of {rank} dimensions"
        )
    if len(set(names)) != len(names) or not set(names) <= set(mesh.axis_names):
        told = f"spec={reading.shown(placement.spec)}, stacked={reading.shown(placement.stacked)}"
        raise reading.Unreadable(f"{told}: expected axes of the mesh, each once")
