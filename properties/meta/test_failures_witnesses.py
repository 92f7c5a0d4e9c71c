"""What a diagnosis says is true of the function, and not of the numbers that it happened to get."""

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array, custom_batching, lax, vmap

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.law import LAWS
from shardproof.properties.laws.value import check_value
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.programs.violation import Broken, Difference
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.report.diagnosis.conditions import rounding
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.diagnosis.scene import Scene
from shardproof.properties.report.diagnosis.variants import right_for
from shardproof.properties.report.diagnosis.witnesses import enlarged
from shardproof.properties.report.plugin import pytest_pyfunc_call
from shardproof.properties.runner.search import on_telling_data
from shardproof.properties.runner.violation import LawViolation

pytestmark = pytest.mark.untyped

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

Function = Callable[..., Any]


def a_case(contract: str, sizes: dict[str, int], axis_name: Any, block: tuple[int, ...], **given: Any) -> Case:
    """A case whose operand is sharded over all axes in the first dimension, or stacked over them if it is a scalar."""
    mesh = MeshCase(tuple(sizes), tuple(sizes.values()))
    at = Placement((mesh.axis_names, *((),) * (len(block) - 1))) if block else Placement((), mesh.axis_names)
    operand = Operand(block, given.pop("dtype", "float32"), at)
    data = Data(given.pop("kind", "exact"), given.pop("seed", 1))
    return Case(contract, mesh, axis_name, (operand,), tuple(given.items()), (data,))


def a_product(contract: str, p: int, blocks: list[tuple[int, int]], specs: list[tuple[tuple[str, ...], ...]]) -> Case:
    """A case of a product over one axis."""
    operands = tuple(Operand(b, "float32", Placement(s)) for b, s in zip(blocks, specs, strict=True))
    return Case(contract, MeshCase(("dp",), (p,)), "dp", operands, (), (Data("exact", 3),))


def violation_of(function: Function, case: Case, check: Any = check_value) -> LawViolation:
    """How the function breaks its law on a case."""
    implementation = user_implementation(case.contract, function)
    with pytest.raises(Broken) as caught:
        check(implementation, case, engine_named("simulate"))
    law = LAWS["value" if check is check_value else "gradient"]
    return LawViolation(implementation, law, case, "simulate", caught.value)


def told(function: Function, case: Case, check: Any = check_value) -> str:
    """What is said of the function's blocks on a case."""
    return "\n".join(diagnose(violation_of(function, case, check)))


def every_seed(function: Function, case: Case, *, most: int = 30) -> Iterator[str]:
    """What is said on each of the first data sets on which the function is wrong."""
    for seed in range(most):
        implementation = user_implementation(case.contract, function)
        one = dataclasses.replace(case, data=(Data(case.data[0].kind, seed),))
        try:
            check_value(implementation, one, engine_named("simulate"))
        except Broken as found:
            yield "\n".join(diagnose(LawViolation(implementation, LAWS["value"], one, "simulate", found)))


def through_bfloat16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Rounds what it sends."""
    return collectives.all_reduce(x.astype(jnp.bfloat16), axis_name, op=op).astype(x.dtype)


def through_int16(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Cuts off the upper half of what it sends, and wraps."""
    return collectives.all_reduce(x.astype(jnp.int16).astype(x.dtype), axis_name, op=op)


