"""Records of what compiled programs took, of every form of a product, and what chips multiply in a cycle."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.performance.chips import chip
from shardproof.properties.performance.compiled import (
    RECORDED,
    UNSHARDED,
    Figures,
    Place,
    Records,
    Work,
    key_of,
    line_of,
    read,
)
from shardproof.properties.performance.tpu_compiler import COMPILER, WAYS, TpuCompiler, missing
from shardproof.properties.performance.tpu_compiler.child import partition
from shardproof.properties.performance.tpu_compiler.topology import Topology
from shardproof.properties.programs.built_in import FORMS, OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import SHAPES, SHARDED, product_case

PLACE = Place(Topology.parse("v5e:2x4"), 4)
WORK = Work("all_gather_matmul_lhs", "book", PLACE)
WITH_COMPILER = pytest.mark.skipif(bool(missing()), reason="libtpu is not installed: there is no compiler to ask")
ALONE = Figures(20.0, 20.0, 0.0, 0, 0, 0, 0)


def test_all_that_is_compiled_is_recorded() -> None:
    """Every form of every product, at every shape, forward and backward, and nothing that is no form."""
    known = read(RECORDED)
    for contract in FORMS:
        for shape in SHAPES:
            for way in WAYS:
                work = Work(contract, shape, PLACE, way)
                for form in (
                    UNSHARDED,
                    COMPILER,
                    *(one.name for one in (*PRODUCTS, *OVERLAPPED) if one.contract.name == contract),
                ):
                    assert isinstance(known[key_of(work, form)], Figures)
    assert {form for *_, form in known} <= {UNSHARDED, COMPILER, "naive", *(one.name for one in OVERLAPPED)}


def test_what_is_recorded_is_not_compiled_again(tmp_path: Path) -> None:
    """Figures are read from the file, and so is why there are none; neither needs the compiler."""
    path = tmp_path / "records.jsonl"
    lines = [line_of(key_of(WORK, UNSHARDED), ALONE), line_of(key_of(WORK, COMPILER), "it does not fit")]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with Records(path) as records:
        assert records.of(WORK, UNSHARDED) == ALONE
        assert records.of(WORK, COMPILER) == "it does not fit"


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures that are not recorded are a reason in place of them, of sizes that do not divide before all."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with Records() as records:
        assert str(records.of(WORK, UNSHARDED)).startswith("the engine tpu-compiler needs libtpu, which is not insta")
        other = replace(WORK, place=Place(PLACE.topology, 3))
        assert records.of(other, UNSHARDED) == "model=3: expected a size that divides the 8 devices of v5e:2x4"


@WITH_COMPILER
def test_what_is_recorded_is_what_is_compiled() -> None:
    """XLA's own of a small product takes as long today."""
    with Records() as records:
        assert records.of(WORK, COMPILER) == read(RECORDED)[key_of(WORK, COMPILER)]


PLACES = {"v4:2x2x1": 4, "v5e:2x2": 4, "v5p:2x2x1": 4, "v6e:2x2": 4, "tpu7x:2x2x1": 8}
"""Topologies, with all of their devices along the model axis: a chip of TPU7x is two."""


@WITH_COMPILER
def test_cycles_of_a_large_product() -> None:
    """Nothing is multiplied faster than the figure says, and a large product at five sixths of it or more.

    So it is not half of it, as the documented matrix units of v6e and TPU7x would have it.
    """
    with TpuCompiler() as compiler:
        for name, devices in PLACES.items():
            topology = Topology.parse(name)
            work = Work("all_gather_matmul_lhs", "large", Place(topology, devices))
            one, other = (operand.block for operand in work.case(local=True).operands)
            machine = chip(topology.generation)
            assert machine.cycle is not None
            cycles = work.compiled(compiler, UNSHARDED)[0].compute * machine.clock
            products = 2 * one[0] * one[1] * other[1] / cycles * devices / topology.chips
            assert machine.cycle * 5 <= products * 6 <= machine.cycle * 6, name


@pytest.mark.parametrize("contract", SHARDED)
def test_the_product_that_xla_divides_is_the_product(contract: str) -> None:
    """On one device it is `lhs @ rhs`, or relu between two of them, and its gradients are those."""
    case = product_case(contract, MeshCase(("x",), (1,)), "x", (2, 3, 4))
    mesh = jax.make_mesh((1,), ("x",), (AxisType.Auto,), devices=jax.devices()[:1])
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, a.shape).astype(np.float32) for a in partition(case).arguments]
    (found,) = jax.jit(partition(case).build(mesh))(*arrays)
    last = arrays[0] if len(arrays) == 2 else np.maximum(arrays[0] @ arrays[1], 0)
    np.testing.assert_array_equal(found, last @ arrays[-1])
    grads = jax.jit(partition(case, backward=True).build(mesh))(*arrays, jnp.ones_like(found))
    assert [g.shape for g in grads] == [a.shape for a in arrays]
    np.testing.assert_array_equal(grads[-1], last.T @ np.ones_like(found))


def test_other_contracts_are_no_products() -> None:
    """They are refused by name."""
    case = product_case("all_gather_matmul_lhs", MeshCase(("x",), (1,)), "x", (2, 3, 4))
    with pytest.raises(ValueError, match="contract='all_gather': expected one of all_gather_matmul_lhs_contracting"):
        partition(replace(case, contract=CONTRACTS["all_gather"]))
