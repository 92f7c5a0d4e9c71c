"""A case: one draw, everything needed to run one check again, and nothing else."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import Meta

from shardproof.oracles.dtypes import WIDE, as_dtype
from shardproof.oracles.layout import Entries, shard
from shardproof.oracles.mesh import MOST_AXES, MOST_DEVICES, MeshCase, as_axes
from shardproof.properties.cases import reading
from shardproof.properties.cases.chain import (
    BATCH,
    COMPOSE,
    LINKS,
    NESTED,
    OUTSIDE,
    SPMD,
    Chain,
    Link,
    check_chain,
    in_words,
)
from shardproof.properties.cases.data import MOST_SEED, Data, generate

MOST_RANK, MOST_ELEMENTS = 16, 2**27
"""The most dimensions of a case that is read from a file, and the most elements of an operand on all devices."""

Name = Annotated[str, Meta(pattern=reading.IDENTIFIER, max_length=reading.LONGEST_NAME)]
Axes = Name | tuple[Name, ...]
Side = Annotated[int, Meta(ge=0, le=MOST_ELEMENTS)]


@dataclass(frozen=True)
class Placement:
    """The way that blocks make up a global array: `spec` splits their own dimensions, `stacked` adds leading ones.

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

    block: Annotated[tuple[Side, ...], Meta(max_length=MOST_RANK)]
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


def check_placement(placement: Placement, mesh: MeshCase, rank: int) -> None:
    """Raises ValueError unless a placement has an entry for each dimension, and axes of the mesh, each once."""
    names = [*placement.stacked, *(name for entry in placement.spec for name in entry)]
    if len(placement.spec) != rank:
        raise reading.Unreadable(
            f"spec={reading.shown(placement.spec)}: expected an entry for each of {rank} dimensions"
        )
    if len(set(names)) != len(names) or not set(names) <= set(mesh.axis_names):
        given = f"spec={reading.shown(placement.spec)}, stacked={reading.shown(placement.stacked)}"
        raise reading.Unreadable(f"{given}: expected axes of the mesh, each once")


if TYPE_CHECKING:
    from shardproof.properties.contracts.contract import Contract
else:
    Contract = Any  # in a file, its name


