"""Two planted bugs of masked means are wrong where what they say is there, and right on all other data."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine, engine_named
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.value import check_value
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.hunt import implementation_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken

EVERY = Placement((("dp",),))
CASE = Case(
    CONTRACTS["masked_mean"],
    MeshCase(("dp",), (2,)),
    "dp",
    (Operand((5,), "float32", EVERY), Operand((5,), "bool", EVERY)),
)
TELLS = Data("real", 1)
"""Finite, and with a mean that is not zero: where everything is masked, any mean is right."""

SETS = [Data(kind, seed) for kind in ("exact", "distinct", "real", "scaled", "nan", "special") for seed in range(9)]


@pytest.mark.parametrize(
    ("name", "check", "counts"),
    [
        ("mean_with_a_masked_nan", check_value, lambda x: ~np.isfinite(x)),
        ("mean_whose_gradient_is_nan", check_gradient, np.isnan),
    ],
)
def test_it_is_wrong_where_such_an_element_is_masked(
    name: str, check: Callable[[Implementation, Case, Engine], int], counts: Callable[[np.ndarray], np.ndarray]
) -> None:
    """A law is violated on a data set just where a masked element is NaN (or infinite, for the value)."""
    found = set()
    for data in SETS:
        values, mask = operands(CASE, data)
        wrong = bool((counts(values) & ~mask).any())
        case = dataclasses.replace(CASE, data=(data, TELLS))
        if wrong:
            with pytest.raises(Broken):
                check(implementation_of(MUTANTS[name]), case, engine_named("simulate"))
        else:
            check(implementation_of(MUTANTS[name]), case, engine_named("simulate"))
        found.add((wrong, bool(np.isfinite(values).all()), bool((values == 0).any()), bool(mask.all())))
    assert {(True, False), (False, True), (False, False)} <= {f[:2] for f in found}
    assert {(z, m) for _, _, z, m in found} == {(z, m) for z in (False, True) for m in (False, True)}
