"""Operations that are no sums of products, before the laws: what is told of a violation, and what is no verdict."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof.impl import norms
from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.data import Data
from shardproof.properties.engines import Engine, SimulateEngine, XlaEngine
from shardproof.properties.laws.law import LAWS
from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.axes import AxisName, names
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.reports.failures.text import diagnosed
from shardproof.properties.reports.scripts.script import script
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