@dataclass(frozen=True)
class Case:
    """One structure and the data sets to run it on."""

    contract: Contract
    mesh: MeshCase
    axis_name: Axes  # as the implementation gets it
    # the array arguments; more than one per parameter if they are a `tree`
    operands: Annotated[tuple[Operand, ...], Meta(max_length=64)]
    params: Annotated[tuple[tuple[Name, Any], ...], Meta(max_length=MOST_RANK)] = ()  # the keyword arguments
    # each is run through the one compiled structure
    data: Annotated[tuple[Data, ...], Meta(max_length=100)] = (Data("exact", 0),)
    chain: Chain = ()  # the transformations around the call, outermost first (see `shardproof.properties.cases.chain`)
    manual: tuple[Name, ...] = ()  # the axes that `shard_map` makes manual; empty: all
    tree: bool = False  # whether the operands are passed as one pytree
    # how each result leaves `shard_map`, for the law of types
    out: Annotated[tuple[Placement, ...], Meta(max_length=64)] | None = None
    forbidden: Annotated[str, Meta(pattern=f"^$|{reading.IDENTIFIER}", max_length=reading.LONGEST_NAME)] = (
        ""  # the argument that this case gets wrong, for the law of errors
    )
    # if the axis tuples have names of their own, the argument for each; `axis_name` is then all of their axes
    roles: Annotated[tuple[tuple[Name, Axes], ...], Meta(max_length=MOST_AXES)] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis tuple of `axis_name`."""
        return as_axes(self.axis_name)

    @property
    def participants(self) -> int:
        """The number of devices that the collective connects."""
        return self.mesh.axis_size(self.axes)

    @property
    def trivial(self) -> bool:
        """True if nothing can go wrong: one participant, an empty block, a shift by whole turns; but not an error."""
        if self.forbidden:
            return False
        empty = any(0 in operand.block for operand in self.operands)
        return self.participants == 1 or empty or self.keywords.get("offset", 1) % self.participants == 0

    @property
    def group_size(self) -> int:
        """The most devices that exchange with one another: all participants, or those of the largest group."""
        groups = self.keywords.get("axis_index_groups")
        return self.participants if groups is None else max(map(len, groups))

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the implementation."""
        return dict(self.params)

    def with_params(self, **params: Any) -> "Case":
        """This case with other values of some keyword arguments."""
        return dataclasses.replace(self, params=tuple({**self.keywords, **params}.items()))

    @cached_property
    def structure(self) -> "Case":
        """This case without its data, for what is traced and compiled."""
        return dataclasses.replace(self, data=())

    @property
    def order(self) -> str:
        """The order of the axis tuple: `one axis`, `mesh order` or `permuted`; `not of this mesh` if it is not."""
        if len(self.axes) == 1:
            return "one axis"
        if not self.axes or not set(self.axes) <= set(self.mesh.axis_names):
            return "not of this mesh"
        return "mesh order" if self.axes == self.mesh.in_mesh_order(self.axes) else "permuted"

    @property
    def links(self) -> tuple[Link, ...]:
        """The transformations around the call."""
        return tuple(LINKS[name] for name in self.chain)

    @property
    def calls(self) -> int:
        """The number of composed calls."""
        return 2 ** self.chain.count(COMPOSE)

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dimensions of a result, one for every link that batches, the outermost first."""
        return tuple(BATCH for link in self.links if link.batched)

    def batch_of(self, index: int) -> tuple[int, ...]:
        """The batch dimensions of operand `index`: those of the links that map it."""
        return tuple(BATCH for link in self.links if link.maps_operand(index))

    def shared_dimensions(self, index: int) -> tuple[int, ...]:
        """The batch's dimensions along which operand `index` is the same."""
        batched = [link for link in self.links if link.batched]
        return tuple(at for at, link in enumerate(batched) if not link.maps_operand(index))

    def keeps(self, at: Sequence[int]) -> bool:
        """True if the result of one input of the batch is returned, and not zeros in its place."""
        batched = [link for link in self.links if link.batched]
        return all(link.keeps[i] for link, i in zip(batched, at, strict=True))

    def partition(self, index: int) -> Entries:
        """The PartitionSpec of the global array of operand `index`."""
        return self.operands[index].placement.partition(self.batch_of(index))

    def global_shape(self, index: int) -> tuple[int, ...]:
        """The shape of the global array of operand `index`: `[*stacked, *batch, *dimensions]`."""
        operand = self.operands[index]
        return operand.placement.global_shape(operand.block, self.mesh, self.batch_of(index))

    def global_array(self, index: int, data: Data, *, terms: int, degree: int = 1) -> np.ndarray:
        """The global array of operand `index` under a data set."""
        operand, shape = self.operands[index], self.global_shape(index)
        own = dataclasses.replace(data, seed=data.seed * len(self.operands) + index)
        return generate(own, shape, operand.numpy_dtype, terms=terms, degree=degree)

    def aligned(self, index: int, array: np.ndarray) -> np.ndarray:
        """The global array of operand `index` with a side of 1 where it lacks a dimension of the batch."""
        stacked, shared = len(self.operands[index].placement.stacked), self.shared_dimensions(index)
        sides = (1 if at in shared else size for at, size in enumerate(self.batch))
        own = len(self.batch_of(index))
        return array.reshape(*array.shape[:stacked], *sides, *array.shape[stacked + own :])

    @property
    def is_wide(self) -> bool:
        """True if an operand has a 64-bit dtype."""
        return any(operand.dtype in WIDE for operand in self.operands)

    def blocks(self, index: int, array: np.ndarray) -> np.ndarray:
        """The blocks `[*mesh.sizes, *batch, *block]` of operand `index`, given its global array."""
        held = shard(array, self.mesh, self.partition(index))
        return held.reshape(*self.mesh.sizes, *self.batch_of(index), *self.operands[index].block)

    def __str__(self) -> str:
        params = "".join(f", {name}={value!r}" for name, value in self.params)
        extras = f" under {in_words(self.chain)}" if self.chain else ""
        over = ", ".join(f"{role}={axes!r}" for role, axes in self.roles) or repr(self.axis_name)
        return f"{self.contract.name}({', '.join(map(str, self.operands))}, {over}{params}){extras} on mesh {self.mesh}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Prints it for Hypothesis, which would print all fields of its contract."""
        printer.text(str(self))

    def to_json(self) -> str:
        """This case as JSON."""
        return json.dumps(msgspec.to_builtins(self.named()))

    def named(self) -> "Case":
        """This case with the name of its contract, as it stands in a file."""
        return dataclasses.replace(self, contract=cast(Contract, self.contract.name))

    @classmethod
    def from_json(cls, text: str, contract_of: Callable[[str], Contract]) -> "Case":
        """The case that `to_json` wrote, of the contract that has its name; nothing in the text is executed.

        Raises:
            ValueError: if the text is no JSON, no case, or out of all bounds.
        """
        return bounded(reading.decode(cls, reading.load_json(text)), contract_of)


def bounded(case: Case, contract_of: Callable[[str], Contract]) -> Case:
    """A decoded case with its contract; ValueError, with field and value, unless it could have been drawn."""
    contract = str(case.contract)  # of a file its name
    if not re.search(reading.IDENTIFIER, contract):
        raise reading.Unreadable(f"contract={reading.shown(contract)}: expected an identifier")
    check_chain(case.chain)
    for operand in case.operands:
        as_dtype(operand.dtype)
        check_placement(operand.placement, case.mesh, len(operand.block))
    for placed in case.out or ():
        check_placement(placed, case.mesh, len(placed.spec))
    params = tuple((name, parameter(name, value)) for name, value in case.params)
    return dataclasses.replace(case, contract=contract_of(contract), params=params)


