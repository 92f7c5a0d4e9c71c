"""Verdicts of two engines: one judges what the other cannot run, and cases that neither ran are no pass."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array, lax
from jax.experimental import pallas as pl

from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines import engine_named
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.test_verdicts import Function, found, returning
from shardproof.properties.programs.examples import example
from shardproof.properties.report.checking import user_implementation
from shardproof.properties.runner.judging import judge, own, require_held
from shardproof.properties.runner.tally import HeldOnNothing, Tally, Verdict
from shardproof.properties.runner.violation import LawViolation


def _pallas(x: Array) -> Array:
    def kernel(source: Any, target: Any) -> None:
        target[...] = source[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype, manual_axis_type=jax.typeof(x).manual_axis_type)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def _reference(x: Array) -> Array:
    reference = jax.new_ref(x)
    reference[...] = reference[...] + 1
    return jax.freeze(reference) - 1


ONES = jax.ShapeDtypeStruct((2, 2), jnp.float32)
KINDS: dict[str, Function] = {
    "pallas_call": _pallas,
    "pure_callback": lambda x: jax.pure_callback(lambda y: y, ONES, x),
    "refs": _reference,
    "approximate maximum": lambda x: lax.approx_max_k(x, 1)[0],
    "schur": lambda x: lax.linalg.schur(x)[0],
}


def using(kind: str, offset_by: int) -> Function:
    """A ring shift that also does what the interpreter may lack, and adds nothing of it."""

    def shift(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
        y = collectives.ring_shift(x, axis_name, offset=offset + offset_by)
        other = KINDS[kind](jnp.eye(2, dtype=jnp.float32))
        return jnp.where(jnp.isfinite(other).all(), y, jnp.zeros_like(y))

    return shift


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_interpreter_lacks_is_verified_by_the_compiler(kind: str) -> None:
    """A function that the interpreter cannot run is compiled: a right one holds, a wrong one is reported."""
    right = found("ring_shift", using(kind, 0), "value", "simulate", 16, chain=())
    assert right.violation is None, str(right.violation)
    assert right.tally.structures >= 2
    assert right.tally.instead or not right.tally.not_run
    assert all(reason.startswith("the interpreter cannot run ") for reason in right.tally.instead)
    assert found("ring_shift", using(kind, 1), "value", "simulate", 100, chain=()).violation is not None


def test_what_no_engine_ran_is_no_pass() -> None:
    """A law that no engine could run fails, unless it is about the interpreter."""
    shift = using("approximate maximum", 0)
    implementation = user_implementation("ring_shift", shift)
    finding = found("ring_shift", shift, "agreement", "xla", 3)
    assert finding.tally.not_run == {"the interpreter cannot run approx_top_k": 6}
    assert require_held(LAWS["agreement"], implementation, finding.tally) == ""
    with pytest.raises(HeldOnNothing, match="nothing ran it: 6 not run"):
        require_held(LAWS["value"], implementation, finding.tally)


def test_what_ran_on_single_participants_alone_is_no_pass() -> None:
    """A law that ran only with one participant does not hold if others were not run."""
    shift = user_implementation("ring_shift", using("approximate maximum", 0))
    tally = Tally("ring_shift", shift.name, "value", "simulate")
    alone, several = (
        Case(CONTRACTS["ring_shift"], MeshCase(("dp",), (n,)), "dp", (Operand((2,), "float32", Placement((("dp",),))),))
        for n in (1, 2)
    )
    tally.note(Verdict("held", checked=1), alone)
    assert require_held(LAWS["value"], shift, tally) == ""
    tally.note(Verdict("not run", "the interpreter cannot run it"), several)
    with pytest.raises(HeldOnNothing, match="with one participant; 1 with more were not run: the interpreter can"):
        require_held(LAWS["value"], shift, tally)
    assert require_held(LAWS["agreement"], shift, tally) == ""
    tally.note(Verdict("held", checked=1), several)
    assert require_held(LAWS["value"], shift, tally) == ""


def test_an_error_of_the_interpreter_is_not_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the interpreter itself is reported as its limit, and the compiled program is judged."""
    monkeypatch.setitem(RULES, "ppermute", {}.__getitem__)  # which takes one argument, and not three
    right = found("ring_shift", collectives.ring_shift, "value", "simulate", 40)
    assert right.violation is None, str(right.violation)
    (reason,) = right.tally.instead
    assert reason.startswith("the interpreter cannot run this program, for an error of its own (TypeError: ")
    case = example("ring_shift", MeshCase(("dp",), (2,)), "dp")
    wrong = user_implementation("ring_shift", returning(jnp.negative))
    with pytest.raises(LawViolation) as caught:
        judge(
            LAWS["value"], wrong, case, engine_named("simulate"), Tally("ring_shift", wrong.name, "value", "simulate")
        )
    assert caught.value.engine == "xla"


def raises_when_it_runs(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Fails in a callback, of which JAX's exception has no frame of JAX's when the program runs again."""

    def callback(block: Any) -> Any:
        raise ValueError("the callback fails")

    y = collectives.ring_shift(x, axis_name, offset=offset)
    return jax.pure_callback(callback, jax.ShapeDtypeStruct(y.shape, y.dtype), y)


def test_what_a_program_raises_while_it_runs_is_the_functions() -> None:
    """An exception of the running compiled program is a violation and no error of the suite."""
    wrong = found("ring_shift", raises_when_it_runs, "value", "xla", 5)
    assert wrong.violation is not None
    assert wrong.violation.finding.startswith("raises JaxRuntimeError: ")
    error = jax.errors.JaxRuntimeError("INTERNAL")
    assert not own(error)
