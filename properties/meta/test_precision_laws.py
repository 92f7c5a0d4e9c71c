"""Operations that are no sums of products, before the laws: the report of a violation, and what is no verdict."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array, lax

from shardproof.impl import norms
from shardproof.impl.attention import ring_attention
from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.engines.simulate.jaxprs import steps_of
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.law import LawViolation, Verdict
from shardproof.properties.meta.drawn import smallest
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.precision.comparison import Judged, Reference, compare
from shardproof.properties.precision.formats import Charges
from shardproof.properties.precision.judge import bound_of
from shardproof.properties.precision.runs import SAMPLES, Runs
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.runner.judging import judge, require_held
from shardproof.properties.runner.programs import Program
from shardproof.properties.runner.tally import HeldOnNothing, Tally

CASE = Case(
    CONTRACTS["global_norm"],
    MeshCase(("tp",), (2,)),
    "tp",
    (Operand((2, 3), "float32", Placement((("tp",), ()))),),
    (),
    (Data("real", 1), Data("exact", 2)),
)


def judged(function: Callable[..., Any], law: str, engine: Engine) -> tuple[Verdict, Tally]:
    """The verdict on one case."""
    tally = Tally("global_norm", "mine", law)
    return judge(LAWS[law], Implementation(CONTRACTS["global_norm"], "mine", function), CASE, engine, tally), tally


def half_precision(rows: int, data: Data) -> Case:
    """Attention to some positions on each of two devices, in float16."""
    operand = Operand((rows, 1, 3), "float16", Placement((("tp",), (), ())))
    mesh = MeshCase(("tp",), (2,))
    return Case(CONTRACTS["attention"], mesh, "tp", (operand,) * 3, (("causal", False),), (data,))


@jax.custom_jvp
def outside(x: Array) -> Array:
    """An array that NumPy hands on."""
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


outside.defjvp(lambda primal, tangent: (outside(*primal), tangent[0]))


def norm_outside(x: Array, axis_name: AxisName) -> Array:
    """A right norm, which NumPy hands on."""
    return outside(norms.global_norm(cast_varying(x, names(axis_name)), axis_name))


@pytest.mark.parametrize("law", ["value", "gradient"])
@pytest.mark.parametrize("engine", [SimulateEngine(), XlaEngine()], ids=["simulate", "xla"])
def test_what_cannot_be_run_in_doubles_is_no_pass(law: str, engine: Engine) -> None:
    """Of a function with a call of a function outside of JAX there is no verdict, and no law held of it."""
    verdict, tally = judged(norm_outside, law, engine)
    assert verdict.kind == "not run"
    assert "pure_callback" in verdict.reason
    with pytest.raises(HeldOnNothing, match="pure_callback"):
        require_held(LAWS[law], Implementation(CONTRACTS["global_norm"], "mine", norm_outside), tally)


@pytest.mark.parametrize("law", ["value", "gradient"])
@pytest.mark.parametrize("engine", [SimulateEngine(), XlaEngine()], ids=["simulate", "xla"])
def test_a_right_norm_holds(law: str, engine: Engine) -> None:
    """The case by itself is one on which a right implementation holds."""
    verdict, _ = judged(norms.global_norm, law, engine)
    assert verdict.kind == "held"
    assert verdict.checked == 2


def test_gradients_that_jax_adds_up_may_overflow() -> None:
    """Of float16: the parts of a gradient, one from each device, may be infinite although their sum is not."""
    implementation = Implementation(CONTRACTS["attention"], "mine", ring_attention)
    case, tally = half_precision(127, Data("distinct", 2)), Tally("attention", "mine", "gradient")
    verdict = judge(LAWS["gradient"], implementation, case, SimulateEngine(), tally)
    assert verdict.kind == "held"


@pytest.mark.parametrize("law", ["value", "gradient"])
def test_what_a_function_computes_itself_may_not(law: str) -> None:
    """Powers of logits that overflow are a bug wherever the result is finite, in values and in gradients."""
    implementation = Implementation(CONTRACTS["attention"], "mine", MUTANTS["attention_without_the_maximum"].function)
    case, tally = half_precision(3, Data("exact", 5)), Tally("attention", "mine", law)
    with pytest.raises(LawViolation):
        judge(LAWS[law], implementation, case, SimulateEngine(), tally)


@pytest.mark.parametrize(
    ("exact", "held"), [(2.0, (True, False, False)), (7e4, (True, True, True)), (-7e10, (True, True, True))]
)
def test_what_no_number_of_the_dtype_is_may_overflow_on_its_way(exact: float, held: tuple[bool, ...]) -> None:
    """Two partial sums, one of each infinity, are NaN where the right result is infinite, and nowhere else."""
    case, dtype = half_precision(1, Data("real", 1)), np.dtype(np.float16)
    double = np.full((2, 1), exact)
    bound = bound_of(double, double, np.full((16, 2, 1), np.inf), dtype)
    right = Reference(double, dtype, lambda: Judged(double, bound, np.zeros((2, 1))))
    for found, right_one in zip((right.rounded, np.full((2, 1), np.nan), np.full((2, 1), -np.inf)), held, strict=True):
        with contextlib.nullcontext() if right_one else pytest.raises(Broken):
            compare(case, case.data[0], "result", "result", actual=found.astype(np.float16), right=right)


LONG = Program(lambda x, *, data: x * x, np.square, arguments=("n@data",), results="n@data", sizes={"n": (100,)})


def test_what_a_reference_does_not_know_takes_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Central differences give some of many derivatives; the others are compared with nothing, however they round."""
    case = smallest(LONG.contract.cases(Scope(max_devices=1, available=1)))
    monkeypatch.setattr(Runs, "nearly", None)
    assert LAWS["gradient"].check(LONG.implementation, case, SimulateEngine()).checked


