"""JSON of cases, which drawn ones survive."""

import pytest
from hypothesis.vendor.pretty import pretty

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope, contract_of
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.programs.built_in import BUILT_IN
from shardproof.properties.programs.implementations import Implementation

pytestmark = pytest.mark.either_end


def looked_at(case: Case) -> set[Case]:
    """A case that is drawn, and what each law that applies to it looks at."""
    return {case} | {asked for law in LAWS.values() if (asked := law.of(case)) is not None}


@pytest.mark.parametrize("implementation", BUILT_IN, ids=str)
def test_a_case_survives_json(implementation: Implementation) -> None:
    """Every case that is drawn, or that a law looks at, equals itself and its hash after a round trip through JSON."""
    for some in drawn(drawn_for(implementation, Scope(large=300), eager=True), 60):
        for case in set().union(*map(looked_at, some)):
            again = Case.from_json(case.to_json(), contract_of)
            assert again == case
            assert hash(again) == hash(case)
            assert again.to_json() == case.to_json()


CASE = Case(
    contract=CONTRACTS["all_gather"],
    mesh=MeshCase(("dp", "tp"), (2, 2), (3, 1, 0, 2), ("auto", "explicit")),
    axis_name=("tp", "dp"),
    operands=(Operand((2, 1), "bfloat16", Placement((("tp",), ()), ("dp",))),),
    params=(("axis", -1), ("tiled", True), ("axis_index_groups", ((0, 1), (2, 3)))),
    data=(Data("distinct", 7),),
    chain=("partial_manual", "vmap", "scan"),
    manual=("dp", "tp"),
    tree=True,
    out=(Placement(((), ("tp", "dp"))),),
    forbidden="axis",
    roles=(("data", "dp"), ("model", ("tp",))),
)


def test_hypothesis_shows_a_case_in_a_line() -> None:
    """Not with all that its contract has, which takes 15 kB: Hypothesis warns of two, and that ends a search."""
    assert pretty(CASE) == str(CASE)


def test_a_case_with_everything_survives_json() -> None:
    """A case with every field set equals itself after a round trip through JSON."""
    assert Case.from_json(CASE.to_json(), contract_of) == CASE
