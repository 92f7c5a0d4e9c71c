"""Verdicts: unsupported, not run and excused cases are distinguished from those that held, on either engine."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import find
from jax import Array, lax
from jax.experimental import pallas as pl

from shardproof import check
from shardproof.impl import collectives
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.cases.chain import Chain
from shardproof.properties.cases.strategies import Chains
from shardproof.properties.contracts import CONTRACTS, Scope
from shardproof.properties.engines import ENGINES, engine_named
from shardproof.properties.engines.simulate import RULES
from shardproof.properties.known_defects import DEFECTS
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.law import LawViolation, Verdict
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.expectation import Overlap
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import SuiteError
from shardproof.properties.report.summary import merge_similar, verdict_row
from shardproof.properties.runner import search
from shardproof.properties.runner.given import user_implementation
from shardproof.properties.runner.judging import MAX_UNSUPPORTED, judge, own, require_held
from shardproof.properties.runner.search import Finding, find_violation
from shardproof.properties.runner.stated import GivenError, split_names
from shardproof.properties.runner.tally import HeldOnNothing, Tally

Function = Callable[..., Any]
SMALL = Scope(max_devices=4, available=4, large=24)


def hiding(contract: str, function: Function) -> Implementation:
    """A user's function with a claim of overlap, so that every law applies."""
    return dataclasses.replace(user_implementation(contract, function), overlap=Overlap("0"))


def found(
    contract: str,
    function: Function,
    law: str,
    engine: str,
    examples: int,
    patience: int = MAX_UNSUPPORTED,
    chain: Chain | None = None,
) -> Finding:
    """The finding of a law on a function, under one chain if that is given."""
    return find_violation(
        [LAWS[law]],
        hiding(contract, function),
        engine_named(engine),
        dataclasses.replace(SMALL, chains=Chains(only=chain)),
        max_examples=examples,
        random_seed=1,
        shrink=False,
        patience=patience,
    )


def first_engine(law: str, contract: str) -> str:
    """The first engine on which a law has something to ask of a user's function."""
    return next(engine for engine in ENGINES if LAWS[law].applies_to(hiding(contract, declines), engine))


