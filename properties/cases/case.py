"""A case: one draw, everything needed to run one check again, and nothing else."""

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MOST_AXES, MOST_DEVICES, MeshCase, as_axes
from shardproof.properties.cases import reading
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies.dtypes import as_dtype

FORMAT = 2
"""The version of the JSON form; a reader refuses a newer one. In the first there were no roles."""

BATCH = 2
"""How many inputs the transformations that batch (`vmap`, `scan`, …) carry, along a leading dimension."""

MOST_OPERANDS, MOST_RANK, MOST_DATA = 64, 16, 100
MOST_SEED = 2**32
MOST_ELEMENTS = 2**27
"""What a case that is read from a file may have at most; the elements are those of an operand on all devices."""

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
        around: the transformation put around the call (see `shardproof.properties.programs.transformations`).
        manual: the axes that `shard_map` makes manual; empty means all.
        tree: whether the operands are passed as one pytree.
        out: how each result leaves `shard_map`, where a law asks for it.
        forbidden: the argument that this case gets wrong, for the error law.
        roles: of an operation whose axis tuples have names of their own, what the implementation gets for each;
            `axis_name` is then all of their axes.
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
    out: tuple[Placement, ...] | None = None
    forbidden: str = ""
    roles: tuple[tuple[str, str | tuple[str, ...]], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis tuple of `axis_name`."""
        return as_axes(self.axis_name)

    @property
    def members(self) -> int:
        """The number of devices that the collective connects."""
        return self.mesh.axis_size(self.axes)

    @property
    def group_size(self) -> int:
        """The number of devices that exchange with one another, at most: all members, or the largest group of them."""
        groups = self.keywords.get("axis_index_groups")
        return self.members if groups is None else max(map(len, groups))

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the implementation."""
        return dict(self.params)

    def with_params(self, **params: Any) -> "Case":
        """This case with other values of some keyword arguments."""
        return dataclasses.replace(self, params=tuple({**self.keywords, **params}.items()))

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
        over = ", ".join(f"{role}={axes!r}" for role, axes in self.roles) or repr(self.axis_name)
        return f"{self.contract}({', '.join(map(str, self.operands))}, {over}{params}){extras} on mesh {self.mesh}"

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
            "out": None if self.out is None else [dataclasses.asdict(placed) for placed in self.out],
            "forbidden": self.forbidden,
            "roles": dict(self.roles),
        }
        return json.dumps(record, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Case":
        """The case that `to_json` wrote; nothing in the text is executed.

        Raises:
            ValueError: if the text is no JSON, no case, of a newer format, or out of all bounds.
        """
        record = reading.loaded(text)
        if not isinstance(record, dict) or "format" not in record:
            raise ValueError("not a case: expected a JSON object with a 'format'")
        if type(record["format"]) is not int or not 1 <= record["format"] <= FORMAT:
            raise ValueError(
                f"format={reading.shown(record['format'])}: expected 1 to {FORMAT}; another version wrote this case"
            )
        names = ("format", *(field.name for field in dataclasses.fields(cls)))
        reading.fields("case", record, names, optional=("roles",) if record["format"] == 1 else ())
        return cls(
            contract=reading.identifier("contract", record["contract"]),
            mesh=MeshCase.from_json(record["mesh"]),
            axis_name=_axis_name(record["axis_name"]),
            operands=tuple(map(_operand, reading.items("operands", record["operands"], most=MOST_OPERANDS))),
            params=_params(record["params"]),
            data=tuple(map(_data, reading.items("data", record["data"], most=MOST_DATA))),
            around=reading.identifier("around", record["around"]),
            manual=_names("manual", record["manual"]),
            tree=reading.truth("tree", record["tree"]),
            out=_out(record["out"], record),
            forbidden=record["forbidden"] and reading.identifier("forbidden", record["forbidden"]),
            roles=_roles(record.get("roles", {})),
        )


def _axis_name(value: Any) -> str | tuple[str, ...]:
    return _names("axis_name", value) if isinstance(value, list) else reading.identifier("axis_name", value)


def _names(what: str, value: Any) -> tuple[str, ...]:
    return tuple(reading.identifier(what, name) for name in reading.items(what, value, most=2 * MOST_AXES))


def _roles(value: Any) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    if not isinstance(value, dict) or len(value) > MOST_AXES:
        raise ValueError(f"roles={reading.shown(value)}: expected an object with at most {MOST_AXES} of them")
    return tuple((reading.identifier("role", role), _axis_name(axes)) for role, axes in value.items())


def _operand(value: Any) -> Operand:
    record = reading.fields("operand", value, [field.name for field in dataclasses.fields(Operand)])
    sides = reading.items("block", record["block"], most=MOST_RANK)
    return Operand(
        tuple(reading.number("block", side, 0, MOST_ELEMENTS) for side in sides),
        as_dtype(reading.text("dtype", record["dtype"])).name,
        _placement("placement", record["placement"]),
    )


def _placement(what: str, value: Any) -> Placement:
    record = reading.fields(what, value, [field.name for field in dataclasses.fields(Placement)])
    entries = reading.items(f"{what} spec", record["spec"], most=MOST_RANK)
    return Placement(
        tuple(_names(f"{what} spec", reading.items(f"{what} spec", entry, most=MOST_AXES)) for entry in entries),
        _names(f"{what} stacked", record["stacked"]),
    )


def _out(value: Any, record: Any) -> tuple[Placement, ...] | None:
    """How the results leave; in the first format all of them in the same way."""
    if value is None:
        return None
    if record["format"] == 1:
        return (_placement("out", value),) * (len(record["operands"]) if record["tree"] is True else 1)
    return tuple(_placement("out", placed) for placed in reading.items("out", value, most=MOST_OPERANDS))


def _data(value: Any) -> Data:
    record = reading.fields("data", value, [field.name for field in dataclasses.fields(Data)])
    return Data(reading.text("kind", record["kind"]), reading.number("seed", record["seed"], 0, MOST_SEED))


def _params(value: Any) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict) or len(value) > MOST_RANK:
        raise ValueError(f"params={reading.shown(value)}: expected an object with at most {MOST_RANK} parameters")
    return tuple((reading.identifier("parameter", name), _param(name, found)) for name, found in value.items())


def _param(name: str, value: Any, *, depth: int = 2) -> Any:
    """A keyword argument: a name, a truth, a finite number, or tuples of whole ones, as `perm` and groups are."""
    if isinstance(value, list) and depth:
        return tuple(_param(name, item, depth=depth - 1) for item in reading.items(name, value, most=MOST_DEVICES))
    if isinstance(value, str):
        return value if not value else reading.identifier(name, value)
    if isinstance(value, bool) or (type(value) is float and math.isfinite(value)):
        return value
    return reading.number(name, value, -MOST_SEED, MOST_SEED)
