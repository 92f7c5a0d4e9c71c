"""Partial laws do not apply to a function that declines all of their cases, which is no failure."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof import check, check_program
from shardproof.impl import collectives
from shardproof.properties.cases.chain import Chain, in_words
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import engine_named
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.runs import pytest_given
from shardproof.properties.report import checking
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.runner.judging import require_held
from shardproof.properties.runner.search import Finding, find_violation
from shardproof.properties.runner.tally import HeldOnNothing

SMALL = Scope(max_devices=4, available=4, large=24)


def extreme(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
    """Maxima and minima alone."""
    if op not in ("max", "min"):
        raise NotImplementedError("only max and min")
    return collectives.all_reduce(x, axis_name, op=op)


@jax.custom_jvp
def same(x: Array) -> Array:
    """The identity, without a derivative."""
    return x


@same.defjvp
def _same_has_no_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError("no derivative")


def underived(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
    """Right, and without a derivative."""
    return same(collectives.all_reduce(x, axis_name, op=op))


def found(function: Callable[..., Array], law: str, chain: Chain, patience: int = 40) -> Finding:
    """The finding of a law on an all-reduce under a chain, with a limit of declined cases."""
    return find_violation(
        [LAWS[law]],
        user_implementation("all_reduce", function),
        engine_named("simulate"),
        dataclasses.replace(SMALL, chains=Chains(only=chain)),
        max_examples=13,
        random_seed=1,
        shrink=False,
        patience=patience,
    )


def held(function: Callable[..., Array], law: str, chain: Chain, patience: int = 40) -> str:
    """Why a law does not apply, if nothing breaks it."""
    finding = found(function, law, chain, patience)
    assert finding.violation is None
    return require_held(LAWS[law], user_implementation("all_reduce", function), finding.tally)


@pytest.mark.parametrize("chain", [(), ("vmap",)], ids=in_words)
def test_what_has_values_and_no_derivative_fails(chain: Chain) -> None:
    """A function whose derivative raises NotImplementedError held on nothing."""
    with pytest.raises(HeldOnNothing, match=r"held on no case: .* unsupported .NotImplementedError: no derivative"):
        held(underived, "gradient", chain)


def normalised(x: Any, *, data: Any) -> Any:
    """The logarithm of a sum of exponentials, less the largest of them."""
    most = lax.pmax(x.max(), data)  # the line
    return jnp.log(lax.psum(jnp.exp(x - most).sum(), data)) + most


def of_a_constant(x: Any, *, data: Any) -> Any:
    """The same, of which the largest is a constant."""
    most = lax.pmax(lax.stop_gradient(x.max()), data)
    return jnp.log(lax.psum(jnp.exp(x - most).sum(), data)) + most


def test_an_operation_without_a_derivative_is_named_soon() -> None:
    """A function without derivatives is reported after few cases: the operation, its line, and what to do."""

    def whole(x: Any) -> Any:
        return jnp.log(jnp.exp(x).sum())

    described: Any = {"arguments": ("n@data",), "results": "", "laws": "gradient", "max_examples": 64}
    with pytest.raises(AssertionError, match=r"there is no gradient: .*'pmax'") as raised:
        check_program(normalised, whole, **described)
    lines, start = inspect.getsourcelines(normalised)
    (at,) = [start + i for i, line in enumerate(lines) if "# the line" in line]
    output = str(raised.value)
    assert f"test_inapplicable.py:{at} (normalised): say gradients=False, or take lax.stop_gradient of what" in output
    assert "gradient (simulate): 0% of 20 structures drawn" in output
    assert "contextlib" not in output
    summary = check_program(of_a_constant, whole, **described | {"max_examples": 3})
    assert {tally.outcome for tally in summary.tallies} == {"passed"}
    check_program(normalised, whole, **described | {"laws": None, "max_examples": 2}, gradients=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer cases that are declined end a search of `check`."""
    monkeypatch.setattr(checking, "MAX_UNSUPPORTED", 40)


@pytest.mark.lengthy
@pytest.mark.usefixtures("impatient")
def test_check_reports_laws_that_do_not_apply() -> None:
    """The summary names laws that do not apply, with reasons, and those that held."""
    text = str(check("all_reduce", extreme, laws=["value", "gradient"], max_examples=8))
    assert "gradient  simulate  does not apply" in text
    assert "finding: all_reduce[extreme]: gradient (simulate): does not apply: every case" in text
    assert "value     simulate  held" in text


@pytest.mark.either_end
@pytest.mark.usefixtures("impatient")
def test_laws_that_do_not_apply_verify_nothing() -> None:
    """A check in which no law of all cases held fails."""
    with pytest.raises(AssertionError, match="does not apply: every case was declined"):
        check("all_reduce", extreme, laws=["gradient"], max_examples=8)


@pytest.mark.lengthy
@pytest.mark.either_end
def test_pytest_skips_laws_that_do_not_apply(tmp_path: Path) -> None:
    """`--impl` says of a law that does not apply that it does not; a run of nothing else is skipped, and fails."""
    (tmp_path / "mine.py").write_text(
        "from shardproof.impl.collectives import all_reduce\n\n\n"
        "def extreme(x, axis_name, *, op='sum'):\n"
        "    if op not in ('max', 'min'):\n"
        "        raise NotImplementedError('only max and min')\n"
        "    return all_reduce(x, axis_name, op=op)\n"
    )
    arguments = ("--impl=all_reduce=mine:extreme", "--engine=simulate", "-rs")
    done = pytest_given(tmp_path, *arguments, "--laws=value,gradient")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "1 passed" in done.stdout
    assert "gradient (simulate): does not apply: every case was declined: " in done.stdout
    done = pytest_given(tmp_path, *arguments, "--laws=gradient")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "1 skipped" in done.stdout
    assert re.search(r"SKIPPED .*gradient \(simulate\): does not apply: every case was declined: ", done.stdout)
    assert "ERROR: --impl: no law that covers all cases held for all_reduce[extreme]" in done.stdout


@pytest.mark.lengthy
def test_what_supports_nothing_holds_nothing() -> None:
    """A function that only raises NotImplementedError is reported as that, whatever JAX makes of a case around it."""

    def unwritten(x: Array, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Array:
        raise NotImplementedError("later")

    with pytest.raises(HeldOnNothing) as raised:
        check("all_gather", unwritten, laws=["value", "gradient", "communication"], max_examples=10)
    output = str(raised.value)
    assert re.search(r"value \(simulate\).*: held on no case: [\d,]+ unsupported \(NotImplementedError: later", output)
    assert "VIOLATED" not in output
    assert "communication NOT as expected" not in output
    assert re.search(r"value +simulate +held nothing +0 ", output)


def test_what_is_declined_is_declined_under_a_transformation() -> None:
    """Where another thing goes wrong under a transformation, a function that declines the case is unsupported."""

    def declines_alone(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
        if x.shape and inspect.currentframe() and any("vmap" in f.function for f in inspect.stack()):
            raise ValueError("a batch")
        raise NotImplementedError("later")

    result = found(declines_alone, "value", ("vmap",))
    assert result.violation is None
    assert set(result.tally.unsupported) <= {
        "NotImplementedError: later", "NotImplementedError without the transformations around the call",
    }  # fmt: skip
    assert len(result.tally.unsupported) == 2
