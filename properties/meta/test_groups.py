"""Reductions over `axis_index_groups` of different lengths, and beside an axis that is not manual."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, P, lax

from shardproof.impl.collectives import all_reduce
from shardproof.oracles import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.forward import check_value
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.given import user_implementation

GROUPS = ((2, 0), (1,))
CASE = Case(
    contract=CONTRACTS["all_reduce"],
    mesh=MeshCase(("tp",), (3,)),
    axis_name="tp",
    operands=(Operand((2,), "float32", Placement((("tp",),))),),
    params=(("op", "sum"), ("axis_index_groups", GROUPS)),
    data=tuple(Data(kind, 1) for kind in ("distinct", "exact", "real", "special", "nan", "scaled")),
    chain=("no_vma",),
)


def with_op(op: str) -> Case:
    """The case with another reduction."""
    return dataclasses.replace(CASE, params=(("op", op), ("axis_index_groups", GROUPS)))


@pytest.mark.parametrize(("op", "expected"), [("sum", [6, 10, 6]), ("mean", [3, 10, 3]), ("max", [5, 10, 5])])
def test_every_group_is_reduced_by_itself(op: str, expected: list[float]) -> None:
    """Participants 0 and 2 get what they hold together, and participant 1 what it holds alone."""
    blocks = np.array([1, 10, 5], np.float32)
    result = collectives.all_reduce(blocks, MeshCase(("tp",), (3,)), "tp", op=op, groups=GROUPS)
    np.testing.assert_array_equal(result, np.array(expected, np.float32), strict=True)


def test_nothing_is_gathered_from_groups_of_different_lengths() -> None:
    """Blocks of a gather are of one shape, so that its groups are of one length."""
    with pytest.raises(ValueError, match="expected groups of equal length"):
        collectives.all_gather(np.zeros((3, 2)), MeshCase(("tp",), (3,)), "tp", groups=GROUPS)


def test_a_mean_divided_by_the_first_groups_length_is_reported() -> None:
    """`lax.pmean` divides the sums of all groups by the length of the first."""

    def mean(x: Array, axis_name: Any, *, op: str, axis_index_groups: Any) -> Array:
        return lax.pmean(x, axis_name, axis_index_groups=axis_index_groups)

    with pytest.raises(Broken, match="1 of 3 blocks wrong"):
        check_value(user_implementation("all_reduce", mean), with_op("mean"), engine_named("simulate"))


@pytest.mark.parametrize("checked", [True, False])
def test_groups_beside_an_automatic_axis(checked: bool) -> None:
    """With an axis that is not manual, groups are refused under checked types, and summed under others."""
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    function = jax.shard_map(
        lambda x: all_reduce(x, "tp", axis_index_groups=[[0], [1]]),
        mesh=mesh, in_specs=P("tp"), out_specs=P("tp"), axis_names={"tp"}, check_vma=checked,
    )  # fmt: skip
    x = jnp.arange(4.0)
    if checked:
        with pytest.raises(NotImplementedError, match="expected none under check_vma=True"):
            jax.eval_shape(jax.jit(function), x)
    else:
        np.testing.assert_array_equal(jax.jit(function)(x), x)
