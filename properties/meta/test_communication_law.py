"""The law of communication fails for what sends too much or too little, says so, and fails for nothing else."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.communication.counted import (
    NOTHING,
    Cost,
    Unknown,
    bytes_moved,
    needed_bound,
    nothing_must_move,
    of_record,
    sizes_of,
)
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named, simulate
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import PARAMETERS, example
from shardproof.properties.programs.expectation import Expectation, ExpectationError, names_of
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import oracle_blocks
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.summary import notes
from shardproof.properties.runner.judging import judge
from shardproof.properties.runner.tally import Tally

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


RING = "permute=p-1,bytes=(p-1)*n/p,steps=p-1"
RING_BOTH_WAYS = Expectation.parse(f"{RING};grad:{RING}")


def mine(function: Callable[..., Any], contract: str = "all_gather", **fields: Any) -> Implementation:
    """A user's function."""
    return Implementation(CONTRACTS[contract], "mine", function, **fields)


def check(implementation: Implementation, case: Case, engine: str) -> str:
    """The finding of the law; empty if it holds."""
    try:
        check_communication(implementation, case, engine_named(engine))
    except Broken as found:
        return found.finding
    return ""


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_right_claim_holds(devices: int, engine: str) -> None:
    """A ring that sends what is claimed passes, forward and backward."""
    case = example("all_gather", FOUR, "dp")
    assert check_communication(mine(ring_gather, communication=RING_BOTH_WAYS), case, engine_named(engine)).checked == 2


def test_a_violation_says_what_was_sent_and_what_was_expected() -> None:
    """The headline has both counts and both bytes; that of the gradient says so."""
    case = dataclasses.replace(
        example("all_gather", FOUR, "dp"), operands=(Operand((4,), "float32", Placement((("dp",),))),)
    )

    def one_too_many(x: Any, axis_name: Any, **parameters: Any) -> Any:
        whole = collectives.ring_shift(x, axis_name)
        return ring_gather(collectives.ring_shift(whole, axis_name, offset=-1), axis_name, **parameters)

    wasted = mine(one_too_many, communication=RING_BOTH_WAYS)
    expected = f"permute=3, bytes=48, steps=3 (from {RING_BOTH_WAYS} with p=4, n=64)"
    assert check(wasted, case, "simulate") == f"5 permutes of 80 bytes in all: expected {expected}"
    only_backward = mine(ring_gather, communication=Expectation.parse(f"{RING};grad:permute=0"))
    assert check(only_backward, case, "simulate").startswith(
        "gradient: 3 permutes of 48 bytes in all: expected none (from "
    )


