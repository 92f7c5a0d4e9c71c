"""Operations that are no sums of products, before the laws: what is told of a violation, and what is no verdict."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from shardproof.impl import norms
from shardproof.impl.attention import ring_attention
from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.engines.simulate import Wide
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.precision.comparison import compare
from shardproof.properties.precision.expected import Reference
from shardproof.properties.precision.runs import held_to
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import Broken
from shardproof.properties.report.failures.text import diagnosed
from shardproof.properties.report.scripts.script import script
from shardproof.properties.runner.judging import require_held, verify
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.verdict import HeldOnNothing, Verdict
from shardproof.properties.runner.violation import LawViolation

CASE = Case(
    "global_norm",
    MeshCase(("tp",), (2,)),
    "tp",
    (Operand((2, 3), "float32", Placement((("tp",), ()))),),
    (),
    (Data("real", 1), Data("exact", 2)),
)


def judged(function: Callable[..., Any], law: str, engine: Engine) -> tuple[Verdict, Tally]:
    """The verdict on one case."""
    tally = Tally("global_norm", "mine", law)
    return verify(LAWS[law], Implementation("global_norm", "mine", function), CASE, engine, tally), tally


def half_precision(rows: int, data: Data) -> Case:
    """Attention to so many positions on each of two devices, in float16."""
    operand = Operand((rows, 1, 3), "float16", Placement((("tp",), (), ())))
    mesh = MeshCase(("tp",), (2,))
    return Case("attention", mesh, "tp", (operand,) * 3, (("causal", False),), (data,))


def violation_of(name: str, engine: Engine) -> LawViolation:
    """What the law of a planted bug raises on the case."""
    with pytest.raises(LawViolation) as caught:
        judged(MUTANTS[name].function, MUTANTS[name].law, engine)
    return caught.value


def norm_by_gamma(x: Array, axis_name: AxisName) -> Array:
    """A right norm, times the exponential of a logarithm of a factorial that is 1."""
    one = jnp.exp(lax.lgamma(jnp.ones((), jnp.float32)))
    return norms.global_norm(cast_varying(x, names(axis_name)), axis_name) * one


@pytest.mark.parametrize("law", ["value", "gradient"])
@pytest.mark.parametrize("engine", [SimulateEngine(), XlaEngine()], ids=["simulate", "xla"])
def test_what_cannot_be_run_in_doubles_is_no_pass(law: str, engine: Engine) -> None:
    """Of a function with an operation whose error nothing says there is no verdict, and no law held of it."""
    verdict, tally = judged(norm_by_gamma, law, engine)
    assert verdict.kind == "not run"
    assert "lgamma in wide arithmetic" in verdict.reason
    with pytest.raises(HeldOnNothing, match="lgamma in wide arithmetic"):
        require_held(LAWS[law], Implementation("global_norm", "mine", norm_by_gamma), tally)


@pytest.mark.lengthy
@pytest.mark.parametrize("engine", [SimulateEngine(), XlaEngine()], ids=["simulate", "xla"])
@pytest.mark.parametrize("name", ["norm_with_a_trifle_outside", "norm_with_a_trifle_in_its_gradient"])
def test_a_trifle_is_told_and_shown(name: str, engine: Engine, tmp_path: Path) -> None:
    """What is below the roundings of float32 is called another formula, and its script shows it in double precision."""
    violation = violation_of(name, engine)
    assert "in double precision" in str(violation)
    (told,) = diagnosed(violation)
    assert told.startswith("another formula: in double precision off by up to")
    path = tmp_path / "script.py"
    path.write_text(script(violation), encoding="utf-8")
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "expected" in ran.stdout
    right = f"shardproof.impl.norms import global_norm as {name}"
    fixed = script(violation).replace(f"shardproof.properties.mutants.norms import {name}", right)
    assert right in fixed
    path.write_text(fixed, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("law", ["value", "gradient"])
@pytest.mark.parametrize("engine", [SimulateEngine(), XlaEngine()], ids=["simulate", "xla"])
def test_a_right_norm_holds(law: str, engine: Engine) -> None:
    """The case by itself is one on which a right implementation holds."""
    verdict, _ = judged(norms.global_norm, law, engine)
    assert verdict.kind == "held"
    assert verdict.checked == 2


def test_gradients_that_jax_adds_up_may_overflow() -> None:
    """Of float16: the parts of a gradient, one from each device, may be infinite although their sum is not."""
    implementation = Implementation("attention", "mine", ring_attention)
    case, tally = half_precision(127, Data("distinct", 2)), Tally("attention", "mine", "gradient")
    verdict = verify(LAWS["gradient"], implementation, case, SimulateEngine(), tally)
    assert verdict.kind == "held"


@pytest.mark.parametrize("law", ["value", "gradient"])
def test_what_a_function_computes_itself_may_not(law: str) -> None:
    """Powers of logits that overflow are a bug wherever the result is finite, in values and in gradients."""
    implementation = Implementation("attention", "mine", MUTANTS["attention_without_the_maximum"].function)
    case, tally = half_precision(3, Data("exact", 5)), Tally("attention", "mine", law)
    with pytest.raises(LawViolation):
        verify(LAWS[law], implementation, case, SimulateEngine(), tally)


@pytest.mark.parametrize("factor", [1.001, 0.99, 1 + 2**-16])
@pytest.mark.parametrize("law", ["value", "gradient"])
def test_small_and_wrong_in_doubles_is_no_rounding(factor: float, law: str) -> None:
    """Another formula is called so however little it is off."""

    def scaled(q: Array, k: Array, v: Array, axis_name: AxisName, *, causal: bool = False) -> Array:
        return ring_attention(q, k, v, axis_name, causal=causal) * jnp.asarray(factor, q.dtype)

    operand = Operand((2, 1, 3), "float32", Placement((("tp",), (), ())))
    case = Case("attention", MeshCase(("tp",), (2,)), "tp", (operand,) * 3, (("causal", False),), (Data("real", 3),))
    with pytest.raises(LawViolation) as caught:
        verify(
            LAWS[law],
            Implementation("attention", "mine", scaled),
            case,
            SimulateEngine(),
            Tally("attention", "mine", law),
        )
    (line,) = diagnosed(caught.value)
    assert line.startswith("another formula: in double precision")


@pytest.mark.parametrize(
    ("exact", "held"), [(2.0, (True, False, False)), (7e4, (True, True, True)), (-7e10, (True, True, True))]
)
def test_what_no_number_of_the_dtype_is_may_overflow_on_its_way(exact: float, held: tuple[bool, ...]) -> None:
    """Two partial sums, one of each infinity, are NaN where the right result is infinite, and nowhere else."""
    case = half_precision(1, Data("real", 1))
    overflowing = Wide(np.full((2, 1), exact), np.full((2, 1), np.inf))
    right = Reference(np.full((2, 1), exact), np.dtype(np.float16), np.zeros((2, 1)))
    double = Wide(np.full((2, 1), exact), np.zeros((2, 1)))
    known = held_to(CONTRACTS[case.contract], right, overflowing, double, np.ones((2, 1), bool), of_derivative=False)
    expected = right.rounded
    for found, right_one in zip((expected, np.full((2, 1), np.nan), np.full((2, 1), -np.inf)), held, strict=True):
        with contextlib.nullcontext() if right_one else pytest.raises(Broken):
            compare(
                case, case.data[0], "result", "result", expected=expected, actual=found.astype(np.float16),
                bound=known.bound, exact=right.exact,
            )  # fmt: skip


def test_below_the_smallest_normal_double_nothing_is_known() -> None:
    """Where the oracle has the least double there is, or multiples of it, a right function may have zero."""
    case = half_precision(1, Data("real", 1))
    contract = CONTRACTS[case.contract]
    for exact, double, held in ((5e-324, 0.0, True), (1e-300, 0.0, True), (1e-280, 0.0, False)):
        right = Reference(np.full((1,), exact), np.dtype(np.float32), np.zeros(1))
        run = Wide(np.full((1,), double), np.zeros(1))
        known = held_to(contract, right, run, run, np.ones(1, bool), of_derivative=True)
        assert known.leeway is not None
        assert (abs(exact - double) <= known.leeway[0]) == held
