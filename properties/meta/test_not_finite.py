"""NaN and infinities in products: what the definition makes of them, what is drawn, and what is as right."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Program
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import ENGINES
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.forward import check_value
from shardproof.properties.programs.transformations import reference_blocks
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.search import find_violation

SIMULATE = ENGINES["simulate"]()


def a_product(kind: str, seed: int = 0) -> Case:
    """Rows of two devices times a replicated matrix of three columns."""
    lhs = Operand((2, 3), "float32", Placement((("tp",), ())))
    rhs = Operand((3, 3), "float32", Placement(((), ())))
    return Case(CONTRACTS["all_gather_matmul_lhs"], MeshCase(("tp",), (2,)), "tp", (lhs, rhs), data=(Data(kind, seed),))


def planted(lhs: dict[tuple[int, int], float], rhs: dict[tuple[int, int], float]) -> list[np.ndarray]:
    """Ones, and in them these numbers."""
    arrays = [np.ones((4, 3), np.float32), np.ones((3, 3), np.float32)]
    for array, numbers in zip(arrays, (lhs, rhs), strict=True):
        for at, number in numbers.items():
            array[at] = number
    return arrays


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("lhs", "rhs", "row", "column"),
    [
        ({(0, 1): NAN}, {}, [NAN, NAN, NAN], [NAN, 3, 3, 3]),
        ({(0, 1): INF}, {}, [INF, INF, INF], [INF, 3, 3, 3]),
        ({(0, 1): INF, (0, 2): -INF}, {}, [NAN, NAN, NAN], [NAN, 3, 3, 3]),
        ({(0, 1): INF}, {(1, 0): 0, (1, 1): -1}, [NAN, -INF, INF], [NAN, 2, 2, 2]),
        ({}, {(2, 0): -INF}, [-INF, 3, 3], [-INF] * 4),
    ],
)
def test_the_definition_says_what_is_not_finite(lhs: Any, rhs: Any, row: list[float], column: list[float]) -> None:
    """NaN, infinity, their difference and zero times infinity are in their own row or column, and nowhere else."""
    case = a_product("special")
    (exact,) = reference_blocks(case, [case.blocks(i, array) for i, array in enumerate(planted(lhs, rhs))])
    for device in range(2):
        np.testing.assert_array_equal(exact[device, 0], row)
        np.testing.assert_array_equal(exact[device, :, 0], column)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        (lambda y: jnp.where(jnp.isinf(y), jnp.nan, y), True),
        (lambda y: jnp.where(jnp.isinf(y), -y, y), False),
        (lambda y: jnp.nan_to_num(y, nan=jnp.nan), False),
        (lambda y: jnp.where(jnp.isnan(y), jnp.inf, y), False),
        (lambda y: jnp.where(jnp.isnan(y), 0, y), False),
    ],
    ids=["NaN for infinity", "the other infinity", "the largest number", "infinity for NaN", "zero for NaN"],
)
def test_where_infinity_is_right_nan_is_as_well(change: Any, right: bool) -> None:
    """Zeros of padding may make NaN of infinity: nothing else may take its place, and nothing that of NaN."""

    def product(lhs: Any, rhs: Any, axis_name: Any) -> Any:
        rows = jnp.concatenate([lhs, lhs])
        del axis_name
        return change(rows @ rhs)

    lhs = Operand((2, 3), "float32", Placement(((), ())))
    case = Case(
        CONTRACTS["all_gather_matmul_lhs"],
        MeshCase(("tp",), (2,)),
        "tp",
        (lhs, Operand((3, 3), "float32", Placement(((), ())))),
        data=tuple(Data("special", seed) for seed in range(8)),
    )
    implementation = user_implementation("all_gather_matmul_lhs", product)
    if right:
        assert check_value(implementation, case, SIMULATE).checked == 8
    else:
        with pytest.raises(Broken, match="of 2 blocks wrong"):
            check_value(implementation, case, SIMULATE)


def of_powers(x: Any, *, model: Any) -> Any:
    """The logarithm of a sum of powers of e, which may overflow."""
    return jnp.log(lax.psum(jnp.exp(x).sum(1), model))


def of_smaller_powers(x: Any, *, model: Any) -> Any:
    """The same of differences from the largest."""
    largest = lax.pmax(x.max(1), model)
    return largest + jnp.log(lax.psum(jnp.exp(x - largest[:, None]).sum(1), model))


@pytest.mark.parametrize(("function", "right"), [(of_powers, False), (of_smaller_powers, True)])
def test_powers_of_large_numbers_overflow_where_asked(function: Any, right: bool) -> None:
    """Where large numbers are stated, results have to be finite."""
    described: Any = {"arguments": ("n v@model",), "results": "n", "dtypes": "float32", "data": ("real", "large")}
    program = Program(function, lambda x: np.logaddexp.reduce(x, axis=1), **described)
    found = find_violation([LAWS["value"]], program.implementation, ENGINES["simulate"](), Scope(4, 4), max_examples=8)
    assert (found.violation is None) == right
    if found.violation is not None:
        assert found.violation.data is not None
        assert found.violation.data.kind == "large"
