"""Each way of being wrong is told by its word, in a text that can be read in seconds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.batches import oracle_blocks
from shardproof.properties.laws.law import LAWS
from shardproof.properties.laws.value import check_value
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.precision.comparison import compare
from shardproof.properties.programs.implementations import IMPLEMENTATIONS, Implementation
from shardproof.properties.programs.violation import Broken, Difference, Of
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.failures.picture import picture
from shardproof.properties.report.failures.text import coloured, render
from shardproof.properties.runner.violation import LawViolation

pytestmark = pytest.mark.untyped

Plant = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The right blocks and the inputs, `[*mesh.sizes, *block]` both, to wrong blocks."""


OUT = (Placement((("tp", "dp"),)),)
"""Device (dp, tp) holds part 2 tp + dp of an array."""


def a_case(
    contract: str, sizes: dict[str, int], axis_name: Any, *, block: tuple[int, ...] = (2, 3), **given: Any
) -> Case:
    """A case on a small mesh, its operand sharded over all axes in the first dimension."""
    mesh = MeshCase(tuple(sizes), tuple(sizes.values()))
    operand = Operand(block, given.pop("dtype", "float32"), Placement((mesh.axis_names, *((),) * (len(block) - 1))))
    data = Data(given.pop("kind", "distinct"), given.pop("seed", 1))
    return Case(contract, mesh, axis_name, (operand,), tuple(given.items()), (data,))


def broken(case: Case, plant: Plant, *, of: Of = "result", name: str = "mine") -> LawViolation:
    """The violation that an implementation with these blocks raises."""
    data = case.data[0]
    terms = CONTRACTS[case.contract].terms(case)
    blocks = case.blocks(0, case.global_array(0, data, terms=terms))
    expected = oracle_blocks(case, [blocks])[0]
    own = next(i for i in IMPLEMENTATIONS if i.contract == case.contract)
    implementation = Implementation(case.contract, name, own.function)
    what = {"gradient": "gradient (reverse mode)"}.get(of, of)
    with pytest.raises(Broken) as caught:
        compare(case, data, of, what, expected=expected, actual=plant(expected.copy(), blocks))
    return LawViolation(implementation, LAWS["value" if of == "result" else "gradient"], case, "xla", caught.value)


def only(device: tuple[int, ...], change: Callable[[np.ndarray], Any]) -> Plant:
    """Changes the block of one device."""

    def plant(right: np.ndarray, _: np.ndarray) -> np.ndarray:
        right[device] = change(right[device])
        return right

    return plant


def swap(first: tuple[int, ...], second: tuple[int, ...]) -> Plant:
    """Exchanges the blocks of two devices."""

    def plant(right: np.ndarray, _: np.ndarray) -> np.ndarray:
        right[first], right[second] = right[second].copy(), right[first].copy()
        return right

    return plant


def participants_sum(factors: list[float]) -> Plant:
    """The sum of the participants' blocks, each so many times."""
    return lambda right, own: np.broadcast_to(np.einsum("i...,i->...", own, np.array(factors, np.float32)), right.shape)


def elements(where: Callable[[np.ndarray], np.ndarray], value: Any) -> Plant:
    """Replaces the elements of a kind."""
    return lambda right, _: np.where(where(right), np.array(value, right.dtype), right)


SQUARE = {"dp": 2, "tp": 2}
SHIFT = a_case("ring_shift", SQUARE, ("tp", "dp"), offset=1)
LINE = a_case("ring_shift", {"dp": 4}, "dp", offset=1)
SUM = a_case("all_reduce", {"dp": 4}, "dp", op="sum", kind="exact", block=(5,))
MAX = a_case("all_reduce", {"dp": 3}, "dp", op="max", kind="exact", block=(6,))
SPECIAL = a_case("ring_shift", {"dp": 2}, "dp", offset=1, kind="special", seed=4, block=(9,))

