"""Tests of the suite's own foundations: an oracle is checked before it checks anything."""

from shardproof.oracles.mesh import MeshCase

REVERSED = (MeshCase(("dp", "tp"), (2, 3)), ("tp", "dp"))
"""A mesh, and all of its axes in the other order."""
