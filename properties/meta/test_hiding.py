"""Every transfer that a loop repeats can hide behind a product of its own iteration, forward and backward."""

import re
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof.impl.algorithms.pieces import shift
from shardproof.impl.collectives import cast_varying, varying
from shardproof.properties.cases.case import Case
from shardproof.properties.counting.hiding import exposed
from shardproof.properties.meta.test_collective_matmul import case_of, way_of
from shardproof.properties.programs.derivatives import derivatives
from shardproof.properties.programs.implementations import OVERLAPPED, Implementation
from shardproof.properties.programs.program import Seen, forward

MESHES = ((8,), (7,), (4, 2))


def found(one: Implementation, case: Case) -> tuple[list[str], list[str]]:
    """What is exposed forward, and in the gradient beside it."""
    seen = Seen()
    ahead = exposed(forward(case, one, seen), case.mesh)
    return ahead, exposed(derivatives(case, one, seen, forward_mode=False)[0], case.mesh)


@pytest.mark.parametrize("one", OVERLAPPED, ids=str)
def test_nothing_is_exposed(one: Implementation) -> None:
    """Of odd and even numbers of members, over one axis and two; but for the gather that ends an all-reduce."""
    for sizes in MESHES:
        if way_of(one) == "nested" and len(sizes) == 1:
            continue
        case = case_of(one.contract, sizes, (16, 16, 16))
        told = [text for texts in found(one, case) for text in texts]
        ends_in_a_gather = one.contract == "matmul_all_reduce" and way_of(one) != "tiled"
        assert bool(told) == ends_in_a_gather
        assert all(text.endswith(": its loop multiplies nothing") for text in told)


def multiplies_what_arrives(lhs: Array, rhs: Array, axis_name: Any) -> Array:
    """Right, and hides nothing: each product is of the block that the same iteration brings."""
    p, rows = lax.axis_size(axis_name), lhs.shape[-1]

    def product(block: Array, away: Any) -> Array:
        at = (lax.axis_index(axis_name) - away) % p * rows
        return block @ lax.dynamic_slice_in_dim(rhs, at, rows, 0)

    def step(carry: Any, away: Any) -> Any:
        block = shift(carry[0], (axis_name,), 1)
        return (block, carry[1] + product(block, away)), None

    own = product(lhs, jnp.asarray(0))
    return lax.scan(step, (lhs, own), jnp.arange(1, p))[0][1]


def sends_what_was_multiplied(lhs: Array, rhs: Array, axis_name: Any, *, scatter_dimension: int) -> Array:
    """Right, and hides nothing: each term is added before the sum is sent."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    rows = lhs.shape[0] // p

    def term(away: Any) -> Array:
        return lax.dynamic_slice_in_dim(lhs, (index - away) % p * rows, rows, 0) @ rhs

    def step(total: Array, away: Any) -> Any:
        return shift(total + term(away), (axis_name,), 1), None

    start = cast_varying(jnp.zeros((rows, rhs.shape[1]), lhs.dtype), varying(term(jnp.asarray(0))))
    return lax.scan(step, start, jnp.arange(1, p))[0] + term(jnp.asarray(0))


@pytest.mark.parametrize(
    ("function", "contract"),
    [
        (multiplies_what_arrives, "all_gather_matmul_lhs_contracting"),
        (sends_what_was_multiplied, "matmul_reduce_scatter"),
    ],
)
def test_what_is_exposed_is_told(function: Any, contract: str) -> None:
    """Both ways to wait, by the permute that does."""
    case = case_of(contract, (4,), (8, 8, 8))
    ahead, _ = found(Implementation(contract, "mine", function), case)
    (text,) = ahead
    assert re.search(
        r"/collectives.py:\d+:\d+ \(permute\): each product of its loop waits for a transfer, or is sent$", text
    )
