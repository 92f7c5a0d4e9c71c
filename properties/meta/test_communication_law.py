"""The law of communication fails for what sends too much or too little, says so, and fails for nothing else."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import pytest
from jax import lax

from impl import collectives
from oracles.communication import Cost
from oracles.mesh import MeshCase
from properties.cases import Case, Operand, Placement
from properties.communication import table
from properties.communication.bounds import NOTHING, Bound, full_bytes, lower_bound, members, moved, needed
from properties.communication.counted import of_record
from properties.communication.examples import PARAMETERS, example
from properties.communication.expectation import Expectation
from properties.contracts import Scope
from properties.engines import Engine, engine_named, simulate
from properties.failures.script import script
from properties.implementations import IMPLEMENTATIONS, Implementation
from properties.laws import check_communication
from properties.laws.communication import communication_of
from properties.laws.violation import LawViolation
from properties.mutants import MUTANTS
from properties.readme import README
from properties.report import notes
from properties.search import find_violation
from properties.tally import Tally
from properties.verification import LAWS, verify

FOUR = MeshCase(("dp",), (4,))
ENGINES = ("simulate", "xla")


def ring_gather(x: jax.Array, axis_name: str | tuple[str, ...], *, axis: int = 0, tiled: bool = False) -> jax.Array:
    """An all-gather of p - 1 permutes."""
    p, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    blocks, moving = jax.numpy.zeros((p, *x.shape), x.dtype).at[index].set(x), x
    for step in range(1, p):
        moving = collectives.ring_shift(moving, axis_name)
        blocks = blocks.at[(index - step) % p].set(moving)
    return jax.numpy.concatenate(list(blocks), axis) if tiled else jax.numpy.moveaxis(blocks, 0, axis)


def ring_cost(case: Case, backward: bool) -> Cost:
    """A ring's formula, the same for its transpose."""
    p = members(case)
    return Cost.permutes(p - 1, (p - 1) * full_bytes(case) // p)


def built_in_cost(case: Case, backward: bool) -> Cost:
    """One collective per leaf, forward and backward, of what `jax.lax` offers."""
    gathers = case.contract in ("all_gather", "all_gather_invariant", "broadcast")
    kind = {"permute": "permute", "ring_shift": "permute"}.get(
        case.contract, "all_gather" if gathers else case.contract
    )
    leaves = [dataclasses.replace(case, operands=(operand,)) for operand in case.operands]
    gathered = case.contract in ("all_gather", "all_gather_invariant")
    sizes = [full_bytes(leaf) // (members(case) if gathered else 1) for leaf in leaves]
    if case.contract == "all_reduce" and case.keywords["op"] == "sum":  # of bool: counts, in int32
        sizes = [4 * n if leaf.operands[0].dtype == "bool" else n for n, leaf in zip(sizes, leaves, strict=True)]
    if backward and case.contract in ("all_reduce", "all_gather_invariant"):
        return Cost()  # the cotangent is everywhere already
    if backward and kind in ("all_gather", "reduce_scatter"):
        back = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}[kind]
        p = members(case)
        sizes = [n * p if kind == "all_gather" else n // p for n in sizes]
        kind = back
    return Cost.of({kind: len(sizes)}, {kind: sum(sizes)})


def mine(function: Callable[..., Any], contract: str = "all_gather", **fields: Any) -> Implementation:
    """A user's function."""
    return Implementation(contract, "mine", function, **fields)


def check(implementation: Implementation, case: Case, engine: str) -> str:
    """The headline of what the law finds; empty if nothing."""
    try:
        check_communication(implementation, case, engine_named(engine))
    except LawViolation as violation:
        return violation.headline
    return ""


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_right_formula_holds(devices: int, engine: str) -> None:
    """A ring that sends what its formula says passes, forward and backward."""
    case = example("all_gather", FOUR, "dp")
    assert check_communication(mine(ring_gather, communication=ring_cost), case, engine_named(engine)) == 2


def test_a_violation_says_what_was_sent_and_what_was_expected() -> None:
    """The headline has both counts and both bytes; the gradient's own is told apart."""
    case = dataclasses.replace(
        example("all_gather", FOUR, "dp"), operands=(Operand((4,), "float32", Placement((("dp",),))),)
    )

    def one_too_many(x: Any, axis_name: Any, **parameters: Any) -> Any:
        whole = collectives.ring_shift(x, axis_name)
        return ring_gather(collectives.ring_shift(whole, axis_name, offset=-1), axis_name, **parameters)

    wasted = mine(one_too_many, communication=ring_cost)
    assert check(wasted, case, "simulate") == (
        "all_gather[mine]: communication: mesh (dp=4), axis 'dp': "
        "5 permutes of 80 bytes in all: expected 3 of 48 (formula)"
    )
    only_backward = mine(
        ring_gather, communication=lambda case, backward: Cost() if backward else ring_cost(case, backward)
    )
    assert check(only_backward, case, "simulate").endswith(
        "gradient: 3 permutes of 48 bytes in all: expected none (formula of the gradient)"
    )


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_twice_the_bytes(devices: int, engine: str) -> None:
    """The right count with too many bytes is a violation, compiled as well."""
    case = example("ring_shift", FOUR, "dp")

    def doubled(x: Any, axis_name: Any, *, offset: int) -> Any:
        first, second = collectives.ring_shift(jax.numpy.stack([x, x + 0 * x]), axis_name, offset=offset)
        return (first + second) / 2

    wasteful = mine(doubled, "ring_shift", communication=lambda case, _: Cost.permutes(1, full_bytes(case)))
    assert "1 permute of 64 bytes" in check(wasteful, case, engine)


@pytest.mark.parametrize("contract", [c for c in PARAMETERS if c != "permute"])
def test_nothing_sent_is_below_the_bound(contract: str) -> None:
    """Whatever returns without sending cannot be right, and the law knows without a formula."""
    case = example(contract, FOUR, "dp")
    nothing = mine(lambda x, axis_name, **parameters: x, contract)
    assert "no communication: " in check(nothing, case, "simulate")
    assert "bytes must pass every device (lower bound)" in check(nothing, case, "simulate")


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("built_in", IMPLEMENTATIONS[:8], ids=str)
def test_right_ones_are_not_reported(devices: int, built_in: Implementation, engine: str) -> None:
    """What the built-in collectives send is what their formula says, in whatever way XLA compiles it."""
    implementation = dataclasses.replace(built_in, communication=built_in_cost)
    budget = {"simulate": 30, "xla": 6}[engine]
    found = find_violation(
        LAWS["communication"], implementation, engine_named(engine), Scope(), max_examples=budget, random_seed=11,
        shrink=False,
    )  # fmt: skip
    assert found.violation is None, str(found.violation)
    assert found.tally.communication["against"] == "formula"


def test_what_devices_do_differently_is_counted_once() -> None:
    """Two branches with a permute each, one for each half of the devices, are one permute; other halves are unknown."""
    shape = jax.sharding.AbstractMesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shift = [(i, (i + 1) % 4) for i in range(4)]

    def run(other: Callable[[Any], Any]) -> Any:
        def local(x: Any) -> Any:
            return lax.cond(lax.axis_index("a") == 0, lambda x: lax.ppermute(x, "b", shift), other, x)

        function = jax.shard_map(local, mesh=shape, in_specs=jax.P("b"), out_specs=jax.P(("a", "b")), check_vma=False)
        return of_record(simulate.prepare(function, jax.numpy.ones(8)).run_recorded(jax.numpy.ones(8))[1])

    assert run(lambda x: lax.ppermute(x, "b", shift[::-1])).cost == Cost.of({"permute": 1}, {"permute": 8})
    assert run(lambda x: x).cost is None


@pytest.mark.parametrize(
    ("contract", "p", "n", "bound"),
    [
        ("all_gather", 8, 64, Bound(3, Fraction(56))),
        ("reduce_scatter", 5, 10, Bound(3, Fraction(8))),
        ("all_reduce", 4, 16, Bound(2, Fraction(24))),
        ("all_to_all", 2, 16, Bound(1, Fraction(8))),
        ("broadcast", 5, 12, Bound(3, Fraction(12))),
        ("ring_shift", 5, 12, Bound(1, Fraction(12))),
        ("all_gather", 1, 64, NOTHING),
        ("all_reduce", 4, 0, NOTHING),
    ],
)
def test_lower_bounds(contract: str, p: int, n: int, bound: Bound) -> None:
    """The bounds are those of the literature."""
    assert lower_bound(contract, p, n) == bound


def test_what_need_not_be_sent() -> None:
    """Identities, shifts by p, replicated operands and empty blocks need nothing; a bool needs a bit."""
    permute = example("permute", FOUR, "dp")
    identity = dataclasses.replace(permute, params=(("perm", ((0, 0), (2, 2))),))
    whole = dataclasses.replace(example("ring_shift", FOUR, "dp"), params=(("offset", -8),))
    gather = example("all_gather", FOUR, "dp")
    replicated = dataclasses.replace(gather, operands=(Operand((2, 4), "float32", Placement(((), ()))),))
    empty = dataclasses.replace(gather, operands=(Operand((0, 4), "float32", Placement((("dp",), ()))),))
    bools = dataclasses.replace(gather, operands=(Operand((2, 4), "bool", Placement((("dp",), ()))),))
    assert [needed(case) for case in (identity, whole, replicated, empty)] == [NOTHING] * 4
    assert needed(gather).bytes == 96
    assert needed(bools).bytes == 3
    assert needed(permute).bytes == 32


def test_what_built_in_collectives_move() -> None:
    """Each kind counts by its own bound; what depends on data is not told."""
    assert moved([("all_gather", 4, 8), ("permute", 4, 8), ("reduce_scatter", 4, 8), ("all_reduce", 4, 8)]) == 50
    assert moved([("permute", 4, 8), ("ragged_all_to_all", 4, 8)]) is None


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("permute=p-1,bytes=(p-1)*n/p", True),
        ("permute=3", True),
        ("bytes=96", True),
        ("permute=p", False),
        ("permute=p-1,bytes=n", False),
        ("all_gather=1", False),
        ("permute=p/3", False),
    ],
)
def test_expectations(text: str, right: bool) -> None:
    """What the user expects is held against what is sent; kinds that are not named must not occur."""
    headline = check(
        mine(ring_gather, expectation=Expectation.parse(text)), example("all_gather", FOUR, "dp"), "simulate"
    )
    assert (headline == "") == right
    if not right:
        assert "3 permutes of 96 bytes in all: expected " in headline
        assert f"(from {text} with p=4, n=128)" in headline


