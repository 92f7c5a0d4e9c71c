"""Hypothesis strategies for everything that a case is made of, each shrinking to the simplest.

*Simplest* means, in this order: fewer devices, fewer axes, devices in order, automatic axes, one
axis before a tuple, mesh order before permuted, replicated before sharded, lower rank, smaller
sides, float32, the first seed. Alternatives are listed in that order and drawn locally, so that
Hypothesis reaches the smallest mesh on which something fails.
"""

from shardproof.properties.cases.chain import PLAIN, Chains, chains
from shardproof.properties.cases.strategies.dtypes import dtypes
from shardproof.properties.cases.strategies.meshes import (
    AXIS_NAMES,
    axis_names,
    axis_tuples,
    factorisations,
    index_groups,
    large_meshes,
    meshes,
    permutations_of_participants,
    specs,
)
from shardproof.properties.cases.strategies.shapes import data_sets, kinds_of, shapes

__all__ = [
    "AXIS_NAMES",
    "PLAIN",
    "Chains",
    "axis_names",
    "axis_tuples",
    "chains",
    "data_sets",
    "dtypes",
    "factorisations",
    "index_groups",
    "kinds_of",
    "large_meshes",
    "meshes",
    "permutations_of_participants",
    "shapes",
    "specs",
]
