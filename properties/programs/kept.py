"""Results that some participants alone have: what the others return is ignored."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import CONTRACTS


def of_participants(case: Case, leaves: Sequence[jax.Array]) -> list[jax.Array]:
    """The results on a device, those that it need not have as zeros."""
    kept = CONTRACTS[case.contract].kept
    if kept is None:
        return list(leaves)
    found = []
    for leaf, participants in zip(leaves, kept(case), strict=True):
        for axes, number in participants:
            leaf = jnp.where(lax.axis_index(axes) == number, leaf, jnp.zeros_like(leaf))
        found.append(leaf)
    return found


def as_text(case: Case, index: int, leaf: str) -> str:
    """The same of one result, as an expression."""
    kept = CONTRACTS[case.contract].kept
    for axes, number in () if kept is None else kept(case)[index]:
        leaf = f"jax.numpy.where(jax.lax.axis_index({axes!r}) == {number}, {leaf}, 0)"
    return leaf
