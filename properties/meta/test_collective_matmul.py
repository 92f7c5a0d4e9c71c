"""Collective matrix products: two derivations of the oracle, formulas against records, arithmetic, memory, sums."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from shardproof.impl import collective_matmul
from shardproof.impl.collective_matmul.operands import UNROLLED
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.oracles.layout import unshard
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.matmul import CONTRACTS as MATMULS
from shardproof.properties.contracts.products import product_case
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.brief import first_of_each, marked
from shardproof.properties.meta.test_algorithms import check_forward, recorded
from shardproof.properties.performance.choosing import scheduled
from shardproof.properties.performance.operations import Operation, operations_of
from shardproof.properties.performance.timeline import flops_in, loads_in
from shardproof.properties.programs.implementations import FORMS, OVERLAPPED, PRODUCTS, Implementation
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.runner.search import find_violation

pytestmark = pytest.mark.untyped

BY_NAME = {i.name: i for i in OVERLAPPED}
GATHERS = ("all_gather_matmul_lhs_contracting", "all_gather_matmul_lhs", "all_gather_matmul_rhs")
TUPLES = (((2, 3), False), ((2, 3), True), ((3, 2), True))
"""Sizes of two axes, and whether their tuple is in the reverse of mesh order."""


def case_of(
    contract: str,
    sizes: tuple[int, ...],
    m_k_n: tuple[int, int, int] = (3, 5, 2),
    *,
    reverse: bool = False,
    batch: tuple[int, ...] = (),
    dtype: str = "float32",
    dimension: int = 0,
) -> Case:
    """A case over all axes of a mesh, whose gathered blocks or scattered pieces have these sides."""
    names = ("x", "y")[: len(sizes)]
    axes = names[::-1] if reverse else names
    mesh, axis_name = MeshCase(names, sizes), axes if len(axes) > 1 else axes[0]
    return product_case(contract, mesh, axis_name, m_k_n, batch=batch, dtype=dtype, dimension=dimension)


def arrays_of(case: Case, seed: int = 0) -> list[np.ndarray]:
    """Global operands with fractions, laid out by the case."""
    random = np.random.default_rng(seed)
    shapes = [o.placement.global_shape(o.block, case.mesh) for o in case.operands]
    return [random.normal(size=shape) for shape in shapes]


def product_of_globals(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The product of the global operands, as one einsum; no device is mentioned."""
    if case.contract == "transformer_block":
        x, w_in, w_out = arrays
        return np.asarray(np.einsum("...f,fd->...d", np.maximum(np.einsum("...d,df->...f", x, w_in), 0), w_out))
    return np.asarray(np.einsum("...mk,kn->...mn", *arrays))


def results_layout(case: Case) -> tuple[tuple[str, ...], ...]:
    """How the global product is laid out, with the operands laid out as in `case_of`, behind batch dimensions."""
    axes = case.axes
    dimension = case.keywords.get("scatter_dimension")
    return {
        "all_gather_matmul_lhs_contracting": ((), axes),
        "all_gather_matmul_lhs": ((), axes),
        "all_gather_matmul_rhs": (axes, ()),
        "matmul_reduce_scatter": (axes, ()) if dimension == 0 else ((), axes),
        "matmul_all_reduce": ((), ()),
        "transformer_block": ((), axes),
    }[case.contract]


