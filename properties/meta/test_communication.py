"""Lower bounds and costs of communication, and what is sent where layouts decide."""

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from shardproof.oracles.communication import lower_bound
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.communication.counted import Cost, stated_values
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.communication import check_communication, communication_of, stated_terms
from shardproof.properties.programs.built_in import ALGORITHMS, IMPLEMENTATIONS, OVERLAPPED
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken

SIMULATE = engine_named("simulate")
OWN = {str(i): i for i in IMPLEMENTATIONS}


@pytest.mark.parametrize("one", [*ALGORITHMS, *OVERLAPPED], ids=str)
def test_no_algorithm_says_more_steps_than_it_takes(one: Implementation) -> None:
    """As many permutes wait for one another as are stated, which the law only takes for the most."""
    meshes = [MeshCase(("x", "y")[: len(sizes)], sizes) for sizes in ((4,), (7,), (2, 4), (3, 2))]
    for mesh in meshes:
        case = example(one.contract.name, mesh, mesh.axis_names[::-1] if len(mesh.sizes) > 1 else "x")
        terms = stated_terms(one, backward=False)
        steps = None if terms is None else stated_values(terms, case).steps
        if (one.serves is None or one.serves(case)) and steps is not None:
            assert communication_of(one, case, SIMULATE).rounds == steps, mesh


@pytest.mark.parametrize(
    ("contract", "p", "n", "bound"),
    [
        ("all_gather", 5, 100, (3, 80)),
        ("all_gather_invariant", 8, 80, (3, 70)),
        ("reduce_scatter", 4, 100, (2, 75)),
        ("all_reduce", 4, 102, (2, 153)),
        ("all_reduce", 3, 4, (2, Fraction(16, 3))),
        ("all_to_all", 2, 100, (1, 50)),
        ("broadcast", 9, 100, (4, 100)),
        ("broadcast", 1, 100, (0, 0)),
        ("permute", 4, 100, (0, 0)),
        ("ring_shift", 4, 100, (0, 0)),
    ],
)
def test_lower_bounds(contract: str, p: int, n: int, bound: tuple[int, Fraction]) -> None:
    """Worked examples of the bounds."""
    assert lower_bound(contract, p, n) == bound


def test_costs_of_unknown_contracts() -> None:
    """A cost of an unknown contract is refused."""
    with pytest.raises(ValueError, match="kind='gather': expected one of permute, all_gather"):
        Cost.of([("gather", 1, 4)])
    with pytest.raises(ValueError, match="contract='gather': expected one of all_gather, all_gather_invariant"):
        lower_bound("gather", 2, 1)


def test_a_cost_in_words() -> None:
    """Kinds are in order, each with its count and bytes, and those that do not occur are left out."""
    cost = Cost.of([("permute", 4, 20), ("all_reduce", 1, 8), ("all_gather", 0, 0), ("permute", 1, 4)])
    assert str(cost) == "all_reduce=1 (8 bytes), permute=5 (24 bytes)"


def test_every_implementation_has_a_claim() -> None:
    """None is checked against the lower bound alone, but where the compiler or the layouts of arrays decide.

    What losses send is stated for fixed sizes (`test_losses`).
    """
    by_layout = {*RESHARDED, "mlp_loss"}
    for i in IMPLEMENTATIONS:
        stated = not (i.whole or i.contract.name in by_layout)
        assert (i.communication is not None) == stated, i


X, Y, XY, BOTH = ("x",), ("y",), ("x", "y"), ("y", "x")
RESHARDED: dict[str, list[tuple[str, tuple[Any, ...], str]]] = {
    "reshard": [
        ("exchanged", (X, Y, X, Y), "no communication"),
        ("exchanged", ((), (), XY, ()), "no communication"),
        ("exchanged", (X, (), (), X), "all_to_all=1 (128 bytes)"),
        ("exchanged", (XY, (), X, ()), "all_gather=1 (64 bytes)"),
        ("exchanged", (XY, (), BOTH, ()), "all_gather=1 (64 bytes)"),
    ],
    "sharded_matmul": [
        ("gathered", (X, Y, Y, (), X, ()), "all_gather=2 (192 bytes)"),
        ("reduced", (X, Y, Y, (), X, ()), "all_reduce=1 (128 bytes)"),
    ],
    "two_matmuls": [("gathered", (X, (), (), Y, Y, (), X, (), X, ()), "all_gather=2 (256 bytes)")],
}
"""Of matrices of 8x8 in float32 on 2x2 devices, by the axes of their roles: what is sent."""

