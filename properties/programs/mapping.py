"""A function of blocks on a mesh: how arrays enter `shard_map` and leave it, and what of a chain is about that."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardproof.oracles.layout import Entries
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.manual import along, levels, outside, spread_axis, without_outside
from shardproof.properties.programs.transformations import Local

Global = Callable[..., Any]


def partition_spec(entries: Sequence[tuple[str, ...]]) -> PartitionSpec:
    """Tuples of axes as a PartitionSpec: `()` is None, one name stands for itself."""
    return PartitionSpec(*[None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries])


@dataclass(frozen=True)
class Leaf:
    """How an array enters or leaves a `shard_map`.

    Arguments:
        entries: its layout.
        lead: how many dimensions, those that stack blocks, stand before those of a batch.
    """

    entries: Entries
    lead: int

    def spec(self, axes: Collection[str]) -> PartitionSpec:
        """What its layout says of some axes."""
        return partition_spec(along(self.entries, axes))


def entry(case: Case, index: int) -> Leaf:
    """How operand `index` enters, or its gradient leaves."""
    operand = case.operands[index]
    return Leaf(without_outside(case).partition(index), len(operand.placement.stacked))


def stacked(axes: Sequence[str]) -> Leaf:
    """How an array that is stacked over some axes enters or leaves."""
    return Leaf(tuple((name,) for name in axes), len(axes))


Leaves = Leaf | list[Leaf]
"""How the results leave: one by one, or all of them alike."""


def specs_of(leaves: Leaves, axes: Collection[str]) -> Any:
    """What is given as `out_specs` where some axes become manual."""
    return leaves.spec(axes) if isinstance(leaves, Leaf) else [one.spec(axes) for one in leaves]


def on_mesh(case: Case, mesh: Any, local: Local, entries: Sequence[Leaf], leaves: Leaves, *, checked: bool) -> Global:
    """A function of shards on the mesh, under what of the chain is about `shard_map`; types are `checked`, or not."""
    checked = checked and all(link.checked for link in case.links)

    def manual(function: Global, names: tuple[str, ...], **more: Any) -> Global:
        axes = names or case.mesh.axis_names
        ins, outs = tuple(one.spec(axes) for one in entries), specs_of(leaves, axes)
        mapped: Global = jax.shard_map(
            function, in_specs=ins, out_specs=outs, check_vma=checked, axis_names=set(names), **more
        )
        return mapped

    outer, *inner = levels(case)
    program = manual(lambda *xs: manual(local, *inner)(*xs) if inner else local(*xs), outer, mesh=mesh)
    if not outside(case):
        return program
    leads = leaves.lead if isinstance(leaves, Leaf) else [one.lead for one in leaves]
    over, leading = spread_axis(case) or None, tuple(one.lead for one in entries)
    return jax.vmap(program, in_axes=leading, out_axes=leads, spmd_axis_name=over)
