"""A case: one draw, everything needed to run one check again, and nothing else."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from oracles.layout import shard
from oracles.mesh import MeshCase, as_axes
from properties.data import Data, generate
from properties.strategies.dtypes import as_dtype

FORMAT = 1
"""The version of the JSON form; a reader refuses a newer one."""

BATCH = 2
"""How many inputs the transformations that batch (`vmap`, `scan`, …) carry, along a leading dimension."""

Entries = tuple[tuple[str, ...], ...]


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

    def partition(self, *, batched: bool = False) -> Entries:
        """The PartitionSpec of the global array, one tuple per dimension, with a batch dimension if `batched`."""
        return (*((name,) for name in self.stacked), *(((),) if batched else ()), *self.spec)

    def global_shape(self, block: tuple[int, ...], mesh: MeshCase, *, batched: bool = False) -> tuple[int, ...]:
        """The shape of the global array that blocks of shape `block` make up."""
        inner = tuple(n * mesh.axis_size(axes) for n, axes in zip(block, self.spec, strict=True))
        return (*(mesh.shape[name] for name in self.stacked), *((BATCH,) if batched else ()), *inner)


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


@dataclass(frozen=True)
class Case:
    """One structure and the data sets to run it on.

    Arguments:
        contract: the name of the contract.
        mesh: the mesh.
        axis_name: what the implementation gets as `axis_name`.
        operands: its array arguments; more than one per parameter when `tree` is set.
        params: its keyword arguments.
        data: the data sets, each run through the one compiled structure.
        around: the transformation put around the call (see `properties.transformations`).
        manual: the axes that `shard_map` makes manual; empty means all.
        tree: whether the operands are passed as one pytree.
        out: how the result leaves `shard_map`, where a law asks for it.
        forbidden: the argument that this case gets wrong, for the error law.
    """

    contract: str
    mesh: MeshCase
    axis_name: str | tuple[str, ...]
    operands: tuple[Operand, ...]
    params: tuple[tuple[str, Any], ...] = ()
    data: tuple[Data, ...] = (Data("exact", 0),)
    around: str = "jit"
    manual: tuple[str, ...] = ()
    tree: bool = False
    out: Placement | None = None
    forbidden: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis tuple of `axis_name`."""
        return as_axes(self.axis_name)

    @property
    def members(self) -> int:
        """The number of devices that the collective connects."""
        return self.mesh.axis_size(self.axes)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the implementation."""
        return dict(self.params)

    @cached_property
    def structure(self) -> "Case":
        """This case without its data: what is traced and compiled."""
        return dataclasses.replace(self, data=())

    @property
    def order(self) -> str:
        """How the axis tuple stands to the mesh: `one axis`, `mesh order` or `permuted` (or none of it)."""
        if len(self.axes) == 1:
            return "one axis"
        if not self.axes or not set(self.axes) <= set(self.mesh.axis_names):
            return "not of this mesh"
        return "mesh order" if self.axes == self.mesh.in_mesh_order(self.axes) else "permuted"

    def global_array(self, index: int, data: Data, *, terms: int, batched: bool, degree: int = 1) -> np.ndarray:
        """The global array of operand `index` under a data set."""
        operand = self.operands[index]
        shape = operand.placement.global_shape(operand.block, self.mesh, batched=batched)
        own = dataclasses.replace(data, seed=data.seed * len(self.operands) + index)
        return generate(own, shape, operand.numpy_dtype, terms=terms, degree=degree)

    def blocks(self, index: int, array: np.ndarray, *, batched: bool) -> np.ndarray:
        """The blocks `[*mesh.sizes, (batch,) *block]` of operand `index`, given its global array."""
        operand = self.operands[index]
        held = shard(array, self.mesh, operand.placement.partition(batched=batched))
        return held.reshape(*self.mesh.sizes, *((BATCH,) if batched else ()), *operand.block)

    def __str__(self) -> str:
        params = "".join(f", {name}={value!r}" for name, value in self.params)
        extras = "" if self.around == "jit" else f" under {self.around}"
        return (
            f"{self.contract}({', '.join(map(str, self.operands))}, {self.axis_name!r}{params}){extras} "
            f"on mesh {self.mesh}"
        )

    def to_json(self) -> str:
        """This case as JSON."""
        record = {
            "format": FORMAT,
            "contract": self.contract,
            "mesh": self.mesh.to_json(),
            "axis_name": self.axis_name,
            "operands": [dataclasses.asdict(operand) for operand in self.operands],
            "params": dict(self.params),
            "data": [dataclasses.asdict(data) for data in self.data],
            "around": self.around,
            "manual": self.manual,
            "tree": self.tree,
            "out": None if self.out is None else dataclasses.asdict(self.out),
            "forbidden": self.forbidden,
        }
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """The case that `to_json` wrote; nothing in the text is executed.

        Raises:
            ValueError: if the text is no JSON, no case, or of a newer format.
        """
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from error
        if not isinstance(record, dict) or "format" not in record:
            raise ValueError("not a case: expected a JSON object with a 'format'")
        if type(record["format"]) is not int or not 1 <= record["format"] <= FORMAT:
            raise ValueError(f"format={record['format']!r}: expected 1 to {FORMAT}; another version wrote this case")
        try:
            return cls(
                contract=str(record["contract"]),
                mesh=MeshCase.from_json(record["mesh"]),
                axis_name=_tuples(record["axis_name"]),
                operands=tuple(
                    Operand(_tuples(o["block"]), as_dtype(o["dtype"]).name, _placement(o["placement"]))
                    for o in record["operands"]
                ),
                params=tuple((str(name), _tuples(value)) for name, value in record["params"].items()),
                data=tuple(Data(str(d["kind"]), int(d["seed"])) for d in record["data"]),
                around=str(record["around"]),
                manual=_tuples(record["manual"]),
                tree=bool(record["tree"]),
                out=None if record["out"] is None else _placement(record["out"]),
                forbidden=str(record["forbidden"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a case: {type(error).__name__}: {error}") from error


def _tuples(value: Any) -> Any:
    """JSON lists as the tuples that they were."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _placement(record: Mapping[str, Any]) -> Placement:
    return Placement(_tuples(record["spec"]), _tuples(record["stacked"]))