def own_of_one(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Its own block, if that is one element, and the wrong sign of what is right of more."""
    return x if x.size == 1 else -collectives.all_reduce(x, axis_name, op=op)


def own_twice(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Counts the device's own block twice."""
    return collectives.all_reduce(x, axis_name, op=op) + x


def first_twice(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Counts the block of participant 0 twice."""
    first = lax.axis_index(axis_name) == 0
    return collectives.all_reduce(jnp.where(first, x + x, x), axis_name, op=op)


def last_negative(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Subtracts the block of the last participant."""
    last = lax.axis_index(axis_name) == lax.axis_size(axis_name) - 1
    return collectives.all_reduce(jnp.where(last, -x, x), axis_name, op=op)


def clipped(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Never exceeds nine."""
    return jnp.minimum(collectives.all_reduce(x, axis_name, op=op), 9)


def saturating(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Stops at the end of the range."""
    wide = collectives.all_reduce(x.astype(jnp.int32), axis_name, op=op)
    return jnp.clip(wide, jnp.iinfo(x.dtype).min, jnp.iinfo(x.dtype).max).astype(x.dtype)


def lost_infinities(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Makes NaN of infinities."""
    return collectives.all_reduce(x, axis_name, op=op) + 0 * x


def nothing_sent(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Keeps its own block."""
    return x


def half_own(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Reduces all rows but the last."""
    rows = jnp.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(rows < x.shape[0] - 1, collectives.all_reduce(x, axis_name, op=op), x)


def mean_of_too_few(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """Divides by p - 1."""
    p = lax.axis_size(axis_name)
    return collectives.all_reduce(x, axis_name, op=op) * (p / (p - 1))


def with_the_next_root(x: Array, axis_name: AxisName, *, root: int = 0) -> Array:
    """Adds the participant after the root."""
    after = (root + 1) % lax.axis_size(axis_name)
    return collectives.broadcast(x, axis_name, root=root) + collectives.broadcast(x, axis_name, root=after)


def batch_reversed(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Under vmap the batch is reversed."""

    @custom_batching.custom_vmap
    def shift(x: Array) -> Array:
        return collectives.ring_shift(x, axis_name, offset=offset)

    @shift.def_vmap
    def _(size: int, batched: Any, x: Array) -> Any:
        return vmap(lambda x: collectives.ring_shift(x, axis_name, offset=offset))(x[::-1]), True

    return shift(x)


LINE = {"dp": 4}
REDUCED = a_case("all_reduce", LINE, "dp", (1,), op="sum")
SHIFTED = a_case("ring_shift", LINE, "dp", (3,), offset=1)
MET = a_product("all_gather_matmul_lhs_contracting", 4, [(2, 3), (12, 1)], [((), ("dp",)), ((), ())])
HALVES = a_product("all_gather_matmul_rhs", 3, [(2, 9), (3, 1)], [((), ()), (("dp",), ())])

SAID: dict[str, tuple[Function, Case, Any, str]] = {
    "twice, of one element": (first_twice, REDUCED, check_value, "every wrong block has the block of (dp=0) twice"),
    "own twice": (own_twice, REDUCED, check_value, "(dp=2) has the block of (dp=2) twice"),
    "wrong sign": (last_negative, REDUCED, check_value, "has the block of (dp=3) with the wrong sign"),
    "a part of a block": (
        half_own,
        a_case("all_reduce", LINE, "dp", (3, 2), op="sum"),
        check_value,
        "every wrong block at [2, :] holds its own input, unchanged",
    ),
    "divided by too few": (
        mean_of_too_few,
        a_case("all_reduce", {"dp": 3}, "dp", (2,), op="mean"),
        check_value,
        "holds 3/2 of the right values (dp has that size)",
    ),
    "two roots": (
        with_the_next_root,
        a_case("broadcast", LINE, "dp", (1,), root=2),
        check_value,
        "holds the sum of the blocks of (dp=2) and (dp=3)",
    ),
    "saturated": (
        saturating,
        a_case("all_reduce", LINE, "dp", (1,), op="sum", dtype="int8", kind="special"),
        check_value,
        "overflow: wrong only where the result does not fit into int8 and wraps around",
    ),
    "the batch": (
        batch_reversed,
        dataclasses.replace(SHIFTED, chain=("vmap",)),
        check_value,
        "every wrong block is reversed along dimension 0 (the batch)",
    ),
    "rounded": (
        through_bfloat16,
        a_case("all_reduce", LINE, "dp", (2,), op="sum", kind="real"),
        check_value,
        "rounded too much: off by up to ",
    ),
    "the part that a block met": (
        MUTANTS["product_with_the_last_rows_twice"].function,
        MET,
        check_value,
        "(dp=3) multiplies the wrong parts of rhs: block 0 of lhs met part 1",
    ),
    "a row of what is added up": (
        MUTANTS["halves_overlap_at_the_odd_row"].function,
        HALVES,
        check_value,
        "(dp=0) has row 1 twice of the blocks of (dp=1) and (dp=2)",
    ),
    "a cotangent": (
        MUTANTS["gather_with_an_unreduced_gradient"].function,
        a_case("all_gather", LINE, "dp", (1,), axis=0, tiled=True),
        check_gradient,
        "(dp=2) has the cotangent of (dp=2) alone",
    ),
    "of one element": (
        own_of_one,
        REDUCED,
        check_value,
        "every wrong device holds its own input, unchanged\n  in blocks this small; in larger ones it is otherwise",
    ),
    "wrapped": (
        through_int16,
        a_case("all_reduce", {"dp": 1}, "dp", (3,), op="sum", dtype="int32", kind="special", seed=2),
        check_value,
        "the blocks are the right ones with its value in int16 in place of each number that goes in",
    ),
    "signed": (
        MUTANTS["max_of_words_is_signed"].function,
        a_case("all_reduce", {"dp": 2}, "dp", (1,), op="max", dtype="uint32", kind="special", seed=2),
        check_value,
        "the blocks are the right ones if each number that goes in is taken for int32",
    ),
}


@pytest.mark.parametrize("name", sorted(SAID))
def test_what_a_function_does_wrong_is_said(name: str) -> None:
    """A wrong function is told by what it does, on the smallest blocks as well."""
    function, case, check, words = SAID[name]
    assert words in told(function, case, check)


def test_what_holds_of_larger_blocks_too_is_not_restricted() -> None:
    """Larger blocks that say the same, or have no whole that is wrong, add nothing."""
    for function, case, words in (
        (first_twice, REDUCED, "twice"),
        (half_own, a_case("all_reduce", LINE, "dp", (3, 2), op="sum"), "its own input"),
    ):
        text = told(function, case, check_value)
        assert words in text
        assert "in blocks this small" not in text


def test_rounding_is_no_rearrangement() -> None:
    """Values that are rounded too much are neither in another order nor the right ones for other arguments."""
    for sizes, axes in (({"dp": 1, "tp": 2}, ("tp", "dp")), ({"dp": 2, "tp": 2}, ("tp", "dp"))):
        case = a_case("all_reduce", sizes, axes, (1, 3, 1), op="sum", kind="real")
        text = told(through_bfloat16, case)
        assert text.startswith("rounded too much: off by up to ")
        assert "units in the last place of float32; the bound is " in text
        assert len(text.splitlines()) == 1


def test_what_is_rounded_too_much_is_off_by_more_than_its_bound() -> None:
    """It is off from what was right before it was rounded, and of a zero no number of units is told."""
    case = a_case("all_reduce", {"dp": 1}, "dp", (3,), op="mean")
    expected, exact, bound = (
        np.array([[0.5, 0.0, 1.0]], BFLOAT16),
        np.array([[0.4990, 0.0, 1.0]]),
        np.full((1, 3), 0.0045),
    )
    for zero, words in (
        (0.0, "off by up to 0.0049, 1.3 units in the last place of bfloat16; the bound is 0.0045"),
        (0.0078125, "off by up to 0.0078, where 0 is right; the bound is 0.0045"),
    ):
        actual = np.array([[0.50390625, zero, 1.0]], BFLOAT16)
        wrong = actual != expected
        scene = Scene(case, expected, actual, wrong, 0.0045, [], lambda case, inputs: inputs[0])
        assert words in str(rounding([scene], Difference("result", "", expected, actual, wrong, bound, exact=exact)))


def test_what_would_overflow_is_no_cause_of_finite_values() -> None:
    """However far a result is off, it is not what a mistake would make infinite."""
    case = a_case("all_reduce", {"dp": 2}, "dp", (1,), op="sum")
    right, zero = np.full((2, 1), 0.46, np.float32), np.zeros((2, 1), np.float32)
    for made, found in ((zero, ["the blocks are the right ones if nothing is subtracted"]), (zero + np.inf, [])):
        mistakes = {"nothing is subtracted": lambda case, inputs, made=made: made}
        scene = Scene(case, right, zero, right != zero, 1e-6, [right], lambda *_: right, mistakes=mistakes)
        assert [line for line in right_for([scene], numbers=False) if "subtracted" in line] == found


def test_a_coincidence_of_one_element_is_no_cause() -> None:
    """A sum that is cut off never lacks a block, is never another reduction, and never a multiple, for any data."""
    texts = list(every_seed(clipped, a_case("all_reduce", {"dp": 2}, "dp", (1,), op="sum")))
    assert len(texts) > 3
    for text in texts:
        assert "large numbers: wrong only where the right value is 1" in text or "positive numbers" in text
        assert not any(word in text for word in ("lacks", "op=", "times", "twice", "input of"))


def test_a_term_that_is_counted_twice_is_no_disagreement() -> None:
    """Of devices that are all wrong, none is said to differ from another."""
    texts = list(every_seed(own_twice, REDUCED))
    assert len(texts) > 20
    for text in texts:
        assert "should hold the same" not in text
        assert "twice" in text


def test_zeros_of_the_data_are_not_missing_blocks() -> None:
    """A device that keeps a block of zeros keeps its block."""
    case = a_case("ring_shift", {"dp": 2}, "dp", (1,), offset=1)
    texts = list(every_seed(nothing_sent, case, most=40))
    assert len(texts) > 20
    for text in texts:
        assert "holds its own input, unchanged" in text
        assert "zeros" not in text


def test_where_all_arguments_mean_the_same_none_is_told() -> None:
    """Axes of one device have no order, and of one device all reductions are the same."""
    lonely = a_case("all_reduce", {"dp": 1}, "dp", (2,), op="sum", kind="special", dtype="complex64", seed=2)
    assert "op=" not in told(lost_infinities, lonely)
    flat = a_case("ring_shift", {"dp": 1, "tp": 3}, ("tp", "dp"), (1,), offset=1)
    text = told(MUTANTS["shift_reversed"].function, flat)
    assert "the blocks are the right ones for offset=-1" in text
    assert "axis_name" not in text


def test_sides_of_size_one_are_not_transposed() -> None:
    """A dimension of size one that stands elsewhere is no explanation."""
    case = a_case("ring_shift", {"dp": 2}, "dp", (1, 3, 1), offset=1, kind="distinct")
    assert "order" not in told(nothing_sent, case)


def test_numbers_of_one_device_are_no_condition() -> None:
    """Where one device is wrong whatever its numbers are, neither their sign nor their size is told as the reason."""

    def nonsense_on_the_last(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
        last = lax.axis_index(axis_name) == lax.axis_size(axis_name) - 1
        return jnp.where(last, x * x + 17, collectives.ring_shift(x, axis_name, offset=offset))

    for sizes in ({"dp": 3}, {"dp": 80}):
        for text in every_seed(nonsense_on_the_last, a_case("ring_shift", sizes, "dp", (1,), offset=1), most=8):
            assert text.startswith("other values: on (dp=")


def test_an_empty_block_of_another_shape_has_no_order() -> None:
    """Of no elements nothing is said but the shape."""
    case = a_case("all_gather_invariant", {"dp": 1}, "dp", (0,), axis=0, tiled=False)
    text = told(MUTANTS["gather_returns_empty_blocks"].function, case)
    assert text == "wrong shape: (0,) where (1, 0) is right"


def test_larger_blocks_keep_what_an_odd_side_shows() -> None:
    """Sides become an odd number of times as long, except one that must equal the number of devices."""
    larger = enlarged(a_case("reduce_scatter", {"dp": 4}, "dp", (4, 3), scatter_dimension=0, tiled=False))
    assert larger is not None
    assert larger.operands[0].block == (4, 33) or larger.operands[0].block[1] % 2 == 1
    assert larger.operands[0].block[0] == 4
    assert enlarged(a_case("ring_shift", {"dp": 2}, "dp", (), offset=1)) is None
    whole = a_case("ring_shift", {"dp": 2}, "dp", (1, 2), offset=1)
    longer = enlarged(whole, sharded=False)
    assert longer is not None
    assert longer.operands[0].block[0] == 1  # which is sharded
    assert longer.operands[0].block[1] > 2


def test_the_smallest_case_has_data_that_shows_every_wrong_block() -> None:
    """Where the simplest numbers hide a wrong block behind a zero, the next ones are taken."""
    case = a_case("all_reduce", {"dp": 2}, "dp", (1,), op="sum", kind="distinct", seed=0)
    simplest = violation_of(own_twice, case)
    assert simplest.finding == "1 of 2 blocks wrong"  # the block of (dp=0) is zero
    telling = on_telling_data(simplest, engine_named("simulate"))
    assert telling.finding == "2 of 2 blocks wrong"


@settings(database=None)
@given(st.just(0))
def drawn(_: int) -> None:
    """A test that Hypothesis runs."""


@pytest.mark.lengthy
def test_a_law_test_reports_data_that_shows_every_wrong_block() -> None:
    """What a law of the built-in implementations finds is reported as what is found in a given function."""

    def among_two(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
        alone = lax.axis_size(axis_name) == 1
        return collectives.all_reduce(x, axis_name, op=op) if alone else own_twice(x, axis_name, op=op)

    simplest = violation_of(among_two, a_case("all_reduce", {"dp": 2}, "dp", (1,), op="sum", kind="distinct", seed=0))
    assert simplest.finding == "1 of 2 blocks wrong"
    item: Any = SimpleNamespace(
        obj=drawn,
        get_closest_marker=lambda name: pytest.mark.law("value", "simulate").mark,
        funcargs={"scope": Scope(), "engines": {"simulate": engine_named("simulate")}},
        config=SimpleNamespace(getoption=lambda name, default=None: default),
    )
    running = pytest_pyfunc_call(item)
    next(running)
    with pytest.raises(LawViolation) as caught:
        running.throw(simplest)
    assert caught.value.finding == "2 of 2 blocks wrong"