def test_the_report_says_what_is_known() -> None:
    """Without a formula the report says that it is unknown, and what the largest case sends."""
    tally = Tally("all_gather", "mine", "communication", "simulate")
    small, large = (example("all_gather", MeshCase(("dp",), (p,)), "dp") for p in (2, 4))
    for case in (large, small):
        verify(LAWS["communication"], mine(ring_gather), case, engine_named("simulate"), tally)
    merged = Tally("all_gather", "mine", "")
    merged.add(Tally.from_json(tally.to_json()))
    assert notes([merged]) == [
        (
            "communication unknown: all_gather[mine]: checked against the lower bound only; "
            f"the largest case sends permute=3 (96 bytes): {large}"
        )
    ]


def test_a_gradient_that_cannot_be_taken_is_passed_over() -> None:
    """A function without a gradient is checked forward."""

    @jax.custom_vjp
    def opaque(x: jax.Array) -> jax.Array:
        return collectives.ring_shift(x, "dp")

    def refuse(x: jax.Array) -> Any:
        raise NotImplementedError

    opaque.defvjp(refuse, refuse)
    implementation = mine(
        lambda x, axis_name, offset: opaque(x), "ring_shift", communication=lambda case, _: Cost.permutes(1, 32)
    )
    assert check_communication(implementation, example("ring_shift", FOUR, "dp"), engine_named("simulate")) == 1


