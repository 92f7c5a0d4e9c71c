"""Matmul reduce-scatters whose sums travel in the accumulator's dtype, or in the operands': bytes, and error."""

import functools
from typing import Any

import numpy as np
import pytest

from shardproof.impl import collective_matmul
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.properties.cases.data import Data, generate
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.xla import abstract_mesh
from shardproof.properties.meta.test_collective_matmul import case_of
from shardproof.properties.performance.machines import loads_in
from shardproof.properties.performance.operations import operations_of
from shardproof.properties.programs.implementations import FORMS, Implementation
from shardproof.properties.programs.program import Seen, forward

P = 4
WAYS = tuple(way for way in FORMS["matmul_reduce_scatter"] if way != "paired")
"""Those of which one can say how sums travel."""


def reducing(way: str, sums: str) -> Implementation:
    """A form whose sums travel so."""
    function: Any = getattr(collective_matmul, f"{way}_matmul_reduce_scatter")
    return Implementation("matmul_reduce_scatter", way, functools.partial(function, sums=sums))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_sums_in_the_operands_dtype_are_half_the_bytes_and_near(way: str, dimension: int) -> None:
    """Half as much is sent; the error is within p units of roundoff of the sum of absolute values."""
    sizes = (2, 2) if way == "nested" else (P,)
    case = case_of("matmul_reduce_scatter", sizes, (4, 6, 8), dtype="bfloat16", dimension=dimension)
    bytes_sent = []
    for sums in ("operands", "accumulator"):
        program = forward(case, reducing(way, sums), Seen())
        mesh = abstract_mesh(case.mesh)
        arrays = [generate(Data("real", i), a.shape, np.dtype(a.dtype)) for i, a in enumerate(program.arguments)]
        bytes_sent.append(sum(loads_in(operations_of(program, case.mesh)).values()))
        (result,), _ = prepare(program.build(mesh), *program.abstract_arguments(mesh)).run_recorded(*arrays)
        blocks = np.asarray(result, np.float64)
        whole = np.concatenate(list(blocks.reshape(P, *blocks.shape[len(sizes) :])), axis=dimension)
        wide = [a.astype(np.float64) for a in arrays]
        right, largest = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        hops = P if sums == "operands" else 1
        assert (np.abs(whole - right) <= (hops + 0.1) * unit_roundoff(np.dtype(arrays[0].dtype)) * largest).all()
    assert 2 * bytes_sent[0] == bytes_sent[1] > 0


@pytest.mark.parametrize("way", WAYS)
def test_other_sums_are_refused(way: str) -> None:
    """A dtype that is neither is refused by name."""
    sizes = (2, 2) if way == "nested" else (P,)
    program = forward(case_of("matmul_reduce_scatter", sizes, (4, 6, 8)), reducing(way, "float8"), Seen())
    mesh = abstract_mesh(case_of("matmul_reduce_scatter", sizes, (4, 6, 8)).mesh)
    with pytest.raises(ValueError, match=r"sums='float8'.*'accumulator' or 'operands'"):
        prepare(program.build(mesh), *program.abstract_arguments(mesh))
