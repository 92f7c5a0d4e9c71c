"""Whole cases: what is trivial in them is rare, and they survive a trip through JSON."""

import json
from typing import Any

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.communication.bounds import nothing_must_move
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.attention import LONGEST
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.laws.law import LAWS, Law
from shardproof.properties.meta.drawn import drawn, one
from shardproof.properties.programs.implementations import BUILT_IN, Implementation
from shardproof.properties.report.checking import user_implementation

pytestmark = pytest.mark.either_end


def one_of_each_contract(count: int) -> dict[str, list[Case]]:
    """The first draws of the law of values for an implementation of every contract that claims all it can."""
    found = {contract: user_implementation(contract, print, ["all"]) for contract in CONTRACTS}
    return {contract: drawn(LAWS["value"].cases(own, Scope()), count) for contract, own in found.items()}


def skips(case: Case) -> bool:
    """Whether an axis of the mesh lies between those of the tuple, or of a role, and is none of it."""
    tuples = axes_of(case.roles).values() if case.roles else [case.axes]
    at = [sorted(map(case.mesh.axis_names.index, axes)) for axes in tuples if axes]
    return any(places[-1] - places[0] >= len(places) for places in at)


def turned(case: Case) -> bool:
    """Whether the tuple, or that of a role, has several axes that are longer than one, out of mesh order."""
    tuples = axes_of(case.roles).values() if case.roles else [case.axes]
    long = [tuple(name for name in axes if case.mesh.shape[name] > 1) for axes in tuples]
    return any(axes != case.mesh.in_mesh_order(axes) for axes in long)


@pytest.mark.lengthy
def test_what_is_trivial_is_rare_and_what_skips_an_axis_is_not() -> None:
    """Of 2,600 draws a tenth at most move nothing, some of each kind; a tenth skip an axis, an eighth are turned."""
    by_contract = one_of_each_contract(100)
    every = [case for cases in by_contract.values() for case in cases]
    trivial = [case for case in every if is_trivial(case)]
    assert 0.05 < len(trivial) / len(every) <= 0.1
    assert sum(map(skips, every)) / len(every) > 0.09
    assert sum(map(turned, every)) / len(every) > 0.12
    for contract, cases in by_contract.items():
        assert sum(map(is_trivial, cases)) / len(cases) < 0.25, contract
        assert sum(map(skips, cases)) / len(cases) > 0.04, contract
    shifts = [case for case in by_contract["ring_shift"] if case.participants > 1]
    for kind in (
        [case for case in trivial if case.mesh.size == 1],
        [case for case in trivial if case.mesh.size > 1 and case.group_size == 1],
        [case for case in trivial if any(0 in o.block for o in case.operands)],
        [case for case in shifts if case.keywords["offset"] % case.participants == 0],
    ):
        assert kind


@pytest.mark.parametrize("contract", ["mlp_loss", "global_moe_layer"])
def test_most_cases_of_several_roles_are_on_several_participants_of_two(contract: str) -> None:
    """More than a third of them: what a function takes one role for another in does not show on one participant."""
    cases = drawn(LAWS["value"].cases(user_implementation(contract, print, ["all"]), Scope()), 200)
    several = [sum(case.mesh.axis_size(axes) > 1 for axes in axes_of(case.roles).values()) > 1 for case in cases]
    assert sum(several) / len(several) > 0.35


def is_trivial(case: Case) -> bool:
    """Whether nothing must move although operands vary along the axis tuple."""
    return nothing_must_move(case) and any(set(case.axes) & o.placement.axes for o in case.operands)


def test_an_axis_is_skipped_on_two_devices_as_well() -> None:
    """Meshes with axes of size 1 around another are within reach where one is skipped."""
    case = one(LAWS["value"].cases(user_implementation("broadcast", print), Scope(sizes=(1, 2, 1))), skips)
    assert case.mesh.sizes == (1, 2, 1)


@pytest.mark.parametrize(
    ("law", "implementation"),
    [(law, one) for law in LAWS.values() for one in BUILT_IN if law.asks(one)],
    ids=lambda one: one.name if isinstance(one, Law) else str(one),
)
def test_a_case_survives_json(law: Law, implementation: Implementation) -> None:
    """Every case that a law draws for an implementation is equal, and hashes equal, after a trip through JSON.

    Those of the hand-written algorithms are among them: they are drawn by the same contracts.
    """
    for case in drawn(law.cases(implementation, Scope()), 6):
        again = Case.from_json(case.to_json())
        assert again == case
        assert hash(again) == hash(case)
        assert again.to_json() == case.to_json()


CASE = Case(
    contract="all_gather",
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


def test_a_case_with_everything_survives_json() -> None:
    """No field of a case is lost on the way through JSON."""
    assert Case.from_json(CASE.to_json()) == CASE


def changed(**fields: Any) -> str:
    """The JSON of a case with some fields replaced, or left out where the value is `...`."""
    record = {**json.loads(CASE.to_json()), **fields}
    return json.dumps({name: value for name, value in record.items() if value is not ...})


MESH = json.loads(CASE.to_json())["mesh"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^not JSON: "),
        (CASE.to_json()[:-40], "^not JSON: "),
        ("__import__('os').abort()", "^not JSON: "),
        ("[1, 2]", "expected `object`, got `array`"),
        (changed(contract=...), "object missing required field `contract`"),
        (changed(format=4), "^format: expected no such field"),
        (changed(roles=["dp"]), r"^roles\[0\]='dp': expected `array`, got `str`"),
        (changed(mesh=[]), r"^mesh=\[\]: expected `object`, got `array`"),
        (changed(mesh={**MESH, "sizes": [2, "2"]}), r"^mesh.sizes\[1\]='2': expected `int`, got `str`"),
        (changed(mesh={**MESH, "devices": [0, 0, 1, 2]}), "expected 4 distinct device numbers"),
        (
            changed(operands=[{"block": [1], "dtype": "object", "placement": {"spec": [[]], "stacked": []}}]),
            "^dtype='object'",
        ),
        (changed(operands=7), "^operands=7: expected `array`, got `int`"),
        (changed(data=[{"kind": "pickle", "seed": 0}]), "kind='pickle': expected one of exact"),
        (changed(params={}), r"^params=\{\}: expected `array`, got `object`"),
        (changed(out=3), r"^out=3: expected `array \| null`, got `int`"),
    ],
)
def test_what_is_no_case_is_refused(text: str, message: str) -> None:
    """A damaged, a foreign and a newer file are refused with ValueError, which says what was expected."""
    with pytest.raises(ValueError, match=message):
        Case.from_json(text)


def test_a_long_sequence_is_drawn_on_many_devices() -> None:
    """Attention on 64 participants has long sides as well: as much of a sequence on each as the whole one may have."""
    cases = LAWS["value"].cases(user_implementation("attention", print), Scope(64, 64, sizes=(64,)))
    case = one(cases, lambda case: case.operands[0].block[0] > 7)
    assert case.operands[0].block[0] == LONGEST // 64
