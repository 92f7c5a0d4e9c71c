"""A diagnosis is a hypothesis that survived: what is planted is what is said, and nothing that further runs deny."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.forward import check_value
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.law import LawViolation
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.hunt import hunt
from shardproof.properties.precision.comparison import Reference, compare
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.transformations import oracle_blocks
from shardproof.properties.programs.violation import Broken, Difference
from shardproof.properties.report.diagnosis.diagnosis import diagnose, of_every_block
from shardproof.properties.report.diagnosis.runs import enlarge, runs_of
from shardproof.properties.report.failures.text import colour, picture, render
from shardproof.properties.runner.given import user_implementation

pytestmark = pytest.mark.untyped

Plant = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The right blocks and the inputs, `[*mesh.sizes, *block]` both, to wrong blocks."""

Function = Callable[..., Any]

OUT = (Placement((("tp", "dp"),)),)
"""Device (dp, tp) holds part 2 tp + dp of an array."""


def a_case(
    contract: str, sizes: dict[str, int], axis_name: Any, *, block: tuple[int, ...] = (2, 3), **given: Any
) -> Case:
    """A case on a small mesh, its operand sharded over all axes in the first dimension."""
    mesh = MeshCase(tuple(sizes), tuple(sizes.values()))
    operand = Operand(block, given.pop("dtype", "float32"), Placement((mesh.axis_names, *((),) * (len(block) - 1))))
    data = Data(given.pop("kind", "distinct"), given.pop("seed", 1))
    return Case(CONTRACTS[contract], mesh, axis_name, (operand,), tuple(given.items()), (data,))


def broken(case: Case, plant: Plant, *, name: str = "mine") -> LawViolation:
    """The violation that an implementation with these blocks raises, which does not come again."""
    data = case.data[0]
    blocks = case.blocks(0, case.global_array(0, data, terms=1))
    expected = oracle_blocks(case, [blocks])[0]
    own = next(i for i in IMPLEMENTATIONS if i.contract.name == case.contract.name)
    implementation = Implementation(CONTRACTS[case.contract.name], name, own.function)
    with pytest.raises(Broken) as caught:
        compare(
            case,
            data,
            "result",
            "result",
            right=Reference(expected, expected.dtype),
            actual=plant(expected.copy(), blocks),
        )
    return LawViolation(implementation, LAWS["value"], case, "xla", caught.value)


def swap(first: tuple[int, ...], second: tuple[int, ...]) -> Plant:
    """Exchanges the blocks of two devices."""

    def plant(right: np.ndarray, _: np.ndarray) -> np.ndarray:
        right[first], right[second] = right[second].copy(), right[first].copy()
        return right

    return plant


def violation_of(function: Function, case: Case, check: Any = check_value) -> LawViolation:
    """How a function breaks a law on a case."""
    implementation = user_implementation(case.contract.name, function)
    with pytest.raises(Broken) as caught:
        check(implementation, case, engine_named("simulate"))
    law = LAWS["value" if check is check_value else "gradient"]
    return LawViolation(implementation, law, case, "simulate", caught.value)


def changed(name: str, change: Callable[[Array, Array], Array]) -> Function:
    """A collective of which a function of its result and of what goes in is taken."""

    def function(x: Array, axis_name: AxisName, **given: Any) -> Array:
        right = getattr(collectives, name)(x, axis_name, **given)
        return change(right, x).astype(right.dtype)

    return function