def test_of_many_numbers_half_as_many_samples_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on many devices, for twice the bound; a product of matrices counts by what it adds up."""
    case = smallest(LONG.contract.cases(Scope(max_devices=1, available=1)))
    sets = [operands(case, case.data[0])]
    runs = Runs("value", LONG.implementation, case, sets)
    assert len(runs.rounded(0, Charges())[0]) == SAMPLES
    steps = [steps_of(jax.make_jaxpr(lambda x: x @ x)(np.ones((n, n))), 1) for n in (100, 200)]
    assert steps[1] > 6 * steps[0]
    monkeypatch.setattr("shardproof.properties.precision.runs.STEPS", 0)
    assert len(Runs("value", LONG.implementation, case, sets).rounded(0, Charges())[0]) == SAMPLES // 2


@pytest.mark.parametrize("seed", [pytest.param(41902, id="underflows"), pytest.param(2, id="overflows")])
def test_a_gradient_that_leaves_the_range_of_doubles_is_not_reported(seed: int) -> None:
    """Numbers near the ends of float64 may be lost on the way, of which no wider run knows."""
    operands = tuple(
        Operand(block, "float64", Placement(spec)) for block, spec in (((6, 1), (("tp",), ())), ((1,), (("tp",),)))
    )
    contract, data = CONTRACTS["rms_norm"], (Data("scaled", seed), Data("real", 0))
    case = Case(contract, MeshCase(("tp",), (1,)), "tp", operands, (("epsilon", 1e-6),), data)
    mine, tally = Implementation(contract, "mine", norms.rms_norm), Tally("rms_norm", "mine", "gradient")
    assert judge(LAWS["gradient"], mine, case, SimulateEngine(), tally).kind == "held"


def by_rsqrt(x: Any, scale: Any, axis_name: Any, *, epsilon: float) -> Any:
    """The usual form of an RMS norm, whose derivative has the third power of the inverse root."""
    square = lax.pmean((x * x).mean(-1, keepdims=True), axis_name)
    return x * lax.rsqrt(square + epsilon) * scale


def test_a_gradient_whose_factors_leave_the_range_of_its_dtype_is_not_reported() -> None:
    """The numbers are near an end of float32, and of one feature the right gradient is zero."""
    operands = tuple(
        Operand(block, "float32", Placement(spec)) for block, spec in (((2, 1), ((), ("tp",))), ((1,), (("tp",),)))
    )
    contract = CONTRACTS["rms_norm"]
    mine = Implementation(contract, "mine", by_rsqrt)
    for seed in range(40):
        data = (Data("scaled", seed), Data("real", 0))
        case = Case(contract, MeshCase(("tp",), (1,)), "tp", operands, (("epsilon", 0.0),), data)
        assert (
            judge(LAWS["gradient"], mine, case, SimulateEngine(), Tally("rms_norm", "mine", "gradient")).kind == "held"
        )


def gather_as_floats(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """A gather that moves integers as float32, which has not all of them."""
    return lax.all_gather(x.astype("float32"), axis_name, axis=axis, tiled=tiled).astype(x.dtype)


def test_roundings_do_not_decide_what_whole_numbers_are_where_the_oracle_has_no_floats() -> None:
    """An implementation that rounds on the way is wrong, however its roundings go."""
    contract = CONTRACTS["all_gather"]
    case = Case(
        contract, MeshCase(("dp",), (2,)), "dp", (Operand((16,), "int32", Placement((("dp",),))),),
        (("axis", 0), ("tiled", True)), (Data("special", 0),),
    )  # fmt: skip
    mine = Implementation(contract, "mine", gather_as_floats)
    with pytest.raises(LawViolation, match="blocks wrong"):
        judge(LAWS["value"], mine, case, SimulateEngine(), Tally("all_gather", "mine", "value"))