CASES: dict[str, tuple[Case, Plant, str]] = {
    "permuted": (SHIFT, swap((0, 1), (1, 0)), "(dp=0, tp=1) holds the block that belongs to (dp=1, tp=0)"),
    "doubled": (SUM, lambda right, _: right * 2, "holds 2 times the right values"),
    "by another size": (SUM, lambda right, _: right / 4, "holds 1/4 of the right values (dp has that size)"),
    "missing": (LINE, only((2,), lambda b: 0), "missing: (dp=2) holds zeros"),
    "stale": (LINE, lambda right, own: own, "stale: every wrong device holds its own input, unchanged"),
    "partial sum": (SUM, participants_sum([1, 0, 1, 1]), "partial sum: every wrong block lacks the block of (dp=1)"),
    "two missing": (SUM, participants_sum([1, 0, 1, 0]), "lacks the blocks of (dp=1) and (dp=3)"),
    "twice": (SUM, participants_sum([1, 1, 2, 1]), "has the block of (dp=2) twice"),
    "reversed": (LINE, only((1,), lambda b: b[:, ::-1]), "transposed: (dp=1) is reversed along dimension 1"),
    "transposed": (
        a_case("ring_shift", {"dp": 4}, "dp", block=(2, 2), offset=1),
        lambda right, _: right.swapaxes(1, 2),
        "transposed: every wrong block has its dimensions in the order 1, 0",
    ),
    "pieces": (
        a_case("all_gather", SQUARE, ("tp", "dp"), axis=0, tiled=True),
        lambda right, _: right.reshape(2, 2, 2, 2, 2, 3).swapaxes(2, 3).reshape(right.shape),
        "has the pieces along dimension 0 in the order 0, 2, 1, 3",
    ),
    "constant": (LINE, lambda right, _: right + 7, "off by a constant: every wrong block is off by 7.0 everywhere"),
    "wrong dtype": (LINE, lambda right, _: right.astype(np.float16), "wrong dtype: float16 where float32 is right"),
    "wrong shape": (LINE, lambda right, _: right.swapaxes(1, 2), "wrong shape: (3, 2) where (2, 3) is right"),
    "infinities": (
        SPECIAL,
        elements(np.isinf, 3.0),
        "wrong only where the right value or an input is infinite, where it holds 3.0",
    ),
    "NaN": (
        dataclasses.replace(SPECIAL, data=(Data("nan", 4),)),
        elements(np.isnan, 0.0),
        "wrong only where the right value or an input is NaN, where it holds 0.0",
    ),
    "left over": (
        a_case("ring_shift", {"dp": 2}, "dp", offset=1, kind="exact", block=(200,)),
        elements(lambda a: a == 0, 7.0),
        "left over: every wrong block holds something wherever it is wrong, where zeros should be",
    ),
    "NaN spreads": (LINE, elements(lambda a: a > 12, np.nan), "holds NaN where the right value is none"),
    "bfloat16": (
        a_case("ring_shift", {"dp": 2}, "dp", offset=1, kind="real"),
        lambda right, _: right.astype(ml_dtypes.bfloat16).astype(np.float32),
        "rounded too much: off by up to 0.0036, 30,431 units in the last place of float32; there is nothing to round",
    ),
    "other": (LINE, only((3,), lambda b: b * b + 1), "other values: on (dp=3)"),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_each_way_of_being_wrong_has_its_words(name: str) -> None:
    """A planted wrong block is told as what it is."""
    case, plant, words = CASES[name]
    text = "\n".join(diagnose(broken(case, plant)))
    assert words in text


def test_a_maximum_that_starts_from_zero_is_told() -> None:
    """Where all values are negative, a maximum of zero gives the mistake away."""
    case = a_case("all_reduce", {"dp": 1}, "dp", op="max", kind="exact", block=())
    case = dataclasses.replace(
        case, operands=(Operand((), "float32", Placement((), ("dp",))),), data=(Data("exact", 1),)
    )
    for seed in range(20):
        case = dataclasses.replace(case, data=(Data("exact", seed),))
        if case.global_array(0, case.data[0], terms=1).item() < 0:
            break
    assert diagnose(broken(case, lambda right, _: right * 0))[0].startswith("starts from zero: holds zero where")


def test_replicas_that_disagree_are_told() -> None:
    """A device that should hold what all others hold, and does not, is named."""
    case = a_case("broadcast", {"dp": 3}, "dp", root=1)
    text = "\n".join(diagnose(broken(case, only((2,), lambda b: b * b + 5))))
    assert "replicas disagree: (dp=2) should hold the same as (dp=0), which is right, and does not" in text


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("product_without_the_index", "(i - j)"),
        ("product_with_one_chunk", "(i)"),
        ("product_against_the_ring", "(2i - j)"),
    ],
)
def test_what_met_what_in_a_product_is_told(name: str, part: str) -> None:
    """A wrong index into the operand that stays is told as which of its parts met which block."""
    mesh = MeshCase(("x",), (3,))
    layouts = [Placement(((), ("x",))), Placement(((), ()))]
    operands = [Operand(b, "float32", at) for b, at in zip([(2, 2), (6, 3)], layouts, strict=True)]
    contract = "all_gather_matmul_lhs_contracting"
    case = Case(contract, mesh, "x", tuple(operands), (), (Data("exact", 5),))
    implementation = user_implementation(contract, MUTANTS[name].function)
    with pytest.raises(Broken) as caught:
        check_value(implementation, case, engine_named("simulate"))
    violation = LawViolation(implementation, LAWS["value"], case, "simulate", caught.value)
    told = f"if block j of lhs met rows {part} mod 3 of rhs on participant i, instead of rows j"
    assert diagnose(violation)[-1] == f"the blocks are the right ones {told}"


def test_blocks_that_are_wrong_in_different_ways_are_told_apart() -> None:
    """Where no explanation fits all wrong blocks, each group has its own."""

    def plant(right: np.ndarray, _: np.ndarray) -> np.ndarray:
        right[0], right[1], right[2] = 0, right[1] * 2, right[2] ** 2 + 1
        return right

    text = diagnose(broken(LINE, plant))
    assert text == [
        "missing: (dp=0) holds zeros",
        "doubled: (dp=1) holds 2 times the right values",
        "other values: on (dp=2)",
    ]


