"""Composed calls: which operands are results of the call before, bounds of the results, and diagnosis."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.engine import ready
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import fit_chain
from shardproof.properties.laws.gradient import cotangents, exact_gradients
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import implementation_of
from shardproof.properties.precision.judge import value_references
from shardproof.properties.programs.built_in import BUILT_IN
from shardproof.properties.programs.transformations import composed_operands
from shardproof.properties.report.failures.text import find_diagnosis
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.tally import Tally

MESH = MeshCase(("dp", "tp"), (2, 3))


def a_case(
    name: str,
    *blocks: tuple[int, ...],
    chain: Chain = ("compose",),
    axis_name: str = "dp",
    dtype: str = "float32",
    varies: tuple[str, ...] = ("dp",),
    mesh: MeshCase = MESH,
    tree: bool = False,
    data: tuple[Data, ...] = (Data("exact", 3), Data("real", 5)),
    **params: Any,
) -> Case:
    """A case of operands that are stacked over the axes along which they vary."""
    leaves = tuple(Operand(block, dtype, Placement(((),) * len(block), varies)) for block in blocks)
    return Case(CONTRACTS[name], mesh, axis_name, leaves, tuple(params.items()), data, chain, tree=tree)


SHIFT = a_case("ring_shift", (2, 3), offset=1)
SUM = a_case("all_reduce", (2,), op="sum")
ATTENTION = a_case("attention", (2, 1, 3), (2, 1, 3), (2, 1, 3), causal=False)


@pytest.mark.parametrize(
    ("case", "composed"),
    [
        (SHIFT, {0: 0}),
        (a_case("permute", (2,), (2,), tree=True, perm=((0, 1),)), {0: 0, 1: 1}),
        (a_case("broadcast", (2,), varies=("dp", "tp"), root=1), {0: 0}),
        (a_case("ring_shift", (2,), chain=("compose", "vmap", "compose"), offset=1), {0: 0}),
    ],
    ids=str,
)
def test_an_operand_like_a_result_is_composed(case: Case, composed: dict[int, int]) -> None:
    """An operand of a result's shape, dtype and variation is replaced by that result in the next call."""
    assert dict(composed_operands(case)) == composed
    assert fit_chain(case) == case


@pytest.mark.parametrize(
    "case",
    [
        a_case("all_gather", (2,), axis=0, tiled=True),  # of another shape
        a_case("all_reduce", (2,), dtype="int32", op="mean"),  # of another dtype
        a_case("ring_shift", (2,), varies=(), offset=1),  # varies where the operand does not
        a_case("matmul_all_reduce", (2, 2), (2, 2)),  # products
        a_case("rms_norm", (2, 3), (3,), epsilon=0.5),
        ATTENTION,
    ],
    ids=str,
)
def test_what_results_are_unlike_is_not_composed(case: Case) -> None:
    """A case whose calls cannot be composed gets the link `sequential` in place of `compose`."""
    other = fit_chain(case)
    assert "compose" not in other.chain
    assert "sequential" in other.chain
    assert fit_chain(other) == other


@pytest.mark.parametrize("chain", [("compose",), ("compose", "compose")])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_exact_data_stays_exact(chain: Chain, op: str) -> None:
    """Sums of sums are drawn small enough to be exact in every order, forward and backward."""
    mesh = MeshCase(("dp",), (4,))
    case = a_case("all_reduce", (2,), mesh=mesh, chain=chain, dtype="bfloat16", data=(Data("exact", 3),), op=op)
    assert fit_chain(case) == case
    arrays = operands(case, case.data[0])
    assert np.abs(arrays[0].astype(float)).max() > 0
    mine = next(one for one in BUILT_IN if one.contract.name == "all_reduce")
    assert [reference.bound for reference in next(value_references(mine, case, [arrays]))] == [None]
    program = ready("reverse gradient", mine, case, engine_named("simulate"))
    primal, cts = operands(case, case.data[0]), cotangents(case, program, case.data[0])
    (exact,) = exact_gradients(case, program.placements, primal, cts)
    assert (exact == exact.astype(primal[0].dtype).astype(exact.dtype)).all()


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_bound_is_that_of_both_calls(op: str, dtype: str) -> None:
    """Two sums, rounded after every addition in any order, are within the bound."""
    mesh = MeshCase(("dp",), (5,))
    case = a_case("all_reduce", (400,), mesh=mesh, dtype=dtype, data=(Data("real", 3),), op=op)
    assert fit_chain(case) == case
    (x,) = operands(case, case.data[0])
    mine = next(one for one in BUILT_IN if one.contract.name == "all_reduce")
    (right,) = next(value_references(mine, case, [[x]]))
    assert right.bound is not None
    rng = np.random.default_rng(1)

    def one_after_the_other(blocks: np.ndarray) -> np.ndarray:
        total = np.zeros_like(blocks[0])
        for i in rng.permutation(5):
            total = total + blocks[i]
        return np.broadcast_to(total / np.asarray(5, x.dtype) if op == "mean" else total, blocks.shape)

    twice = one_after_the_other(one_after_the_other(x))
    off = np.abs(twice.astype(float) - right.exact)
    assert (off <= right.bound).all()


def test_a_bug_of_the_second_call_is_reported() -> None:
    """Results of the first call in place of the second call's are diagnosed as such."""
    case = a_case("ring_shift", (3,), mesh=MeshCase(("dp",), (3,)), data=(Data("distinct", 1),), offset=1)
    mine = implementation_of(MUTANTS["shift_that_was_made_already"])
    with pytest.raises(LawViolation) as caught:
        judge(LAWS["value"], mine, case, engine_named("xla"), Tally("", "", "value", "xla"))
    assert "the blocks are the right ones of the first call, which feeds the second" in find_diagnosis(caught.value)


def test_a_shape_that_is_wrong_is_reported_and_not_composed() -> None:
    """A first result of a wrong shape is reported as such, and no second call gets it."""

    def reduced(x: jax.Array, axis_name: Any, *, op: str = "sum") -> jax.Array:
        return lax.psum(x, axis_name)[0]

    case, mine = SUM, user_implementation("all_reduce", reduced)
    with pytest.raises(LawViolation, match=r"blocks of shape|shape"):
        judge(LAWS["value"], mine, case, engine_named("simulate"), Tally("", "", "value", "simulate"))
