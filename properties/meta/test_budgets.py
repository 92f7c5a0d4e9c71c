"""Budgets: what each form of implementation gets is said in one place, and the report says what was checked."""

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.examples import example
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.programs.implementations import ALGORITHMS, IMPLEMENTATIONS, OVERLAPPED
from shardproof.properties.report.report import COLUMNS, by_contract, by_implementation
from shardproof.properties.runner.budgets import (
    EQUATIONS,
    FEWEST,
    LEAST,
    OF_VALUES,
    SHARES,
    WEIGHTS,
    structures,
    within,
)
from shardproof.properties.runner.tally import Tally


@pytest.mark.parametrize(
    ("law", "form", "engine", "count"),
    [
        ("value", "user", "simulate", 480),
        ("value", "user", "xla", 29),
        ("value", "overlapped", "simulate", 12),
        ("communication", "overlapped", "simulate", 5),
        ("gradient", "overlapped", "simulate", LEAST),
        ("value", "overlapped", "xla", LEAST),
    ],
)
def test_budgets(law: str, form: str, engine: str, count: int) -> None:
    """A law grants a form its share, on an engine, in the interpreter more where its bugs are found late."""
    assert structures(LAWS[law], 200, engine, form) == count


GRANTED = {"value": 240, "error": 45, "gradient": 60, "transformation": 100, "scale": 40}
"""What `pytest --impl` draws of some laws, of 100 examples."""


@pytest.mark.parametrize("law", GRANTED)
@pytest.mark.parametrize(
    ("contract", "of_values", "of_others"),
    [("all_gather", 1, 1), ("mine", 1, 1), ("moe_layer", 1, 0.11), ("rms_norm", 1, 0.5), ("attention", 0.4, 0.1)],
)
def test_of_what_takes_long_check_draws_less(contract: str, of_values: float, of_others: float, law: str) -> None:
    """Of values more than of others, of errors all; and no less than the suite draws of its own functions."""
    drawn = structures(LAWS[law], 100, "simulate", contract=contract)
    assert structures(LAWS[law], 100, "simulate") == GRANTED[law]
    assert drawn == round(GRANTED[law] * {"error": 1, "value": of_values}.get(law, of_others))
    own = [one.form for one in IMPLEMENTATIONS if one.contract == contract]
    assert all(drawn >= structures(LAWS[law], 100, "simulate", form) for form in own)


@pytest.mark.parametrize(
    ("equations", "count"), [(0, 40), (EQUATIONS // 40, 40), (EQUATIONS // 10, 10), (EQUATIONS, FEWEST)]
)
def test_of_many_equations_on_large_meshes_fewer_structures_are_interpreted(equations: int, count: int) -> None:
    """As many as have a number of equations in all, but for a few that are always."""
    assert within(40, equations) == count
    assert within(2, equations) == 2


def test_every_form_has_a_budget() -> None:
    """Every implementation and every planted bug is of a form with one; bugs of rings are hunted at that of rings."""
    assert {i.form for i in IMPLEMENTATIONS} == set(SHARES) - {"user"}
    assert {m.form for m in MUTANTS.values()} <= set(SHARES)
    assert set(OF_VALUES) <= set(WEIGHTS) <= set(SHARES)
    assert {i.form for i in OVERLAPPED} == {MUTANTS["halves_swapped"].form} == {"overlapped"}
    assert {i.form for i in ALGORITHMS} == {MUTANTS["torus_mean_over_the_last_axis"].form} == {"algorithm"}
    assert MUTANTS["sum_of_bool_stays_bool"].form == "user"


def test_no_planted_bug_needs_a_compiler() -> None:
    """Every one breaks a law that is checked in the interpreter; so what is made alike need not be compiled each."""
    assert [m.name for m in MUTANTS.values() if "simulate" not in LAWS[m.law].engines] == []


def test_the_report_says_how_many_structures() -> None:
    """The number of structures that were checked is that of each implementation, in both tables."""
    case: Case = example("broadcast", MeshCase(("dp",), (2,)), "dp")
    tallies = [Tally("broadcast", name, "value") for name in ("one", "other")]
    for tally, count in zip(tallies, (3, 4), strict=True):
        for _ in range(count):
            tally.count(case, 6)
    at = COLUMNS.index("structures")
    assert [row[at] for row in by_implementation(tallies)] == ["3", "4"]
    assert [row[at] for row in by_contract(tallies)] == ["7"]
