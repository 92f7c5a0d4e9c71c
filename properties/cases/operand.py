"""The array arguments of a case: their blocks, and how blocks make up global arrays."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardproof.oracles.layout import Entries
from shardproof.oracles.mesh import MOST_AXES, MeshCase
from shardproof.properties.cases import reading
from shardproof.properties.cases.strategies.dtypes import as_dtype

MOST_RANK = 16
MOST_ELEMENTS = 2**27
"""What an operand that is read from a file may have at most; the elements are those on all devices."""


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


def names_in(what: str, value: Any) -> tuple[str, ...]:
    """Names of axes in JSON.

    Raises:
        ValueError: if they are none, or too many.
    """
    return tuple(reading.identifier(what, name) for name in reading.items(what, value, most=2 * MOST_AXES))


def operand_in(value: Any) -> Operand:
    """An operand in JSON.

    Raises:
        ValueError: if it is none.
    """
    record = reading.fields("operand", value, [field.name for field in dataclasses.fields(Operand)])
    sides = reading.items("block", record["block"], most=MOST_RANK)
    return Operand(
        tuple(reading.number("block", side, 0, MOST_ELEMENTS) for side in sides),
        as_dtype(reading.text("dtype", record["dtype"])).name,
        placement_in("placement", record["placement"]),
    )


def placement_in(what: str, value: Any) -> Placement:
    """A placement in JSON.

    Raises:
        ValueError: if it is none.
    """
    record = reading.fields(what, value, [field.name for field in dataclasses.fields(Placement)])
    entries = reading.items(f"{what} spec", record["spec"], most=MOST_RANK)
    return Placement(
        tuple(names_in(f"{what} spec", reading.items(f"{what} spec", entry, most=MOST_AXES)) for entry in entries),
        names_in(f"{what} stacked", record["stacked"]),
    )
