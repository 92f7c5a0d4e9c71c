"""Budgets: what each form of implementation gets is said in one place, and the report says what was checked."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.examples import example
from shardproof.properties.engines import Engine, engine_named
from shardproof.properties.laws.kinds import WRONG_ARGUMENTS
from shardproof.properties.laws.law import LAWS
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.programs.implementations import ALGORITHMS, IMPLEMENTATIONS, OVERLAPPED, Implementation
from shardproof.properties.programs.violation import SuiteError
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
from shardproof.properties.runner.draws import FEW, but_the_simplest, search, telling
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.turns import PATIENCE, Turns


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


@pytest.mark.parametrize("number", range(5))
def test_the_simplest_is_no_part_of_a_budget(number: int) -> None:
    """What Hypothesis tries first is left out: with one structure, that one is another in every run."""
    seen: list[int] = []

    @seed(number)
    @settings(max_examples=3, database=None)
    @given(but_the_simplest(st.integers(0, 2**32)))
    def collect(value: int) -> None:
        seen.append(value)

    collect()
    assert len(seen) == 3
    assert 0 not in seen


@pytest.mark.parametrize("implementation", ["embedding_lookup[masked]", "moe_layer[sorted]"])
def test_on_the_second_engine_each_seed_draws_others(implementation: str) -> None:
    """Of a few structures none is the same in every run, as what Hypothesis tries first is on the first engine."""
    (one,), first = (i for i in IMPLEMENTATIONS if str(i) == implementation), []

    def check(implementation: Implementation, case: Case, engine: Engine) -> int:
        seen.append(str(case))
        return 1

    for number in range(4):
        seen: list[str] = []
        law = replace(LAWS["value"], check=check)
        search(law, one, engine_named("xla"), Scope(), 2, number, False, lambda case: "")
        assert len(seen) == 2
        first.append(seen[0])
    assert len(set(first)) == 4, first


def test_of_few_structures_all_can_fail() -> None:
    """With several devices, none has one participant or nothing to send; with one device there is nothing else."""
    (one,), law = (i for i in IMPLEMENTATIONS if str(i) == "ring_shift[lax]"), LAWS["value"]
    for available, count in ((8, FEW), (8, FEW + 1), (1, 1)):
        scope = Scope(max_devices=available, available=available)
        cases = drawn(but_the_simplest(telling(law, one, scope, lambda case: None, count)), 60)
        assert any(case.trivial for case in cases) != (count <= FEW and available > 1)


@pytest.mark.parametrize(
    ("law", "implementation", "count"),
    [
        ("error", "embedding_lookup[masked]", 3),  # the axes, the ids and the table
        ("communication", "matmul_reduce_scatter[naive]", 2),  # in 16 bits, and in others
        ("value", "load_balancing_loss[sums]", 2),  # all experts, and fewer
        ("value", "ring_shift[lax]", 1),
    ],
)
def test_of_few_structures_all_kinds_come_in_turn(law: str, implementation: str, count: int) -> None:
    """None comes again before all others came; of many structures they come as they are drawn."""
    (one,), kinds = (i for i in IMPLEMENTATIONS if str(i) == implementation), LAWS[law].kinds
    few = drawn(telling(LAWS[law], one, Scope(), lambda case: None, FEW, lambda: False), 4 * count)
    told = [kinds.of(case) for case in few]
    assert len(told) == 4 * count
    assert {len({*told[i : i + count]}) for i in range(0, len(told), count)} == {count}
    many = drawn(telling(LAWS[law], one, Scope(), lambda case: None, FEW + 1, lambda: False), 40)
    told = [kinds.of(case) for case in many]
    assert (told != told[:count] * (40 // count)) == (count > 1)


@pytest.mark.parametrize("broken", [lambda: True, None], ids=["broken", "remembered"])
def test_where_what_failed_must_fail_again_all_cases_are_taken(broken: Callable[[], bool] | None) -> None:
    """Once a law is broken, since what is simpler is mostly of the same kind, and where cases are remembered."""
    (one,), law = (i for i in IMPLEMENTATIONS if str(i) == "load_balancing_loss[sums]"), LAWS["value"]
    cases = drawn(telling(law, one, Scope(), lambda case: None, FEW, broken), 40)
    told = [law.kinds.of(case) for case in cases]
    assert told != told[:2] * 20


def test_an_error_of_the_suite_is_told_where_kinds_come_in_turn() -> None:
    """It is one again when Hypothesis repeats the case, though it is another kind's turn."""
    (one,), tried = (i for i in IMPLEMENTATIONS if str(i) == "embedding_lookup[masked]"), []

    def fails(*ignored: object) -> int:
        tried.append(ignored)
        if len(tried) > 1:
            raise SuiteError("there is no oracle")
        return 1

    law = replace(LAWS["error"], check=fails)
    with pytest.raises(SuiteError, match="there is no oracle"):
        search(law, one, engine_named("simulate"), Scope(), 4, 0, shrink=False, before=lambda case: "")


def test_a_kind_that_does_not_come_is_not_waited_for() -> None:
    """After so many draws without it another one is taken, and from then on at once, until it comes."""
    case: Case = example("matmul_reduce_scatter", MeshCase(("dp",), (2,)), "dp")
    axes, rhs, dimension = (replace(case, forbidden=name) for name in ("axis_name", "rhs", "scatter_dimension"))
    turns = Turns(WRONG_ARGUMENTS)
    assert turns.take(axes)
    assert turns.take(rhs)
    assert [turns.take(rhs) for _ in range(PATIENCE + 1)] == [False] * PATIENCE + [True]
    assert turns.take(axes)
    assert turns.take(dimension)
    assert not turns.take(axes)
