"""Partial laws do not apply to a function that declines all of their cases, which is no failure."""

import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax

from shardproof import check, check_program
from shardproof.impl import collectives
from shardproof.properties.cases.chain import Chain, in_words
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.runs import pytest_given
from shardproof.properties.meta.test_verdicts import found
from shardproof.properties.report import checking
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import require_held
from shardproof.properties.runner.tally import HeldOnNothing


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


@pytest.mark.parametrize("chain", [(), ("vmap",)], ids=in_words)
def test_what_has_values_and_no_derivative_fails(chain: Chain) -> None:
    """A function whose derivative raises NotImplementedError held on nothing."""
    finding = found("all_reduce", underived, "gradient", "simulate", 13, 40, chain)
    assert finding.violation is None
    with pytest.raises(HeldOnNothing, match=r"held on no case: .* unsupported .NotImplementedError: no derivative"):
        require_held(LAWS["gradient"], user_implementation("all_reduce", underived), finding.tally)


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


@pytest.mark.either_end
def test_laws_that_do_not_apply_verify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check in which no law of all cases held fails; the table has the law that does not apply."""
    monkeypatch.setattr(checking, "MAX_UNSUPPORTED", 40)
    with pytest.raises(AssertionError, match=r"does not apply: every case was declined(?s:.*)gradient  simulate  does"):
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


def test_what_is_declined_is_declined_under_a_transformation() -> None:
    """Where another thing goes wrong under a transformation, a function that declines the case is unsupported."""

    def declines_alone(x: Array, axis_name: Any, *, op: str = "sum") -> Array:
        if x.shape and inspect.currentframe() and any("vmap" in f.function for f in inspect.stack()):
            raise ValueError("a batch")
        raise NotImplementedError("later")

    result = found("all_reduce", declines_alone, "value", "simulate", 13, 40, ("vmap",))
    assert result.violation is None
    assert set(result.tally.unsupported) <= {
        "NotImplementedError: later", "NotImplementedError without the transformations around the call",
    }  # fmt: skip
    assert len(result.tally.unsupported) == 2
