"""JSON of cases: drawn ones survive it, older formats are read, and damaged files are refused."""

import dataclasses
import json
from typing import Any

import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import Scope
from shardproof.properties.laws.law import LAWS, Law
from shardproof.properties.meta.drawn import drawn
from shardproof.properties.programs.implementations import BUILT_IN, Implementation

pytestmark = pytest.mark.either_end


@pytest.mark.parametrize(
    ("law", "implementation"),
    [(law, one) for law in LAWS.values() for one in BUILT_IN if law.asks(one)],
    ids=lambda one: one.name if isinstance(one, Law) else str(one),
)
def test_a_case_survives_json(law: Law, implementation: Implementation) -> None:
    """Every case that a law draws equals itself, with an equal hash, after a round trip through JSON."""
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
    """A case with every field set equals itself after a round trip through JSON."""
    assert Case.from_json(CASE.to_json()) == CASE


def test_the_first_formats_are_read() -> None:
    """Files of formats 1 and 2 are read as the cases that they stored."""
    assert CASE.out is not None
    case = dataclasses.replace(CASE, chain=("partial_manual",))
    old = json.loads(case.to_json()) | {"format": 2, "around": "partial_manual"}
    del old["chain"]
    assert Case.from_json(json.dumps(old)) == case
    assert Case.from_json(json.dumps(old | {"around": "jit"})) == dataclasses.replace(case, chain=())
    old |= {"format": 1, "out": old["out"][0]}
    del old["roles"]
    assert Case.from_json(json.dumps(old)) == dataclasses.replace(case, roles=())


def changed(**fields: Any) -> str:
    """The JSON of a case with some fields replaced, or left out where the value is `...`."""
    record = {**json.loads(CASE.to_json()), **fields}
    return json.dumps({name: value for name, value in record.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^not JSON: "),
        (CASE.to_json()[:-40], "^not JSON: "),
        ("__import__('os').abort()", "^not JSON: "),
        ("[1, 2]", "^not a case: expected a JSON object with a 'format'"),
        ('{"name": "something else"}', "^not a case: expected a JSON object with a 'format'"),
        (changed(format=4), "^format=4: expected 1 to 3; another version wrote this case"),
        (changed(format="1"), "^format='1': expected 1 to 3"),
        (changed(roles=...), "^case: expected 'roles' in it"),
        (changed(roles=["dp"]), "^roles=\\['dp'\\]: expected an object"),
        (changed(mesh=...), "^case: expected 'mesh' in it"),
        (changed(mesh=[]), r"^mesh=\[\]: expected lists for axis_names, sizes"),
        (changed(mesh={**CASE.mesh.to_json(), "sizes": [2, "2"]}), "expected whole numbers for sizes and devices"),
        (changed(mesh={**CASE.mesh.to_json(), "devices": [0, 0, 1, 2]}), "expected 4 distinct device numbers"),
        (
            changed(operands=[{"block": [1], "dtype": "object", "placement": {"spec": [[]], "stacked": []}}]),
            "^dtype='object'",
        ),
        (changed(operands=7), "^operands=7: expected a list"),
        (changed(data=[{"kind": "pickle", "seed": 0}]), "^kind='pickle': expected one of exact"),
        (changed(params=[]), r"^params=\[\]: expected an object"),
        (changed(out=3), "^out=3: expected a list"),
    ],
)
def test_what_is_no_case_is_refused(text: str, message: str) -> None:
    """A damaged, foreign or newer file is refused with a ValueError that says what was expected."""
    with pytest.raises(ValueError, match=message):
        Case.from_json(text)