@pytest.mark.needs_devices(4)
def test_the_script_lists_the_collectives(devices: int) -> None:
    """The script of a violation compiles the program again and prints its collectives."""
    implementation = mine(ring_gather, communication=lambda case, backward: Cost.permutes(1, 32))
    with pytest.raises(LawViolation) as raised:
        check_communication(implementation, example("all_gather", FOUR, "dp"), engine_named("simulate"))
    text = script(raised.value)
    assert text.count("'collective-permute'),") == 3
    assert "sys.exit(1 if found == known else 0)" in text


@pytest.mark.needs_devices(4)
def test_the_script_tells_what_waits(devices: int, tmp_path: Path) -> None:
    """The script of one way after the other exits with 1, and with 0 for both ways at once."""
    slow = MUTANTS["gather_one_way_after_the_other"]
    implementation = mine(slow.function, communication=slow.communication)
    with pytest.raises(LawViolation) as raised:
        check_communication(implementation, example("all_gather", FOUR, "dp"), engine_named("simulate"))
    finding = "6 permutes of 96 bytes in all, 6 of which must wait for one another: expected at most 3 steps (formula)"
    assert raised.value.finding == finding
    text = script(raised.value)
    repaired = text.replace(
        f"from properties.mutants.communication import {slow.name}",
        f"from impl.algorithms import bidirectional_all_gather as {slow.name}",
    )
    for source, code in ((text, 1), (repaired, 0)):
        path = tmp_path / f"exits_with_{code}.py"
        path.write_text(source)
        done = subprocess.run(
            [sys.executable, path], env={**os.environ, "PYTHONPATH": str(README.parent)}, capture_output=True, text=True
        )
        assert done.returncode == code, done.stdout + done.stderr


def test_the_table() -> None:
    """Every built-in implementation has a row for 8 and for 5 members, and is never below its bound."""
    rows = table.rows(IMPLEMENTATIONS)
    shown = {(row.implementation, row.p) for row in rows}
    assert {(f"{contract}[lax]", p) for contract in PARAMETERS for p in table.MEMBERS} <= shown
    assert {(str(i), 8) for i in IMPLEMENTATIONS if i.contract in PARAMETERS} <= shown
    by_name = {(row.implementation, row.p): row for row in rows}
    assert by_name["ring_shift[lax]", 5].optimal == ("steps", "bytes")
    assert by_name["broadcast[lax]", 5].optimal == ()
    assert len(table.markdown(rows).splitlines()) == len(rows) + 2
    assert table.json_rows(rows)[0]["p"] == 8


def test_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A structure is counted once, however often it is asked for."""
    engine: Engine = engine_named("simulate")
    case = example("broadcast", MeshCase(("kept",), (3,)), "kept")
    first = communication_of(IMPLEMENTATIONS[7], case, engine)
    monkeypatch.setattr(type(engine), "count", lambda *_: pytest.fail("counted again"))
    assert communication_of(IMPLEMENTATIONS[7], case, engine) is first