def declines(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Supports nothing."""
    raise NotImplementedError("nothing is supported")


def claims(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Raises what JAX says of a loop, and is its own."""
    raise ValueError("Reverse-mode differentiation does not work for lax.while_loop")


def few(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """Supports two dtypes of fifteen."""
    if x.dtype not in (jnp.float32, jnp.int32):
        raise NotImplementedError("only float32 and int32")
    return collectives.ring_shift(x, axis_name, offset=offset)


@pytest.mark.lengthy
@pytest.mark.parametrize("law", LAWS)
def test_what_supports_nothing_does_not_pass(law: str) -> None:
    """A function that raises only NotImplementedError passes no law, and a partial law does not apply to it."""
    finding = found("ring_shift", declines, law, first_engine(law, "ring_shift"), 2, patience=40)
    assert finding.violation is None
    assert finding.tally.structures == 0
    assert sum(finding.tally.unsupported.values()) <= 40
    implementation = user_implementation("ring_shift", declines)
    why = r"\d+ unsupported \(NotImplementedError: nothing is supp"
    if LAWS[law].partial:
        assert re.search(
            f"does not apply: every case was declined: {why}", require_held(LAWS[law], implementation, finding.tally)
        )
        return
    with pytest.raises(HeldOnNothing, match=f"held on no case: {why}"):
        require_held(LAWS[law], implementation, finding.tally)


def test_a_mesh_to_estimate_on_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a violation the other laws are searched again, on meshes up to the same size."""
    drawn: list[Any] = []

    def draw(strategy: Any, *args: Any, **more: Any) -> Any:
        drawn.append(strategy)
        return find(strategy, *args, **more)

    monkeypatch.setattr(search, "find", draw)
    one, again = (search.probe(user_implementation("global_norm", declines), (8,)) for _ in range(2))
    assert one is again is not None
    assert len(drawn) == 1


def test_words_of_an_exception_declare_nothing() -> None:
    """NotImplementedError alone declares a case unsupported, whatever other exceptions say."""
    for law in ("value", "gradient"):
        finding = found("ring_shift", claims, law, "simulate", 2)
        assert finding.violation is not None
        assert "raises ValueError: Reverse-mode" in finding.violation.finding


@pytest.mark.lengthy
def test_what_supports_few_is_reported_with_the_share() -> None:
    """Unsupported cases are replaced by other draws, and the summary has their share and reasons."""
    summary = check("ring_shift", few, laws=(name for name in ("value", "error")), max_examples=10)
    assert [(tally.law, tally.engine) for tally in summary.tallies] == [
        ("value", "simulate"),
        ("value", "xla"),
        ("error", "simulate"),
    ]
    values, compiled, errors = (tally.structures for tally in summary.tallies)
    assert (values, compiled) == (10, 3)
    assert 1 <= errors <= 10
    text = str(summary)
    assert "law    engine    outcome  held" in text
    assert "unsupported: ring_shift[few]: NotImplementedError: only float32 and int32, " in text
    assert "supports few: ring_shift[few]: value (simulate): " in text


def test_reasons_that_differ_in_their_values_are_one() -> None:
    """Reasons that differ only in values are counted as one, and other reasons separately."""
    counted = {
        "f: axis_name=('dp', 'sp'): expected 1, on the mesh (dp=1, sp=4)": 3,
        "f: axis_name='dp': expected 1 axis": 1,
        "f: axis_name=('tp',): expected 1, on the mesh (tp=5)": 2,
    }
    first, other, _ = counted
    assert merge_similar(counted) == [(first, 2, 5), (other, 1, 1)]


def test_no_laws_are_distinguished_from_all() -> None:
    """An empty choice of laws is refused, and None means all laws and no claims."""
    for laws in ((), ""):
        with pytest.raises(ValueError, match=r"laws=\(\): expected some of value, "):
            check("ring_shift", few, laws=laws)
    assert split_names("laws", None, LAWS) == tuple(LAWS)
    summary = check("ring_shift", few, laws="value, error", claims=None, max_examples=1)
    assert {tally.law for tally in summary.tallies} == {"value", "error"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_examples": 0}, "max_examples=0: expected a whole number, at least 1"),
        ({"max_examples": 2.5}, "max_examples=2.5: expected a whole number, at least 1"),
        ({"max_examples": True}, "max_examples=True: expected a whole number, at least 1"),
        ({"laws": 7}, "laws=7: expected a name, some names, or None for the default"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_check_is_named(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument of `check` is refused before anything runs, with its value and what was expected."""
    with pytest.raises(GivenError, match=f"^{re.escape(message)}$"):
        check("ring_shift", few, **arguments)


def test_a_function_in_the_contracts_place_is_reported() -> None:
    """Swapped contract and function are reported as such."""
    with pytest.raises(GivenError, match=r"^contract=<function few .*: expected the contract's name first, and the"):
        check(few, "ring_shift")  # type: ignore[arg-type]


def returning(change: Function) -> Function:
    """A ring shift whose right result is changed."""
    return lambda x, axis_name, *, offset=1: change(collectives.ring_shift(x, axis_name, offset=offset))


RESULTS = {
    "nothing": (lambda y: None, "returns None: expected an array"),
    "no result": (lambda y: (), r"returns \(\): expected an array"),
    "a list": (lambda y: [y], r"returns \[\w+\[[\d,]*\]\]: expected an array"),
    "a dict": (lambda y: {"a": y}, r"returns \{a: \w+\[[\d,]*\]\}: expected an array"),
    "one too many": (lambda y: (y, y), r"returns \((\w+\[[\d,]*\]), \1\): expected an array"),
    "no array": (lambda y: "y", "returns str: expected an array"),
    "no dimension": (
        lambda y: y.reshape(y.shape[1:]) if y.ndim and y.shape[0] == 1 else y,
        r"result has blocks of shape \([\d, ]*\): expected \([\d, ]+\)",
    ),
    "a dimension more": (lambda y: y[None], r"result has blocks of shape \(1, [\d, ]*\): expected \([\d, ]*\)"),
    "another dtype": (lambda y: y.astype(jnp.complex64), r"result has dtype complex64: expected \w+"),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("law", ["value", "type", "communication"])
def test_results_have_the_right_tree_shapes_and_dtypes_first(law: str, name: str) -> None:
    """Every law compares tree, shapes and dtypes of results before their numbers."""
    change, words = RESULTS[name]
    finding = found("ring_shift", returning(change), law, "simulate", 100, chain=())
    assert finding.violation is not None
    assert re.fullmatch(words, finding.violation.finding)


def test_a_defect_is_of_its_versions_and_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect excuses only in its versions of JAX and on its platform."""
    lost, negative = DEFECTS["pmax_loses_nan"], DEFECTS["negative_scatter_dimension"]
    xla, simulate = engine_named("xla"), engine_named("simulate")
    for version, both, one in (("0.10.1", False, False), ("0.10.2", True, True), ("0.11.0", True, False)):
        monkeypatch.setattr(jax, "__version__", version)
        assert lost.is_in(xla) == both
        assert negative.is_in(xla) == one
        assert not lost.is_in(simulate)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not lost.is_in(xla)


def loops(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """A ring shift in a while_loop, which JAX differentiates in forward mode alone."""

    def once(state: tuple[int, Array]) -> tuple[int, Array]:
        return state[0] + 1, collectives.ring_shift(state[1], axis_name, offset=offset)

    x = collectives.cast_varying(x, (axis_name,) if isinstance(axis_name, str) else axis_name)
    return lax.while_loop(lambda state: state[0] < 1, once, (0, x))[1]


def tripled_tangent(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """The shift in a while_loop, of which the tangents are three times too large."""
    y = loops(x, axis_name, offset=offset)
    return y if not jnp.issubdtype(y.dtype, jnp.inexact) else 3 * y - lax.stop_gradient(2 * y)


@pytest.mark.lengthy
def test_each_mode_of_differentiation_is_checked_where_it_exists() -> None:
    """A while_loop is checked in forward mode alone, and a wrong tangent of one is reported."""
    right = found("ring_shift", loops, "gradient", "simulate", 40)
    assert right.violation is None
    assert right.tally.structures == right.tally.drawn_structures >= 10
    wrong = found("ring_shift", tripled_tangent, "gradient", "simulate", 100)
    assert wrong.violation is not None
    assert "tangent (forward mode)" in wrong.violation.finding


@pytest.mark.lengthy
def test_an_error_of_the_suite_hides_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that fails by itself is reported with the violations of the laws before and after it."""

    def fails(*ignored: object) -> Verdict:
        raise SuiteError("the oracle fails, an error of this suite")

    monkeypatch.setitem(LAWS, "type", dataclasses.replace(LAWS["type"], check=fails))
    with pytest.raises(AssertionError) as caught:
        check("ring_shift", claims, laws=["value", "type", "error"], max_examples=4)
    text = str(caught.value)
    assert "raises ValueError: Reverse-mode" in text
    assert "ring_shift[claims]: type (simulate): the oracle fails, an error of this suite" in text
    assert "error " in text.partition("law    engine")[2]


def test_a_law_that_ran_on_nothing_is_not_called_held() -> None:
    """The table says `not run` or `excused` of a law without a case that held."""
    tally = Tally("ring_shift", "mine", "value", "simulate")
    assert verdict_row(tally)[2] == "not run"
    tally.structures = 1
    assert verdict_row(tally)[2] == "held"
    assert verdict_row(dataclasses.replace(tally, structures=0, defects={"empty_product": 7}))[2] == "excused"


def first_waits(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
    """The first participant waits for the others at a sum in which they have no part."""
    y = collectives.ring_shift(x, axis_name, offset=offset)

    def waits() -> Array:
        return lax.optimization_barrier((y, lax.psum(jnp.zeros(()), axis_name)))[0]

    return lax.cond(lax.axis_index(axis_name) == 0, waits, lambda: y)


def test_what_the_interpreter_finds_stuck_is_not_run() -> None:
    """A program that deadlocks in the interpreter is reported and not run compiled."""
    with pytest.raises(AssertionError, match="CollectiveMismatch") as caught:
        check("ring_shift", first_waits, max_examples=20, laws=["value", "type"])
    assert "\nnot run on xla, since devices would wait for one another for ever" in str(caught.value)
    assert not re.search(r"\n\w+ +xla ", str(caught.value))


def test_nothing_is_run_that_the_interpreter_finds_stuck() -> None:
    """A check of the compiled program alone reports a deadlock without running it."""
    finding = found("ring_shift", first_waits, "value", "xla", 10)
    assert finding.violation is not None
    assert finding.violation.kind == "deadlock"


def test_what_ends_by_time_says_how_far_it_came() -> None:
    """A check ends when its seconds are spent, and its summary says after how many structures."""
    summary = check("ring_shift", collectives.ring_shift, max_examples=10_000, max_seconds=3)
    assert re.search(r"\nsimulate: max_seconds=3 ended it after [1-9]\d* of at most 20000 structures\n", str(summary))
    with pytest.raises(
        AssertionError, match=r"(?s)not checked: the time was spent.*\nvalue +simulate +not checked +0 "
    ):
        check("ring_shift", collectives.ring_shift, max_seconds=1e-9)
    with pytest.raises(GivenError, match=r"^max_seconds=0: expected None, or a number of seconds above 0$"):
        check("ring_shift", collectives.ring_shift, max_seconds=0)


def test_every_function_is_drawn_cases_of_its_own() -> None:
    """Without a seed the cases are the same in every run, and others for another function."""

    def drawn_by(contract: str, function: Function) -> list[str]:
        cases: list[str] = []

        def note(law: Any, case: Any) -> str:
            cases.append(str(case))
            return ""

        mine, engine = user_implementation(contract, function), engine_named("simulate")
        find_violation([LAWS["value"]], mine, engine, SMALL, max_examples=6, before=note)
        return cases

    def other(x: Array, axis_name: Any, *, offset: int = 1) -> Array:
        return collectives.ring_shift(x, axis_name, offset=offset)

    first, again, others = (drawn_by("ring_shift", f) for f in (collectives.ring_shift, collectives.ring_shift, other))
    assert first == again
    assert len({*first} & {*others}) < len({*first})


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
