"""The table of operations."""

from shardproof.properties.conformance.operations import (  # noqa: F401  # each enters its operations
    control,
    elementwise,
    indexing,
    islands,
    jax_numpy,
    linear,
    moving,
    reducing,
    sampling,
)
from shardproof.properties.conformance.operations.table import OPERATIONS, Operation

TEMPLATES = {name: one.template for name, one in OPERATIONS.items()}
"""Each operation's line of plain JAX."""

__all__ = ["OPERATIONS", "TEMPLATES", "Operation"]