def parameter(name: str, value: Any, *, depth: int = 2) -> Any:
    """A keyword argument; raises Unreadable unless it is None, a text, bool, finite number, or tuples of these.

    A text has no quotes and no backslashes: it stands in the docstrings of scripts as well.
    """
    if isinstance(value, list | tuple) and depth:
        if len(value) > MOST_DEVICES:
            raise reading.Unreadable(f"{name}: {len(value)} values: expected at most {MOST_DEVICES}")
        return tuple(parameter(name, item, depth=depth - 1) for item in value)
    if isinstance(value, str):
        if {"'", '"', "\\"}.intersection(value):
            raise reading.Unreadable(f"{name}={reading.shown(value)}: expected no quotes and no backslashes")
        if len(value) > reading.LONGEST_NAME or not value.isprintable():
            expected = f"one printable line of at most {reading.LONGEST_NAME} characters"
            raise reading.Unreadable(f"{name}={reading.shown(value)}: expected {expected}")
        return value
    if value is None or isinstance(value, bool) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is not int or abs(value) > MOST_SEED:
        expected = f"a whole number from {-MOST_SEED} to {MOST_SEED}"
        raise reading.Unreadable(f"{name}={reading.shown(value)}: expected {expected}")
    return value


def manual_axes(case: Case) -> tuple[str, ...]:
    """The axes that `shard_map` makes manual, in mesh order."""
    return case.mesh.in_mesh_order(case.manual) if case.manual else case.mesh.axis_names


def laid_out(case: Case, index: int) -> Entries:
    """The layout of the global array of operand `index`.

    It is sharded as it enters `shard_map`, and, where that leaves axes to the compiler, over these as well: each along
    the first dimension that it divides.
    """
    entries, shape = [*case.partition(index)], case.global_shape(index)
    manual, kinds = manual_axes(case), case.mesh.types
    for name in case.mesh.axis_names:
        if name in manual or kinds[name] != "auto":
            continue
        for at, size in enumerate(shape):
            parts = math.prod(case.mesh.shape[axis] for axis in (*entries[at], name))
            if size and size % parts == 0:
                entries[at] = (*entries[at], name)
                break
    return tuple(entries)


def outer_axes(case: Case) -> tuple[str, ...]:
    """The axis that the outer of two `shard_map`s makes manual; none if there is no other one for the inner.

    Where a dimension is sharded over several axes, the outer one divides it first, so its axis is the first there. One
    of `axis_name` is preferred: then a collective connects devices of both.
    """
    manual = manual_axes(case)
    behind = {name for operand in case.operands for entry in operand.placement.spec for name in entry[1:]}
    first = [name for name in (*case.axes, *manual) if name in manual and name not in behind]
    return tuple(first[:1]) if len(manual) > 1 else ()


def levels(case: Case) -> tuple[tuple[str, ...], ...]:
    """The manual axes of each `shard_map` around the call, the outer one first; empty: all."""
    if NESTED not in case.chain:
        return (case.manual,)
    outer = outer_axes(case)
    return outer, tuple(name for name in manual_axes(case) if name not in outer)


def free_axis(case: Case) -> str:
    """The axis that a batch can be sharded over: the longest that divides it and is not in `axis_name`; else none.

    It is not an explicit one, on which the arrays' types would have to say that their batch is sharded.
    """
    manual, kinds = manual_axes(case), case.mesh.types
    free = [name for name in manual if name not in case.axes and kinds[name] == "auto"]
    fit = [name for name in free if case.mesh.shape[name] > 1 and BATCH % case.mesh.shape[name] == 0]
    return max(fit, key=lambda name: case.mesh.shape[name], default="")


def spmd_axis(case: Case) -> str:
    """The axis that the batch is sharded over; empty if none."""
    return free_axis(case) if SPMD in case.chain else ""


def dividing_axis(case: Case) -> str:
    """The axis whose devices may take different branches: the longest that is not in `axis_name`; else none."""
    free = [name for name in manual_axes(case) if name not in case.axes and case.mesh.shape[name] > 1]
    return max(free, key=lambda name: case.mesh.shape[name], default="")


def stacked_axes(case: Case) -> tuple[str, ...]:
    """The axes along which results are stacked, in mesh order."""
    return tuple(name for name in manual_axes(case) if name != spmd_axis(case))


def outside(case: Case) -> bool:
    """True if a `vmap` is around the whole `shard_map`."""
    return OUTSIDE in case.chain or SPMD in case.chain


def without_outside(case: Case) -> Case:
    """The case inside of such a `vmap`."""
    return dataclasses.replace(case, chain=tuple(name for name in case.chain if name not in (OUTSIDE, SPMD)))