def on_device(index: int, wrong: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """A change on one device along `dp`."""
    return lambda y, x: jnp.where(lax.axis_index("dp") == index, wrong(y), y)


def reversed_ring(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Turns round the order of the participants."""
    p = lax.axis_size(axis_name)
    return lax.ppermute(x, axis_name, [(i, p - 1 - i) for i in range(p)])


def fixed(contract: str, **value: Any) -> Function:
    """A collective with an argument that is always the same."""
    return lambda x, axis_name, **given: getattr(collectives, contract)(x, axis_name, **given | value)


def in_mesh_order(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Numbers the participants in the order of the mesh."""
    return collectives.ring_shift(x, ("dp", "tp"), offset=offset)


def summed_twice_backward(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """A gradient that is counted by every participant."""
    p = lax.axis_size(axis_name)
    y = collectives.all_reduce(x, axis_name, op=op)
    return y + (p - 1) * (y - lax.stop_gradient(y))


LINE = a_case("ring_shift", {"dp": 4}, "dp", offset=1)
SUM = a_case("all_reduce", {"dp": 4}, "dp", op="sum", kind="exact", block=(5,))
COUNTS = a_case("all_reduce", {"dp": 4}, "dp", op="sum", kind="exact", block=(5,), dtype="int32")
REAL = dataclasses.replace(SUM, data=(Data("real", 1),))
MAX = a_case("all_reduce", {"dp": 3}, "dp", op="max", kind="exact", block=(6,))
SHIFT = a_case("ring_shift", {"dp": 2, "tp": 2}, ("tp", "dp"), offset=1)
ROOT = a_case("broadcast", {"dp": 3}, "dp", root=1)
SQUARE = a_case("ring_shift", {"dp": 4}, "dp", block=(2, 2), offset=1)
NARROW = a_case("ring_shift", {"dp": 2}, "dp", offset=1, kind="real")
SPECIAL = a_case("ring_shift", {"dp": 2}, "dp", offset=1, kind="special", seed=4, block=(9,))
PAIRS = a_case("permute", {"dp": 3}, "dp", perm=((0, 1), (1, 2)))

PLANTED: dict[str, tuple[Function, Case, str]] = {
    "zeros": (changed("ring_shift", on_device(2, jnp.zeros_like)), LINE, "missing: (dp=2) holds zeros"),
    "its input": (lambda x, axis_name, **_: x, ROOT, "(dp=0) holds unchanged what was put in by (dp=0)"),
    "no psum": (lambda x, axis_name, **_: x, SUM, "partial sums: added up over dp the blocks are right"),
    "no psum of counts": (lambda x, axis_name, **_: x, COUNTS, "partial sums: added up over dp the blocks are right"),
    "doubled": (changed("all_reduce", lambda y, x: y * 2), SUM, "every wrong block holds 2 times the right values"),
    "k times": (changed("all_reduce", lambda y, x: y / 4), SUM, "every wrong block holds 1/4 of the right values"),
    "the wrong sign": (changed("ring_shift", lambda y, x: -y), LINE, "has the wrong sign"),
    "another device": (fixed("broadcast", root=2), ROOT, "(dp=0) holds unchanged what was put in by (dp=2)"),
    "one after it": (fixed("ring_shift", offset=2), LINE, "belongs to the participant 3 after it"),
    "reversed": (reversed_ring, LINE, "permuted: each wrong block is the right one of another device"),
    "another offset": (fixed("ring_shift", offset=2), LINE, "the blocks are the right ones for offset=2"),
    "another root": (fixed("broadcast", root=0), ROOT, "the blocks are the right ones for root=0"),
    "another op": (fixed("all_reduce", op="max"), SUM, "the blocks are the right ones for op='max'"),
    "a mean": (fixed("all_reduce", op="mean"), SUM, "holds 1/4 of the right values"),
    "mesh order": (in_mesh_order, SHIFT, "for axis_name=('dp', 'tp') (the order of the mesh)"),
    "other direction": (
        lambda x, axis_name, perm: collectives.permute(x, axis_name, perm=tuple((t, s) for s, t in perm)),
        PAIRS,
        "the blocks are the right ones for perm with source and destination swapped",
    ),
    "flipped": (changed("ring_shift", lambda y, x: y[:, ::-1]), LINE, "is reversed along dimension 1"),
    "rolled": (changed("ring_shift", lambda y, x: jnp.roll(y, 1, 1)), LINE, "shifted along dimension 1 by 1"),
    "transposed": (changed("ring_shift", lambda y, x: y.T), SQUARE, "its dimensions in the order 1, 0"),
    "from zero": (changed("all_reduce", lambda y, x: jnp.maximum(y, 0)), MAX, "starts from zero"),
    "16 bits": (changed("ring_shift", lambda y, x: y.astype(jnp.bfloat16)), NARROW, "with its value in bfloat16"),
    "rounding": (changed("all_reduce", lambda y, x: (y * 3).astype(jnp.bfloat16) / 3), REAL, "rounded too much"),
    "NaN": (changed("ring_shift", lambda y, x: jnp.nan_to_num(y, posinf=jnp.inf, neginf=-jnp.inf)),
            dataclasses.replace(SPECIAL, data=(Data("nan", 4),)), "NaN: wrong only where the right value is NaN"),
    "NaN spreads": (changed("ring_shift", lambda y, x: jnp.where(y > 12, jnp.nan, y)), LINE, "hold NaN where"),
    "infinity": (
        changed("ring_shift", lambda y, x: jnp.where(jnp.isinf(y), 3, y)),
        SPECIAL,
        "infinities: wrong only where the right value is infinite",
    ),
    "anything else": (changed("ring_shift", lambda y, x: y * y + 1), LINE, "other values: on (dp=0), (dp=1)"),
    "a wrong dtype": (
        lambda x, axis_name, offset: collectives.ring_shift(x, axis_name, offset=offset).astype(jnp.float16),
        LINE,
        "wrong dtype: float16 where float32 is right; the values are right",
    ),
    "a wrong dtype, rounded": (
        lambda x, axis_name, offset: collectives.ring_shift(x, axis_name, offset=offset).astype(jnp.bfloat16),
        NARROW,
        "wrong dtype: bfloat16 where float32 is right; the values are right",
    ),
    "a wrong dtype and another number": (
        lambda x, axis_name, offset: collectives.ring_shift(x, axis_name, offset=offset).astype(jnp.bfloat16) * 2,
        LINE,
        "wrong dtype: bfloat16 where float32 is right; the values are wrong as well",
    ),
    "a wrong shape": (
        lambda x, axis_name, offset: collectives.ring_shift(x, axis_name, offset=offset).T,
        LINE,
        "wrong shape: (3, 2) where (2, 3) is right",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_said(name: str) -> None:
    """Each hypothesis has its sentence, for a function that is wrong in this way."""
    function, case, words = PLANTED[name]
    assert words in "\n".join(diagnose(violation_of(function, case)))


def test_a_gradient_that_every_participant_counts() -> None:
    """Of derivatives the same hypotheses are tried."""
    violation = violation_of(summed_twice_backward, SUM, check_gradient)
    assert "holds 4 times the right values" in "\n".join(diagnose(violation))


def test_a_planted_bug_is_a_hypothesis() -> None:
    """A function that does what a planted bug of its contract does is explained by that bug's own sentence."""
    bug = MUTANTS["loss_of_clamped_labels"]
    found = hunt(bug, seed=1, shrink=False).violation
    assert found is not None

    def same(*given: Any, **named: Any) -> Any:
        return bug.function(*given, **named)

    implementation = dataclasses.replace(found.implementation, function=same)
    again = LawViolation(implementation, found.law, found.case, found.engine, found.broken)
    assert diagnose(again) == [f"as the planted bug loss_of_clamped_labels has it: {bug.sentence}"]
    assert "planted bug" not in "\n".join(diagnose(found))  # which is no explanation of itself


def of_one_alone(x: Array, axis_name: AxisName, *, op: str = "sum") -> Array:
    """The device's own block, if that is one element, and another thing of larger ones."""
    return x if x.size == 1 else collectives.all_reduce(x, axis_name, op=op) * x


def of_small_numbers(x: Array, axis_name: AxisName, *, offset: int = 1) -> Array:
    """Zeros, or twice what is right, as the first number has it."""
    y = collectives.ring_shift(x, axis_name, offset=offset)
    return jnp.where(y.ravel()[0] % 2 == 0, y * 0, y * 2)


@pytest.mark.parametrize(
    ("function", "case", "false"),
    [
        (of_one_alone, a_case("all_reduce", {"dp": 2}, "dp", op="sum", kind="exact", block=(1, 1)), "input"),
        (of_small_numbers, dataclasses.replace(LINE, data=(Data("exact", 1),)), "zeros"),
        (of_small_numbers, dataclasses.replace(LINE, data=(Data("exact", 1),)), "times"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_what_further_runs_deny_is_not_said(function: Function, case: Case, false: str, seed: int) -> None:
    """A sentence that is true of the data of the failure alone is a coincidence."""
    case = dataclasses.replace(case, data=(Data(case.data[0].kind, seed),))
    assert false not in "\n".join(diagnose(violation_of(function, case)))


def test_all_that_is_said_is_true_of_every_run() -> None:
    """The first hypothesis that survives is printed, and one that any run denies does not survive."""
    runs = runs_of(violation_of(*PLANTED["zeros"][:2]))
    assert len(runs) > 4
    assert len({run.case.operands[0].block for run in runs}) == 2
    zeros = next(one for one in of_every_block(runs[0]) if "zeros" in one.text)
    assert zeros.survives(runs)
    last = runs[-1].difference
    other = dataclasses.replace(runs[-1], difference=dataclasses.replace(last, actual=last.expected + 1))
    assert not zeros.survives([*runs[:-1], other])


def test_a_hypothesis_that_fails_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certain part is reported, and that the explanation failed."""

    def fails(*_: Any) -> Any:
        raise KeyError("nobody thought of it")

    monkeypatch.setattr("shardproof.properties.report.diagnosis.diagnosis.explain", fails)
    text = render(violation_of(*PLANTED["zeros"][:2]))
    assert "(the diagnosis raises KeyError: 'nobody thought of it')" in text
    assert "first wrong element" in text


@pytest.mark.parametrize("sharded", [True, False])
def test_larger_blocks_keep_what_an_odd_side_shows(sharded: bool) -> None:
    """Sides are an odd number of times as long, those that are sharded as well unless that is refused."""
    larger = enlarge(a_case("ring_shift", {"dp": 2}, "dp", block=(3, 1), offset=1), sharded=sharded)
    assert larger is not None
    assert all(side % 2 for side in larger.operands[0].block)
    assert (larger.operands[0].block[0] == 3) is not sharded


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
  first wrong element: result[0, 0] is 1.0, expected 13.0
    in the block of device 1, (dp=0, tp=1)
  case: ring_shift(float32[2@(dp,tp),3], ('tp', 'dp'), offset=1) on mesh (dp=2, tp=2)
  data: distinct, seed 1"""


def test_a_wrong_dtype_reads_like_this() -> None:
    """A result that cannot be compared element by element has no picture."""
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
    assert picture(mesh, wrong) == ["pp=2:", "     tp=0 tp=1", "dp=0  9 ·  6 ·", "dp=1  3 ✗  0 ·"]


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
    plain = colour(text)
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
    right = np.zeros((2, 2, 1), np.float32)
    wrong = right.copy()
    wrong[0, 1] = 1
    difference = Difference.between("array", "result under out_specs", right, wrong)
    own = next(i for i in IMPLEMENTATIONS if i.contract.name == "ring_shift")
    violation = LawViolation(own, LAWS["type"], case, "xla", Broken("values", "1 wrong", difference=difference))
    assert "    dp=0  0 ·  1 ✗\n    dp=1  2 ·  3 ·\n" in render(violation)


def attends_to_those_before(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool) -> Array:
    """The blocks of those before are seen, but for the one just before."""
    p, mine, rows = lax.axis_size(axis_name), lax.axis_index(axis_name), len(q)
    k, v = (lax.all_gather(x, axis_name, tiled=True) for x in (k, v))
    logits = jnp.einsum("shd,thd->hst", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    steps = mine - jnp.repeat(jnp.arange(p), rows)
    seen = jnp.tile(jnp.tri(rows, dtype=bool), (1, p)) & (steps == 0)
    seen = seen | (steps > 1)
    weights = jax.nn.softmax(jnp.where(seen | (not causal), logits, -jnp.inf), -1)
    return jnp.einsum("hst,thd->shd", weights, v)


def test_the_line_at_fault_is_said_with_what_explains_the_blocks() -> None:
    """Where one change makes a function right, its line is said, whatever else is known of the blocks."""
    operand = Operand((2, 1, 2), "float32", Placement((("dp",), (), ())))
    data, mesh = (Data("real", 1),), MeshCase(("dp",), (2,))
    case = Case(CONTRACTS["attention"], mesh, "dp", (operand,) * 3, (("causal", True),), data)
    explained, repaired = diagnose(violation_of(attends_to_those_before, case))
    assert explained == "the blocks are the right ones of each participant alone"
    place = f"test_failures_diagnosis.py:{attends_to_those_before.__code__.co_firstlineno + 7}"
    assert repaired.startswith(f"one change makes it right: the comparison at {place}:")
    assert repaired.endswith("true where both sides are equal")
