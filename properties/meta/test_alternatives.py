"""What a wrong result would be right for is told where it is so on all data, and nothing is told where it is not."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from shardproof.impl import attention, collectives, embedding, halo, local, means, norms, ragged
from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import engine_named
from shardproof.properties.laws.law import LAWS
from shardproof.properties.laws.value import check_value
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.report.diagnosis.conditions import condition
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.diagnosis.explanations import EXPLANATIONS
from shardproof.properties.report.diagnosis.scene import Scene
from shardproof.properties.report.diagnosis.variants import right_for
from shardproof.properties.runner.violation import LawViolation

pytestmark = pytest.mark.untyped

MESH = MeshCase(("dp", "tp"), (2, 3))
AXES = ("dp", "tp")
EVERY = Placement((AXES,))


def norm_case(block: tuple[int, int] = (3, 2), **given: Any) -> Case:
    """A norm over both axes of the mesh."""
    operand = Operand(block, given.pop("dtype", "float32"), Placement((AXES, ())))
    return Case("global_norm", MESH, AXES, (operand,), (), (Data(given.pop("kind", "exact"), 5),))


def mean_case() -> Case:
    """A masked mean over both axes of the mesh, with masks of every style."""
    operands = (Operand((6,), "float32", EVERY), Operand((6,), "bool", EVERY))
    return Case("masked_mean", MESH, AXES, operands, (), tuple(Data("exact", seed) for seed in range(9)))


def rms_case() -> Case:
    """A normalisation of features over both axes, with an epsilon that shows."""
    operands = (Operand((3, 4), "float32", Placement(((), AXES))), Operand((4,), "float32", EVERY))
    return Case("rms_norm", MESH, AXES, operands, (("epsilon", 0.5),), (Data("exact", 2),))


def lookup_case() -> Case:
    """A lookup in a table over both axes."""
    operands = (Operand((2, 4), "float32", Placement((AXES, ()))), Operand((6,), "int32", Placement(((),))))
    return Case("embedding_lookup", MESH, AXES, operands, (), (Data("distinct", 3),))


def ragged_case() -> Case:
    """An exchange of slices of different lengths over both axes, several for each participant."""
    rows = Operand((6,), "float32", EVERY)
    lists = [Operand((12,), "int32", EVERY)] * 4
    return Case("ragged_all_to_all", MESH, AXES, (rows, rows, *lists), (), (Data("distinct", 3),))


def halo_case() -> Case:
    """A halo of different widths on both sides."""
    params = (("before", 1), ("after", 2), ("axis", 0))
    return Case("halo_exchange", MESH, AXES, (Operand((3,), "float32", EVERY),), params, (Data("distinct", 3),))


def attention_case() -> Case:
    """Causal attention of a sequence over both axes."""
    operand = Operand((2, 1, 3), "float32", Placement((AXES, (), ())))
    return Case("attention", MESH, AXES, (operand,) * 3, (("causal", True),), (Data("real", 3),))


def local_case(contract: str, block: tuple[int, int], **params: Any) -> Case:
    """What shards over both axes compute by themselves."""
    operand = Operand(block, "float32", Placement((AXES, ())))
    return Case(contract, MESH, AXES, (operand,), tuple(params.items()), (Data("exact", 3),))


def varying(x: Any, axis_name: Any) -> Any:
    """`x`, as differing along the axis tuple."""
    return cast_varying(x, (axis_name,) if isinstance(axis_name, str) else axis_name)


def own_norm(x: Array, axis_name: Any) -> Array:
    """The norm of what is here."""
    return jnp.sqrt(jnp.sum(jnp.square(varying(x, axis_name))))


def own_mean(values: Array, mask: Array, axis_name: Any) -> Array:
    """The masked mean of what is here."""
    return varying(jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1), axis_name)


def by_first_axis(x: Array, axis_name: Any) -> Array:
    """The norms along the first axis of the tuple, added up over the second."""
    first, second = axis_name
    return lax.psum(jnp.sqrt(lax.psum(jnp.sum(jnp.square(varying(x, axis_name))), first)), second)


def without_epsilon(x: Array, scale: Array, axis_name: Any, *, epsilon: float) -> Array:
    """Forgets epsilon."""
    return norms.rms_norm(x, scale, axis_name, epsilon=0.0)


def unscaled(x: Array, scale: Array, axis_name: Any, *, epsilon: float) -> Array:
    """Forgets the scale."""
    return norms.rms_norm(x, jnp.ones_like(scale), axis_name, epsilon=epsilon)


def by_itself(x: Array, scale: Array, axis_name: Any, *, epsilon: float) -> Array:
    """Normalises by the features that are here."""
    root = jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)
    return varying(x / root * scale, axis_name)


def from_the_start(operand: Array, output: Array, *lists: Array, axis_name: Any) -> Array:
    """Sends every slice from row 0."""
    begin, *rest = lists
    return ragged.gathered_ragged_all_to_all(operand, output, jnp.zeros_like(begin), *rest, axis_name=axis_name)


PLANTED: dict[str, tuple[Case, Callable[..., Any], str]] = {
    "alone": (rms_case(), by_itself, "the blocks are the right ones of each participant alone"),
    "sum": (
        norm_case(),
        lambda x, axis_name: lax.psum(own_norm(x, axis_name), axis_name),
        "the blocks are the sum over ('dp', 'tp') of what each participant has alone",
    ),
    "mean": (
        mean_case(),
        lambda v, m, axis_name: lax.pmean(own_mean(v, m, axis_name), axis_name),
        "the blocks are the mean over ('dp', 'tp') of what each participant has alone",
    ),
    "maximum": (
        norm_case(),
        lambda x, axis_name: lax.pmax(own_norm(x, axis_name), axis_name),
        "the blocks are the maximum over ('dp', 'tp') of what each participant has alone",
    ),
    "minimum": (
        norm_case(),
        lambda x, axis_name: -lax.pmax(-own_norm(x, axis_name), axis_name),
        "the blocks are the minimum over ('dp', 'tp') of what each participant has alone",
    ),
    "one axis after the other": (
        norm_case(),
        by_first_axis,
        "the blocks are the sum over ('tp',) of those for axis_name=('dp',)",
    ),
    "opposite": (
        mean_case(),
        lambda v, m, axis_name: means.masked_mean(v, ~m, axis_name),
        "the blocks are the right ones with the opposite of mask",
    ),
    "no mask": (
        mean_case(),
        lambda v, m, axis_name: means.masked_mean(v, jnp.ones_like(m), axis_name),
        "the blocks are the right ones with True in place of mask",
    ),
    "masked ones count": (
        mean_case(),
        lambda v, m, axis_name: means.masked_mean(jnp.where(m, v, 0), jnp.ones_like(m), axis_name),
        "the blocks are the right ones with zeros in values where mask is False, which count",
    ),
    "ones": (rms_case(), unscaled, "the blocks are the right ones with ones in place of scale"),
    "a number forgotten": (rms_case(), without_epsilon, "the blocks are the right ones for epsilon=0.0"),
    "numbers exchanged": (
        halo_case(),
        lambda x, axis_name, *, before, after, axis=0: halo.halo_exchange(
            x, axis_name, before=after, after=before, axis=axis
        ),
        "the blocks are the right ones for before=2, after=1",
    ),
    "operands exchanged": (
        ragged_case(),
        lambda x, y, *lists, axis_name: ragged.gathered_ragged_all_to_all(y, x, *lists, axis_name=axis_name),
        "the blocks are the right ones with operand and output exchanged",
    ),
    "zeros": (ragged_case(), from_the_start, "the blocks are the right ones with zeros in place of input_offsets"),
    "a number with the other sign": (
        local_case("shard_roll", (5, 2), shift=2),
        lambda x, *, shift: local.shard_roll_of_block(x, -shift),
        "the blocks are the right ones for shift=-2",
    ),
    "a choice forgotten": (
        attention_case(),
        lambda q, k, v, axis_name, *, causal: attention.gathered_attention(q, k, v, axis_name),
        "the blocks are the right ones for causal=False",
    ),
    "a matrix transposed": (
        local_case("shard_mean", (4, 4)),
        lambda x: local.shard_mean_of_block(x.T),
        "the blocks are the right ones with x transposed",
    ),
    "by one less": (
        local_case("shard_mean", (5, 2)),
        lambda x: jnp.sum(x, axis=0, keepdims=True) / (x.shape[0] - 1),
        "multiple: every wrong block holds n/(n - 1) of the right values (n is the length of dimension 0 of x)",
    ),
    "root": (
        norm_case(),
        lambda x, axis_name: norms.global_norm(x, axis_name) / np.sqrt(6).astype(np.float32),
        "multiple: every wrong block holds 1 by the root of 6 times the right values",
    ),
    "a dimension": (
        norm_case((3, 1)),
        lambda x, axis_name: norms.global_norm(x, axis_name) * x.shape[0],
        "multiple: every wrong block holds n times the right values (n is the length of dimension 0 of x)",
    ),
    "infinite": (
        norm_case(dtype="float16"),
        lambda x, axis_name: norms.global_norm(x, axis_name) + jnp.asarray(jnp.inf, x.dtype),
        "overflow: holds infinities where the right value is finite",
    ),
}


def test_of_nan_it_is_not_told_what_it_would_be_right_for() -> None:
    """A root that overflows makes NaN of zeros; so does epsilon=0.0, which is not why."""
    zeros = dataclasses.replace(rms_case(), params=(("epsilon", 1e-12),), data=(Data("zeros", 2),))

    def overflowing(x: Array, scale: Array, axis_name: Any, *, epsilon: float) -> Array:
        squares = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        infinite = jnp.where(squares == 0, jnp.inf, 1)
        return norms.rms_norm(x, scale, axis_name, epsilon=epsilon) * lax.pmax(infinite, axis_name)

    assert told(zeros, overflowing) == ["NaN: holds NaN where the right value is none"]
    assert told(rms_case(), without_epsilon) == ["the blocks are the right ones for epsilon=0.0"]


def told(case: Case, function: Callable[..., Any]) -> list[str]:
    """What is said of the violation of the law of values on this case."""
    implementation = user_implementation(case.contract, function)
    with pytest.raises(Broken) as caught:
        check_value(implementation, case, engine_named("simulate"))
    violation = LawViolation(implementation, LAWS["value"], case, "simulate", caught.value)
    return diagnose(violation)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_what_it_would_be_right_for_is_told(name: str) -> None:
    """The one sentence that is said is the one that is true of the function."""
    case, function, words = PLANTED[name]
    assert told(case, function) == [words]


NEARLY: dict[str, tuple[Case, Callable[..., Any]]] = {
    "a sum, and something": (
        norm_case(),
        lambda x, axis_name: lax.psum(own_norm(x, axis_name), axis_name) * 1.01,
    ),
    "twice on some data": (
        norm_case((3, 1)),
        lambda x, axis_name: norms.global_norm(x, axis_name) * jnp.where(norms.global_norm(x, axis_name) > 23, 2, 3),
    ),
    "zeros in some wrong places": (
        lookup_case(),
        lambda table, ids, axis_name: (lambda y: y.at[0].set(0).at[1].multiply(1.5).at[3].add(1))(
            embedding.embedding_lookup(table, ids, axis_name)
        ),
    ),
}


@pytest.mark.parametrize("name", sorted(NEARLY))
def test_what_is_nearly_so_is_not_told(name: str) -> None:
    """A function of which a sentence is true on some data, or up to a percent, is not told by that sentence."""
    said = " ".join(told(*NEARLY[name]))
    assert not any(words in said for words in ("right ones", "each participant", "times", "wherever"))


def a_scene(case: Case, blocks: np.ndarray, right: float, held: float, *, tolerance: float = 0.0) -> Scene:
    """A scene whose result is one number on every device, and wrong unless it is within the tolerance."""
    expected, actual = (np.full((case.mesh.size,), x, np.float32) for x in (right, held))

    def oracle(of: Case, inputs: list[np.ndarray]) -> np.ndarray:
        x = inputs[0].astype(np.float64)
        total = x.reshape(*of.mesh.sizes, -1).sum(axis=-1)
        dims = tuple(of.mesh.axis_names.index(name) for name in of.axes)
        return np.broadcast_to(total.sum(axis=dims, keepdims=True), total.shape).astype(inputs[0].dtype)

    return Scene(case, expected, actual, np.abs(expected - actual) > tolerance, tolerance, [blocks], oracle)


def test_what_fits_by_coincidence_is_not_told() -> None:
    """Of equal blocks the mean, the maximum and the own one are the same: on one data set none of them is told."""
    case = norm_case((1, 1))
    equal, others = np.full((2, 3, 1, 1), 2, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1) + 1
    first, second = a_scene(case, equal, 12.0, 2.0), a_scene(case, others, 21.0, 6.0)
    assert right_for([first], numbers=True) == []
    assert right_for([first, second], numbers=True) == [
        "the blocks are the maximum over ('dp', 'tp') of what each participant has alone"
    ]


def test_a_multiple_is_told_by_what_tells_it_from_the_right_values() -> None:
    """Values near zero tell nothing; a clear value that is right contradicts, and one that is another multiple."""
    case, blocks = norm_case((1, 1)), np.ones((2, 3, 1, 1), np.float32)
    multiple = next(e for e in EXPLANATIONS if e.name == "multiple")

    def phrase(*pairs: tuple[float, float]) -> str | None:
        return multiple.phrase([a_scene(case, blocks, *pair, tolerance=0.1) for pair in pairs], 0)

    assert phrase((5.0, 15.0), (7.0, 21.0)) == "holds 3 times the right values (tp has that size)"
    assert phrase((5.0, 15.0), (7.0, 21.0), (0.03, 0.03), (0.1, 0.31)) is not None
    assert phrase((5.0, 15.0), (7.0, 21.0), (7.0, 7.0)) is None
    assert phrase((5.0, 15.0), (7.0, 28.0)) is None
    assert phrase((0.1, 0.31)) is None


def test_lists_of_integers_do_not_break_a_diagnosis() -> None:
    """Where integers overflow, the operands that are numbers of rows stay what they are."""
    case = ragged_case()
    operands = tuple(dataclasses.replace(o, dtype="int8") if o.dtype == "float32" else o for o in case.operands)
    case = dataclasses.replace(case, operands=operands, data=(Data("special", 1),))
    lines = told(case, lambda x, y, *lists, axis_name: ragged.gathered_ragged_all_to_all(
        x, y, *lists, axis_name=axis_name) * jnp.int8(3) + jnp.int8(1))  # fmt: skip
    assert lines[0].startswith("other values")


def test_what_is_hardly_other_than_the_right_values_is_not_told() -> None:
    """Blocks that the tolerance hardly tells from the right ones explain nothing, unless they are clear elsewhere."""
    case, equal = norm_case((1, 1)), np.full((2, 3, 1, 1), 2, np.float32)
    unclear, clear = (a_scene(case, equal, right, 12.05, tolerance=0.1) for right in (12.3, 17.0))
    words = ["the blocks are the right ones for axis_name=('tp', 'dp')"]  # whose sum is the same
    assert right_for([unclear], numbers=True) == []
    assert right_for([unclear, clear], numbers=True) == words


def test_numbers_of_both_signs_make_a_sign_a_condition() -> None:
    """What is wrong on all numbers but zero is wrong on those of both signs, whichever there are."""
    case, blocks = norm_case((1, 1)), np.ones((2, 3, 1, 1), np.float32)

    def sign(*rights: float) -> str | None:
        right = np.repeat(np.array(rights, np.float32)[None], MESH.size, 0)
        held = np.where(right > 0, right * right + 3, right)
        one = Scene(case, right, held, held != right, 0.0, [blocks], lambda of, inputs: np.zeros_like(right))
        return condition([one, one])

    assert sign(5, 0, 6, 0) is None
    assert (sign(5, -4, 6, -7) or "").startswith("positive numbers")


def through_large_numbers(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
    """Adds up multiples near the largest number, and divides them again."""
    y = varying(x, axis_name)
    if op != "sum" or not jnp.issubdtype(x.dtype, jnp.floating):
        return collectives.all_reduce(x, axis_name, op=op)
    large = 2.0 ** (jnp.finfo(x.dtype).maxexp - 3)
    return (lax.psum(y * large, axis_name) / large).astype(x.dtype)


def without_the_smallest(x: Array, axis_name: Any, *, axis: int, tiled: bool) -> Array:
    """Takes what is below the smallest normal number for zero."""
    y = collectives.all_gather(x, axis_name, axis=axis, tiled=tiled)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return y
    return jnp.where(jnp.abs(y) < jnp.finfo(x.dtype).smallest_normal, jnp.zeros_like(y), y)


@pytest.mark.parametrize(
    ("contract", "function", "dtype", "kind", "words"),
    [
        ("all_reduce", through_large_numbers, "float16", "exact", "overflow: holds infinities, or NaN"),
        ("all_gather", without_the_smallest, "float8_e4m3fn", "real", "flushed to zero: holds zero where numbers"),
    ],
)
def test_numbers_that_leave_the_range_are_told(contract: str, function: Any, dtype: str, kind: str, words: str) -> None:
    """Neither infinity nor zero is called a multiple of what is right, or a rounding of it."""
    params = (("op", "sum"),) if contract == "all_reduce" else (("axis", 0), ("tiled", True))
    case = Case(contract, MESH, AXES, (Operand((40, 3), dtype, Placement((AXES, ()))),), params, (Data(kind, 2),))
    implementation = user_implementation(contract, function)
    with pytest.raises(Broken) as caught:
        check_value(implementation, case, engine_named("simulate"))
    violation = LawViolation(implementation, LAWS["value"], case, "simulate", caught.value)
    assert re.search(words, "\n".join(diagnose(violation)))