OF_ROLES = [(contract, *row) for contract, rows in RESHARDED.items() for row in rows]


@pytest.mark.parametrize(("contract", "form", "axes", "sent"), OF_ROLES)
def test_what_other_layouts_take(contract: str, form: str, axes: tuple[Any, ...], sent: str) -> None:
    """Parts that are in place are not sent, what changes places is exchanged, and other parts are gathered, once."""
    implementation, case = laid_out(contract, form, axes)
    assert str(communication_of(implementation, case, SIMULATE).cost) == sent


def laid_out(contract: str, form: str, axes: tuple[Any, ...]) -> tuple[Implementation, Case]:
    """A form of a contract, and its case of matrices of 8x8 whose roles are on these axes."""
    implementation, mesh = OWN[f"{contract}[{form}]"], MeshCase(XY, (2, 2))
    roles = dict(zip(implementation.contract.call.roles, axes, strict=True))
    specs = [(roles[f"{name}_rows"], roles[f"{name}_columns"]) for name in implementation.contract.call.operands]
    operands = [
        Operand((8 // mesh.axis_size(r), 8 // mesh.axis_size(c)), "float32", Placement((r, c))) for r, c in specs
    ]
    return implementation, Case(implementation.contract, mesh, XY, tuple(operands), roles=tuple(roles.items()))


def test_what_is_empty_may_be_sent() -> None:
    """A sum over no token is sent, and moves nothing; where bytes are said, sending none is a violation."""
    norm = OWN["rms_norm[squares]"]
    x = Operand((0, 2), "bfloat16", Placement(((), ("tp",)), ("dp",)))
    scale = Operand((2,), "bfloat16", Placement((("tp",),), ("dp",)))
    mesh = MeshCase(("dp", "tp"), (2, 4))
    empty = Case(norm.contract, mesh, "tp", (x, scale), (("epsilon", 1e-6),))
    assert str(communication_of(norm, empty, SIMULATE).cost) == "all_reduce=1 (0 bytes)"
    assert check_communication(norm, empty, SIMULATE).checked == 1
    same, case = laid_out("reshard", "exchanged", (X, Y, X, Y))
    costly = dataclasses.replace(same, communication=Expectation.parse("all_reduce=1,bytes=1"))
    with pytest.raises(Broken, match="no communication: expected all_reduce=1, bytes=1"):
        check_communication(costly, case, SIMULATE)
    expected = dataclasses.replace(same, communication=Expectation.parse("permute=1"))
    with pytest.raises(Broken, match="no communication: expected permute=1"):
        check_communication(expected, case, SIMULATE)


def test_a_halo_is_what_is_missing() -> None:
    """The rows that are said to be sent are as many as a participant lacks, each counted once."""
    one = OWN["halo_exchange[permutes]"]
    for p, n, before, after in ((1, 2, 2, 1), (2, 1, 2, 0), (3, 2, 3, 1), (5, 4, 7, 6), (5, 2, 10, 10)):
        lacks = len({row % (n * p) for row in range(-before, n + after)} - {*range(n)})
        params = (("before", before), ("after", after), ("axis", 0))
        operand = Operand((n, 3), "float32", Placement((("x",), ())))
        case = Case(CONTRACTS["halo_exchange"], MeshCase(("x",), (p,)), "x", (operand,), params)
        terms = stated_terms(one, backward=True)
        assert terms is not None
        stated = stated_values(terms, case)
        assert stated.bytes == 4 * 3 * lacks, (p, n, before, after)
        assert stated.counts["permute"] <= 2 * (p - 1)