def test_gradients_are_explained_by_the_right_gradients_of_others() -> None:
    """A gradient that belongs to another device is permuted."""
    violation = broken(LINE, swap((0,), (3,)), of="gradient")
    text = render(violation)
    assert "gradient (reverse mode): 2 of 4 blocks wrong" in text
    assert "permuted: each wrong block is the right one of another device" in text
    assert "first wrong element: gradient[0, 0] is 13.0, expected 19.0" in text


def test_the_mesh_order_ring_shift_reads_like_this() -> None:
    """The whole text, to the letter."""
    in_mesh_order = dataclasses.replace(SHIFT, axis_name=("dp", "tp"))
    text = render(broken(SHIFT, lambda right, own: oracle_blocks(in_mesh_order, [own])[0], name="golden"))
    assert text == GOLDEN


GOLDEN = """\
ring_shift[golden]: value: mesh (dp=2, tp=2), axis ('tp', 'dp'): 3 of 4 blocks wrong

         tp=0 tp=1
    dp=0  0 ·  1 ✗
    dp=1  2 ✗  3 ✗

  permuted: each wrong block is the right one of another device
    (dp=0, tp=1) holds the block that belongs to (dp=1, tp=0)
    (dp=1, tp=0) holds the block that belongs to (dp=1, tp=1)
    (dp=1, tp=1) holds the block that belongs to (dp=0, tp=1)
  the blocks are the right ones for axis_name=('dp', 'tp') (the order of the mesh)
  first wrong element: result[0, 1, 0, 0] is 1.0, expected 13.0
    it is element [0, 0] of the block of device 1, (dp=0, tp=1)
  case: ring_shift(float32[2@(dp,tp),3], ('tp', 'dp'), offset=1) on mesh (dp=2, tp=2)
  data: distinct, seed 1"""


def test_a_wrong_dtype_reads_like_this() -> None:
    """What cannot be compared element by element has no picture."""
    text = render(broken(LINE, lambda right, _: right.astype(np.float16), name="golden"))
    assert text == (
        "ring_shift[golden]: value: mesh (dp=4), axis 'dp': result has dtype float16: expected float32\n"
        "\n"
        "  wrong dtype: float16 where float32 is right; the values are right\n"
        "  case: ring_shift(float32[2@dp,3], 'dp', offset=1) on mesh (dp=4)\n"
        "  data: distinct, seed 1"
    )


def test_the_picture_of_three_axes_is_a_grid_for_each_plane_that_is_wrong() -> None:
    """Rows are the first axis, columns the second, and a caption says where on the third."""
    wrong = np.zeros((2, 2, 3), bool)
    wrong[1, 0, 2] = True
    mesh = MeshCase(("dp", "tp", "pp"), (2, 2, 3), tuple(range(11, -1, -1)))
    assert picture(mesh, wrong) == [
        "pp=2:",
        "     tp=0 tp=1",
        "dp=0  9 ·  6 ·",
        "dp=1  3 ✗  0 ·",
    ]


def test_the_picture_of_a_large_mesh_shows_what_is_around_the_wrong_blocks() -> None:
    """Of a long axis the ends and the neighbourhood of the wrong devices are drawn."""
    wrong = np.zeros((1, 1000), bool)
    wrong[0, 500] = True
    assert picture(MeshCase(("dp", "tp"), (1, 1000)), wrong) == [
        "  tp=0 … tp=499 tp=500 tp=501 … tp=999",
        "   0 · …  499 ·  500 ✗  501 · …  999 ·",
    ]


def test_colour_changes_nothing_but_the_colour() -> None:
    """Without its escape codes, the coloured text is the plain one."""
    text = render(broken(SHIFT, swap((0, 1), (1, 0))))
    assert "\x1b" not in text
    plain = coloured(text)
    for code in ("\x1b[31m", "\x1b[1m", "\x1b[0m"):
        assert code in plain
        plain = plain.replace(code, "")
    assert plain == text


def test_a_text_is_short_enough_to_be_read() -> None:
    """Twenty-five lines, on a mesh of a thousand devices as well."""
    case = a_case("ring_shift", {"dp": 32, "tp": 32}, ("tp", "dp"), offset=1, block=(1, 1))
    text = render(broken(case, lambda right, own: own))
    assert len(text.splitlines()) <= 40


def test_the_parts_of_an_array_are_shown_where_they_lie() -> None:
    """Of an array that `out_specs` puts together, the devices are marked that hold a wrong part."""
    case = dataclasses.replace(a_case("ring_shift", {"dp": 2, "tp": 2}, "dp", block=(1,), offset=1), out=OUT)
    whole = np.zeros((2, 2, 4), np.float32)
    wrong = whole.copy()
    wrong[..., 2] = 1
    difference = Difference.between("array", "result under out_specs", whole, wrong)
    own = next(i for i in IMPLEMENTATIONS if i.contract == "ring_shift")
    violation = LawViolation(own, LAWS["type"], case, "xla", Broken("values", "1 wrong", difference=difference))
    assert "    dp=0  0 ·  1 ✗\n    dp=1  2 ·  3 ·\n" in render(violation)