@pytest.mark.needs_devices(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_twice_the_bytes(devices: int, engine: str) -> None:
    """The right count with too many bytes is a violation, compiled as well."""
    case = example("ring_shift", FOUR, "dp")

    def doubled(x: Any, axis_name: Any, *, offset: int) -> Any:
        first, second = collectives.ring_shift(jax.numpy.stack([x, x + 0 * x]), axis_name, offset=offset)
        return (first + second) / 2

    wasteful = mine(doubled, "ring_shift", communication=Expectation.parse("permute=1,bytes=n"))
    assert "1 permute of 64 bytes" in check(wasteful, case, engine)


@pytest.mark.parametrize("contract", [c for c in PARAMETERS if c != "permute"])
def test_nothing_sent_is_below_the_bound(contract: str) -> None:
    """Whatever returns without sending cannot be right, and the law knows without a formula."""
    case = example(contract, FOUR, "dp")
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    block = oracle_blocks(case, zeros)[0].shape[len(case.mesh.sizes) :]
    nothing = mine(lambda x, axis_name, **parameters: jax.numpy.resize(x, block), contract)
    assert "no communication: " in check(nothing, case, "simulate")
    assert "bytes must pass every device (lower bound)" in check(nothing, case, "simulate")


def test_what_passes_is_reported_beside_what_must() -> None:
    """Of a collective of narrower elements; its size alone may be as large as what must pass."""
    narrow = mine(lambda x, axis_name, *, op: lax.psum(x.astype(jnp.bfloat16), axis_name).astype(x.dtype), "all_reduce")
    case = example("all_reduce", FOUR, "dp")
    words = r"^1 all_reduce of [\d,]+ bytes, by which [\d.]+ pass a device: [\d.]+ bytes must pass every device \("
    assert re.search(words, check(narrow, case, "simulate"))


def test_what_devices_do_differently_is_counted_once() -> None:
    """Two branches with a permute each, one for each half of the devices, are one permute; other halves are unknown."""
    shape = jax.sharding.AbstractMesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shift = [(i, (i + 1) % 4) for i in range(4)]

    def run(other: Callable[[Any], Any]) -> Any:
        def local(x: Any) -> Any:
            return lax.cond(lax.axis_index("a") == 0, lambda x: lax.ppermute(x, "b", shift), other, x)

        function = jax.shard_map(local, mesh=shape, in_specs=jax.P("b"), out_specs=jax.P(("a", "b")), check_vma=False)
        return of_record(simulate.prepare(function, jax.numpy.ones(8)).run_recorded(jax.numpy.ones(8))[1])

    assert run(lambda x: lax.ppermute(x, "b", shift[::-1])).cost == Cost.of([("permute", 1, 8)])
    with pytest.raises(Unknown, match="different collectives"):
        run(lambda x: x)


SHIFT, GATHER = (example(contract, FOUR, "dp") for contract in ("ring_shift", "all_gather"))
ALONE = example("ring_shift", MeshCase(("dp",), (1,)), "dp")
EMPTY = dataclasses.replace(SHIFT, operands=(Operand((0, 4), "float32", Placement((("dp",), ()))),))
WHOLE_TURNS = dataclasses.replace(SHIFT, params=(("offset", -8),))
REPLICATED = dataclasses.replace(GATHER, operands=(Operand((2, 4), "float32", Placement(((), ()))),))


def test_what_need_not_be_sent() -> None:
    """Identities, shifts by p, replicated operands and empty blocks need nothing; a bool needs a bit."""
    permute = example("permute", FOUR, "dp")
    identity = dataclasses.replace(permute, params=(("perm", ((0, 0), (2, 2))),))
    bools = dataclasses.replace(GATHER, operands=(Operand((2, 4), "bool", Placement((("dp",), ()))),))
    assert [needed_bound(case) for case in (identity, WHOLE_TURNS, REPLICATED, EMPTY)] == [NOTHING] * 4
    assert needed_bound(GATHER).bytes == 96
    assert needed_bound(bools).bytes == 3
    assert needed_bound(permute).bytes == 32


def test_what_built_in_collectives_move() -> None:
    """Each kind counts by its own bound; what depends on data is unknown."""
    assert bytes_moved([("all_gather", 4, 8), ("permute", 4, 8), ("reduce_scatter", 4, 8), ("all_reduce", 4, 8)]) == 50
    assert bytes_moved([("permute", 4, 8), ("ragged_all_to_all", 4, 8)]) is None


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
    """An expectation is compared with what is sent; kinds that are not named must not occur."""
    headline = check(
        mine(ring_gather, communication=Expectation.parse(text)), example("all_gather", FOUR, "dp"), "simulate"
    )
    assert (headline == "") == right
    if not right:
        assert "3 permutes of 96 bytes in all: expected " in headline
        assert f"(from {text} with p=4, n=128)" in headline


def lazy(x: jax.Array, axis_name: Any, **keywords: Any) -> jax.Array:
    """Sends nothing where nothing must move."""
    if "offset" not in keywords:
        stacked = jax.numpy.stack([x] * lax.axis_size(axis_name), keywords["axis"])
        return stacked if not keywords["tiled"] else jax.numpy.concatenate([*stacked], keywords["axis"])
    return collectives.cast_varying(x, (axis_name,))


@pytest.mark.parametrize("case", [ALONE, EMPTY, WHOLE_TURNS, REPLICATED], ids=str)
def test_where_nothing_must_move_an_expectation_is_a_bound(case: Case) -> None:
    """Sending nothing is as right there as sending what is expected, unless just that is asked for; more is not."""
    busy = getattr(collectives, case.contract.name)
    text = "permute=1,bytes=n" if case.contract.name == "ring_shift" else "all_gather=1,bytes=n/p"
    right, exact = Expectation.parse(text), Expectation.parse(f"exactly:{text}")

    def sent(function: Any, expectation: Expectation) -> str:
        return check(mine(function, case.contract.name, communication=expectation), case, "simulate")

    def twice(x: jax.Array, axis_name: Any, **keywords: Any) -> jax.Array:
        return busy(collectives.ring_shift(x, axis_name, offset=lax.axis_size(axis_name)), axis_name, **keywords)

    assert nothing_must_move(case)
    assert sent(busy, right) == sent(lazy, right) == ""
    empty = 0 in case.operands[0].block  # such a collective moves no byte and is not counted
    assert (sent(lazy, exact) == "") == empty
    assert (sent(twice, right) == "") == empty


def test_a_gradient_is_expected_by_itself() -> None:
    """The part that begins with `grad:` is compared with what reverse mode sends, and with that alone."""
    case = example("all_gather", FOUR, "dp")
    for text, finding in (
        ("all_gather=1;grad:reduce_scatter=1,bytes=n", ""),
        ("grad:reduce_scatter=1", ""),
        ("grad:reduce_scatter=p", "gradient: 1 reduce_scatter of 128 bytes: expected reduce_scatter=4"),
        ("all_gather=1;grad:all_reduce=1", "gradient: 1 reduce_scatter of 128 bytes: expected all_reduce=1"),
        ("all_gather=2;grad:reduce_scatter=1", "1 all_gather of 32 bytes"),
    ):
        headline = check(mine(collectives.all_gather, communication=Expectation.parse(text)), case, "simulate")
        assert finding in headline if finding else headline == "", text


def test_operands_are_named() -> None:
    """An expectation of a product speaks of each operand by itself."""
    case = example("all_gather", FOUR, "dp")
    lhs = Operand((2, 3), "float32", Placement((("dp",), ())))
    rhs = Operand((3, 5), "float32", Placement(((), ())))
    case = dataclasses.replace(case, contract=CONTRACTS["all_gather_matmul_lhs"], operands=(lhs, rhs), params=())
    function = next(i.function for i in IMPLEMENTATIONS if i.name == "ring_all_gather_matmul_lhs")
    assert sizes_of(case) == {"p": 4, "n": 84, "lhs": 24, "rhs": 60, "out": 160, "axes": 4}
    assert tuple(sizes_of(case)) == names_of(CONTRACTS["all_gather_matmul_lhs"])
    for text, right in (("bytes=(p-1)*lhs", True), ("bytes=(p-1)*rhs", False), ("bytes=(p-1)*n", False)):
        own = mine(function, "all_gather_matmul_lhs", communication=Expectation.parse(text))
        headline = check(own, case, "simulate")
        assert (headline == "") == right
        assert right or "with p=4, n=84" in headline
    with pytest.raises(ExpectationError, match="'rhs' is not understood: expected arithmetic of p, n, x, out, axes"):
        Expectation.parse("bytes=rhs", names_of(CONTRACTS["ring_shift"]))


def test_the_report_says_what_is_known() -> None:
    """Without a formula the report says that it is unknown, and what the largest case sends."""
    tally = Tally("all_gather", "mine", "communication", "simulate")
    small, large = (example("all_gather", MeshCase(("dp",), (p,)), "dp") for p in (2, 4))
    for case in (large, small):
        judge(LAWS["communication"], mine(ring_gather), case, engine_named("simulate"), tally)
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
    stated = Expectation.parse("permute=1,bytes=32;grad:permute=1,bytes=32")
    implementation = mine(lambda x, axis_name, offset: opaque(x), "ring_shift", communication=stated)
    assert check_communication(implementation, example("ring_shift", FOUR, "dp"), engine_named("simulate")).checked == 1