def global_result(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The global product, assembled from the blocks that the oracle computes."""
    blocks = [case.blocks(i, array) for i, array in enumerate(arrays)]
    result = CONTRACTS[case.contract].oracle(case, blocks)[0]
    rank = result.ndim - len(case.mesh.sizes)
    spec = (*[()] * (rank - 2), *results_layout(case))
    return np.asarray(unshard(result, case.mesh, spec))


ORACLES = [(c.name, dimension) for c in MATMULS for dimension in ((0, 1) if c.parameters else (0,))]


@pytest.mark.parametrize(("contract", "dimension"), ORACLES)
@pytest.mark.parametrize(("sizes", "reverse"), [((1,), False), ((3,), False), *TUPLES])
def test_blocks_are_those_of_the_global_product(
    contract: str, dimension: int, sizes: tuple[int, ...], reverse: bool
) -> None:
    """What the oracle computes block by block is one einsum of the unsharded operands."""
    case = case_of(contract, sizes, reverse=reverse, batch=(2,), dimension=dimension)
    arrays = arrays_of(case)
    np.testing.assert_allclose(global_result(case, arrays), product_of_globals(case, arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("contract", "dimension"), ORACLES)
def test_pullbacks_are_differences(contract: str, dimension: int) -> None:
    """<c, J d> by central differences of the global product equals <J^T c, d>, and so does the pushforward."""
    case = case_of(contract, (2, 3), reverse=True, batch=(2,), dimension=dimension)
    arrays, direction = arrays_of(case), arrays_of(case, seed=1)
    step = 1e-6
    above, below = (
        product_of_globals(case, [a + sign * step * d for a, d in zip(arrays, direction, strict=True)])
        for sign in (1, -1)
    )
    numeric = (above - below) / (2 * step)
    contract_ = CONTRACTS[contract]
    held, held_direction = ([case.blocks(i, a) for i, a in enumerate(some)] for some in (arrays, direction))
    pushed = contract_.pushforward(case, held, held_direction)[0]
    spec = (*[()] * (pushed.ndim - len(case.mesh.sizes) - 2), *results_layout(case))
    np.testing.assert_allclose(unshard(pushed, case.mesh, spec), numeric, rtol=1e-6, atol=1e-6)
    # of a result that all have, every copy has a cotangent, and their sum is that of the one value
    copies = case.mesh.size if contract == "matmul_all_reduce" else 1
    ct = np.random.default_rng(2).normal(size=pushed.shape)
    if copies > 1:
        ct[...] = ct[(0,) * len(case.mesh.sizes)] / copies
    pulled = contract_.pullback(case, held, [ct])
    left = float(np.sum(ct * pushed))
    right = sum(float(np.sum(t * d)) for t, d in zip(pulled, held_direction, strict=True))
    assert math.isclose(left, right, rel_tol=1e-9)


def way_of(one: Implementation) -> str:
    """How the pieces come together."""
    first = one.name.removesuffix(one.contract).rstrip("_")
    return {"overlapped": "ring"}.get(first, first)


EVERY = [*PRODUCTS, *OVERLAPPED]


@pytest.mark.parametrize("one", marked(EVERY, first_of_each(EVERY, lambda one: one.contract)))
def test_claims_hold(one: Implementation) -> None:
    """Values, permutes and bytes, forward and backward, for p = 2 to 9 in a row and over two axes in both orders."""
    for sizes, reverse in (*(((p,), False) for p in range(2, UNROLLED + 2)), *TUPLES):
        case = case_of(one.contract, sizes, reverse=reverse, dimension=math.prod(sizes) % 2)
        check_forward(one, case)
        assert check_communication(one, case, engine_named("simulate")) == 2
    check_forward(one, case_of(one.contract, (2, 2), (1, 1, 1), dtype="float16", batch=(2,)))


FILLED = ("alternating_matmul_all_reduce", "scattered_matmul_all_reduce")
"""Forms that fill rows up to a multiple of the participants."""


@pytest.mark.parametrize("one", OVERLAPPED, ids=str)
def test_no_form_multiplies_more(one: Implementation) -> None:
    """The products of all steps, of odd halves as well, are within 1% of the one that the naive form multiplies."""
    for sizes in ((2, 2), (2, 3)):
        rows = 24 if one.name in FILLED else 7
        case = case_of(one.contract, sizes, (rows, 5, 12), batch=(2,))
        naive = next(i for i in PRODUCTS if i.contract == one.contract)
        flops, expected = (flops_in(operations_of(forward(case, i, Seen()), case.mesh)) for i in (one, naive))
        assert abs(flops - expected) <= expected / 100


@pytest.mark.parametrize("form", ["alternating", "overlapped", "paired"])
def test_a_block_may_have_other_columns_than_it_was_given(form: str) -> None:
    """Gradients as well are those of the naive form."""
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    rng, columns = np.random.default_rng(0), PartitionSpec(None, "tp")
    operands = [jnp.asarray(rng.integers(-3, 4, sides), jnp.float32) for sides in ((3, 8), (8, 12), (12, 20))]
    ct = jnp.asarray(rng.integers(-3, 4, (3, 20)), jnp.float32)

    def gradients(name: str) -> list[jax.Array]:
        def block(*operands: jax.Array) -> jax.Array:
            found: jax.Array = getattr(collective_matmul, name)(*operands, "tp")
            return found

        specs = (columns, columns, PartitionSpec("tp"))
        mapped = jax.jit(jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=columns))
        result, pullback = jax.vjp(mapped, *operands)
        return [result, *pullback(ct)]

    for got, expected in zip(gradients(f"{form}_transformer_block"), gradients("transformer_block"), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("form", ["alternating", "scattered"])
def test_one_operand_may_have_a_derivative_and_the_other_none(form: str) -> None:
    """Weights of integers: the gradient of the other operand alone."""
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    lhs, rhs = jnp.arange(8.0).reshape(2, 4), jnp.arange(12, dtype=jnp.int8).reshape(4, 3)

    def total(lhs: jax.Array) -> jax.Array:
        product = getattr(collective_matmul, f"{form}_matmul_all_reduce")(lhs, rhs_of(), "tp")
        return jax.lax.pmean(jnp.sum(product), "tp") if form == "alternating" else jnp.sum(product)

    def rhs_of() -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(rhs, jax.lax.axis_index("tp"), 1, 0)

    columns = PartitionSpec(None, "tp")
    mapped = jax.shard_map(total, mesh=mesh, in_specs=columns, out_specs=PartitionSpec())
    np.testing.assert_array_equal(jax.jit(jax.grad(mapped))(lhs), np.tile(rhs.sum(axis=1, dtype=np.float32), (2, 1)))


@functools.lru_cache
def peak(one: Implementation, case: Case) -> int:
    """The most bytes of blocks that are alive at one time."""
    return int(recorded(forward(case, one, Seen()), case, 0)[2].peak_bytes)


MEMORY = {
    "all_gather_matmul_lhs_contracting": (8, 32, 4),
    "all_gather_matmul_lhs": (8, 64, 2),
    "all_gather_matmul_rhs": (4, 8, 32),
    "matmul_reduce_scatter": (16, 4, 16),
}
"""Sides with which the operand that moves is the largest, or the result is."""


BLOCKS = {"ring": 2, "bidirectional": 2, "joined": 3, "paired": 4}
"""For how many moving blocks there is room: one comes and one goes, on each ring; and two halves joined."""


@pytest.mark.parametrize(("contract", "way"), [(name, way) for name in MEMORY for way in FORMS[name] if way in BLOCKS])
def test_a_ring_holds_a_few_blocks(contract: str, way: str) -> None:
    """Besides operands, result and indices, a few moving blocks are alive, never all p; and slices that are joined."""
    case = case_of(contract, (4, 2), MEMORY[contract])
    p = case.participants
    (m, k), (_, n) = case.operands[0].block, case.operands[1].block
    operands = 4 * sum(math.prod(o.block) for o in case.operands)
    moving, result, slices = {
        "all_gather_matmul_lhs_contracting": (m * k, m * n, k * n),
        "all_gather_matmul_lhs": (m * k, p * m * n, m * n),
        "all_gather_matmul_rhs": (k // p * n, m * n, m * k // p),
        "matmul_reduce_scatter": (m // p * n, m // p * n, m // p * k),
    }[contract]
    indices = p
    bound = operands + 4 * (result + BLOCKS[way] * moving + indices + slices * (way == "joined"))
    assert peak(BY_NAME[f"{way}_{contract}"], case) <= bound
    naive = next(i for i in PRODUCTS if i.contract == contract)
    assert bound < peak(naive, case)


SUMS = tuple(way for way in FORMS["matmul_reduce_scatter"] if way != "paired")
"""Forms of which one can say how sums travel."""


def reducing(way: str, sums: str) -> Implementation:
    """A form whose sums travel so."""
    function: Any = getattr(collective_matmul, f"{way}_matmul_reduce_scatter")
    return Implementation("matmul_reduce_scatter", way, functools.partial(function, sums=sums))


@pytest.mark.parametrize("way", SUMS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_sums_in_the_operands_dtype_are_half_the_bytes_and_near(way: str, dimension: int) -> None:
    """Half as much is sent; the error is within p units of roundoff of the sum of absolute values."""
    p, bytes_sent = 4, []
    case = case_of("matmul_reduce_scatter", (p,), (4, 6, 8), dtype="bfloat16", dimension=dimension)
    for sums in ("operands", "accumulator"):
        program = forward(case, reducing(way, sums), Seen())
        mesh = abstract_mesh(case.mesh)
        arrays = [generate(Data("real", i), a.shape, np.dtype(a.dtype)) for i, a in enumerate(program.arguments)]
        bytes_sent.append(sum(loads_in(operations_of(program, case.mesh)).values()))
        (result,), _ = prepare(program.build(mesh), *program.abstract_arguments(mesh)).run_recorded(*arrays)
        whole = np.concatenate(list(np.asarray(result, np.float64)), axis=dimension)
        wide = [a.astype(np.float64) for a in arrays]
        right, largest = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        hops = p if sums == "operands" else 1
        assert (np.abs(whole - right) <= (hops + 0.1) * unit_roundoff(np.dtype(arrays[0].dtype)) * largest).all()
    assert 2 * bytes_sent[0] == bytes_sent[1] > 0


def test_other_sums_are_refused() -> None:
    """A dtype that is neither is refused by name."""
    case = case_of("matmul_reduce_scatter", (4,), (4, 6, 8))
    program, mesh = forward(case, reducing("ring", "float8"), Seen()), abstract_mesh(case.mesh)
    with pytest.raises(ValueError, match=r"ring_matmul_reduce_scatter: sums='float8'.*'accumulator' or 'operands'"):
        prepare(program.build(mesh), *program.abstract_arguments(mesh))


def needed(operations: Sequence[Operation], place: int) -> set[int]:
    """The places of all operations that one needs, directly or not."""
    found, left = set[int](), [place]
    while left:
        new = operations[left.pop()].reads - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("contract", GATHERS)
@pytest.mark.parametrize(("p", "counts"), [(2, [0]), (3, [2, 2]), (4, [0, 2]), (5, [4, 4]), (8, [0, 6])])
def test_the_first_sums_are_sent_behind_the_blocks_from_both_sides(contract: str, p: int, counts: list[int]) -> None:
    """So many transfers come before the first sum each way; of an even number, before that of the one opposite."""
    *_, backward = scheduled(BY_NAME[f"paired_{contract}"], case_of(contract, (p,), (4, 4, 4)), gradient=True)
    operations = backward.body
    products = {place for place, one in enumerate(operations) if one.flops}
    sums = {place for place, one in enumerate(operations) if one.transfers and needed(operations, place) & products}
    first = [place for place in sums if not needed(operations, place) & sums]
    blocks = [sum(operations[read].transfers for read in needed(operations, place)) for place in first]
    assert sorted(blocks) == counts


@pytest.mark.parametrize("one", marked(OVERLAPPED, first_of_each(OVERLAPPED, lambda one: one.contract)))
def test_results_are_laid_out_as_blocks_beside_an_automatic_axis(one: Implementation) -> None:
    """An array that begins empty has the layout of no operand, and explicit axes refuse to write a block into it."""
    beside = replace(LAWS["transformation"], chains=Chains(only=("partial_manual", "no_vma")))
    scope = Scope(max_devices=8, available=8)
    finding = find_violation(beside, one, engine_named("simulate"), scope, max_examples=12, random_seed=1, shrink=False)
    assert finding.violation is None, str(finding.violation)
    assert finding.tally.structures > 0
