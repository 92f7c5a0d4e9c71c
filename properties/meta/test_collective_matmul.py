"""Collective matrix products: arithmetic and sums."""

import functools
from typing import Any

import numpy as np
import pytest

from shardproof.impl import collective_matmul
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.engine import abstract_mesh
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.performance.operations import flops_in, operations_of
from shardproof.properties.performance.timeline import loads_in
from shardproof.properties.programs.built_in import FORMS, OVERLAPPED, PRODUCTS
from shardproof.properties.programs.examples import product_case
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.program import Seen, forward

pytestmark = pytest.mark.untyped


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


def way_of(one: Implementation) -> str:
    """The name of the way in which a form's pieces travel."""
    first = one.name.removesuffix(one.contract.name).rstrip("_")
    return {"overlapped": "ring"}.get(first, first)


FILLED = ("alternating_matmul_all_reduce", "scattered_matmul_all_reduce")
"""Forms that fill rows up to a multiple of the participants."""


@pytest.mark.parametrize("one", OVERLAPPED, ids=str)
def test_no_form_multiplies_more(one: Implementation) -> None:
    """Every form multiplies as much as the naive form, to within 1%."""
    for sizes in ((2, 2), (2, 3)):
        rows = 24 if one.name in FILLED else 7
        case = case_of(one.contract.name, sizes, (rows, 5, 12), batch=(2,))
        naive = next(i for i in PRODUCTS if i.contract.name == one.contract.name)
        flops, expected = (flops_in(operations_of(forward(case, i, Seen()), case.mesh)) for i in (one, naive))
        assert abs(flops - expected) <= expected / 100


SUMS = tuple(way for way in FORMS["matmul_reduce_scatter"] if way not in ("naive", "paired"))
"""Forms of which one can say how sums travel."""


def reducing(way: str, sums: str) -> Implementation:
    """A form whose sums travel so."""
    function: Any = getattr(collective_matmul, f"{way}_matmul_reduce_scatter")
    return Implementation(CONTRACTS["matmul_reduce_scatter"], way, functools.partial(function, sums=sums))


@pytest.mark.parametrize("way", SUMS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_sums_in_the_operands_dtype_are_half_the_bytes_and_near(way: str, dimension: int) -> None:
    """Sums in bfloat16 send half the bytes, with an error of at most p roundings."""
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
    """An unknown dtype of sums is refused by name."""
    case = case_of("matmul_reduce_scatter", (4,), (4, 6, 8))
    program, mesh = forward(case, reducing("ring", "float8"), Seen()), abstract_mesh(case.mesh)
    with pytest.raises(ValueError, match=r"ring_matmul_reduce_scatter: sums='float8'.*'accumulator' or 'operands'"):
        prepare(program.build(mesh), *program.abstract_arguments(mesh))
