"""Functions that are right only up to a relation: a predicate of whole results is checked on both engines."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof.properties.contracts.described import Array
from shardproof.properties.meta.runs import python
from shardproof.properties.report.checking import check_program

pytestmark = pytest.mark.untyped

KEY = Array("2", "uint32")


def noise(key: Any, *, data: Any) -> Any:
    """A row of noise for each participant."""
    return jax.random.uniform(jax.random.fold_in(key, lax.axis_index(data)), (1, 4))


def repeated_noise(key: Any, *, data: Any) -> Any:
    """The same row for all of them."""
    return jax.random.uniform(jax.random.fold_in(key, lax.axis_index(data) // 2), (1, 4))


def rows_differ(y: Any, key: Any) -> bool:
    """No two rows are the same."""
    assert len(np.unique(y, axis=0)) == len(y), "participants have the same noise"
    return bool((y >= 0).all() and (y < 1).all())


def tall_qr(x: Any, *, data: Any, number: Callable[[Any], Any] = lax.axis_index) -> Any:
    """The QR decomposition of a tall matrix: one of each block, then one of what is left of them."""
    local, triangle = jnp.linalg.qr(x)
    other, triangle = jnp.linalg.qr(lax.all_gather(triangle, data, tiled=True))
    return local @ lax.dynamic_slice_in_dim(other, 2 * number(data), 2), triangle


def first_part_alone(x: Any, *, data: Any) -> Any:
    """Has each device use the part of the first one."""
    return tall_qr(x, data=data, number=lambda data: 0)


def is_a_qr(results: Any, x: Any) -> bool:
    """Q is orthogonal, R a triangle, and their product the matrix, whatever the signs are."""
    q, r = results
    assert np.allclose(q @ r, x, atol=1e-4), "Q R is not X"
    return np.allclose(q.T @ q, np.eye(2), atol=1e-4) and np.allclose(r, np.triu(r))


def two_largest(x: Any, *, data: Any, first: Callable[[Any], Any] = lax.axis_index) -> Any:
    """The two largest numbers and where they are, in some order."""
    values, at = lax.top_k(x, 2)
    every = lax.all_gather((values, at + first(data) * x.shape[0]), data, tiled=True)
    values, chosen = lax.top_k(every[0], 2)
    return values, every[1][chosen]


def local_places(x: Any, *, data: Any) -> Any:
    """Leaves out where each block begins."""
    return two_largest(x, data=data, first=lambda data: 0)


def are_largest(results: Any, x: Any) -> bool:
    """They are the numbers at different places, and none is larger."""
    values, at = results
    return len({*at}) == 2 and bool((x[at] == values).all() and (np.sort(values) == np.sort(x)[-2:]).all())


def sampled(logits: Any, key: Any, *, data: Any) -> Any:
    """A token, drawn by the logits of all participants."""
    noisy = logits + jax.random.gumbel(jax.random.fold_in(key, lax.axis_index(data)), logits.shape, logits.dtype)
    best, tokens = lax.all_gather((noisy.max(), _own_token(noisy, data)), data)
    return tokens[best.argmax()]


def sampled_by_each(logits: Any, key: Any, *, data: Any) -> Any:
    """A token of its own on every participant."""
    return _own_token(logits, data)


def _own_token(logits: Any, data: Any) -> Any:
    return (logits.argmax() + lax.axis_index(data) * logits.shape[0]).astype(jnp.int32)


def is_a_token(token: Any, logits: Any, key: Any) -> bool:
    """It is one of those that there are."""
    return 0 <= token < len(logits)


QR: dict[str, Any] = {
    "arguments": (Array("m@data 2", "float32"),),
    "results": ("m@data 2", "2 2"),
    "multiples": {"m": 2},
}
LARGEST: dict[str, Any] = {"arguments": ("n@data",), "results": ("2", Array("2", "int32")), "multiples": {"n": 2}}
TOKEN: dict[str, Any] = {"arguments": ("v@data", KEY), "results": Array("", "int32")}
ROWS: dict[str, Any] = {"arguments": (KEY,), "results": "@data 4"}

RELATIONS: dict[str, tuple[Any, Any, Any, dict[str, Any], str]] = {
    "noise": (noise, repeated_noise, rows_differ, ROWS, "rows_differ does not hold: participants have the same noise"),
    "signs": (tall_qr, first_part_alone, is_a_qr, QR, "is_a_qr does not hold: Q R is not X"),
    "candidates": (two_largest, local_places, are_largest, LARGEST, "are_largest does not hold of the results"),
    "tokens": (sampled, sampled_by_each, is_a_token, TOKEN, "result: blocks differ along ('dp',), where"),
}


@pytest.mark.parametrize("name", RELATIONS)
def test_what_is_right_up_to_a_relation_passes(name: str) -> None:
    """Values and types hold on the interpreter, values on XLA; no law is asked that needs a reference."""
    function, _, holds, described, _ = RELATIONS[name]
    summary = check_program(function, holds=holds, **described, max_examples=16)
    held = [(tally.law, tally.engine) for tally in summary.tallies if tally.outcome == "passed"]
    assert held == [("value", "simulate"), ("value", "xla"), ("type", "simulate")]
    assert {tally.law for tally in summary.tallies} == {"value", "type", "communication"}
    assert "holds, which says nothing of gradients" in str(summary)


@pytest.mark.parametrize("name", RELATIONS)
def test_what_breaks_a_relation_is_reported_in_its_words(name: str) -> None:
    """The mesh is the smallest, and the words are the predicate's own; laws that follow from values are left out."""
    _, function, holds, described, words = RELATIONS[name]
    with pytest.raises(AssertionError) as raised:
        check_program(function, holds=holds, **described, max_examples=32)
    text = str(raised.value)
    assert text.startswith(f"{function.__name__}: value: mesh (dp=")
    assert words in text.partition("\n")[0]
    assert "more check" in text, "both engines are one cause"


def test_what_raises_on_both_engines_and_what_is_sent_is_reported() -> None:
    """Laws that need no reference are asked: what is sent, of what shape and dtype results are."""
    with pytest.raises(AssertionError, match=r"tall_qr: communication: .*1 all_gather .*: expected all_reduce=1"):
        check_program(tall_qr, holds=is_a_qr, **QR, communication="all_reduce=1", max_examples=8)
    with pytest.raises(AssertionError, match="result has dtype int32: expected float32"):
        check_program(sampled, holds=is_a_token, **TOKEN | {"results": Array("", "float32")}, max_examples=8)
    with pytest.raises(AssertionError, match=r"result has blocks of shape .*: expected"):
        check_program(noise, holds=rows_differ, **ROWS | {"results": "@data 5"}, max_examples=8)


def last_sum(x: Any, *, stage: Any) -> Any:
    """The sum, on the last participant alone."""
    return jnp.where(lax.axis_index(stage) == lax.axis_size(stage) - 1, lax.psum(x.sum(), stage), 7)


def test_results_of_one_participant_and_options_reach_the_predicate() -> None:
    """Other participants' results are ignored with `only`; options are passed as to the function."""
    described: dict[str, Any] = {"arguments": ("n@stage",), "results": Array("", only={"stage": -1})}

    def scaled(x: Any, *, stage: Any, by: float) -> Any:
        return by * last_sum(x, stage=stage)

    def is_near(y: Any, x: Any, by: float) -> bool:
        return np.allclose(float(y), by * x.astype(float).sum(), atol=0.5)

    check_program(scaled, holds=is_near, **described, options={"by": (1.0, 2.0)}, max_examples=12, laws="value")
    with pytest.raises(AssertionError, match="does not hold"):
        check_program(last_sum, holds=lambda y, x: y == 7, **described, max_examples=12, laws="value")


def test_the_script_of_a_relation_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has the function and its predicate, whose local names are none of the module's, and exits with 1."""
    monkeypatch.chdir(tmp_path)

    def rows(key: Any, *, data: Any) -> Any:
        ROWS = jax.random.uniform(key, (1, 4))  # noqa: N806 (a name that the module has as well)
        return lax.pcast(ROWS, data, to="varying")

    def differ(y: Any, key: Any) -> bool:
        return len(np.unique(y, axis=0)) == len(y)

    with pytest.raises(AssertionError, match="differ does not hold of the results") as raised:
        check_program(rows, holds=differ, **ROWS, max_examples=16, laws="value")
    script = re.search(r"\n  python (\S+\.py)", str(raised.value))
    assert script is not None
    ended = python(tmp_path / script[1])
    assert (ended.returncode, "differ does not hold of the results" in ended.stdout) == (1, True), ended.stderr


def test_a_predicate_that_says_nothing_is_refused() -> None:
    """A predicate that returns no bool, or raises another exception, is at fault, and not the function."""
    for holds, words in (
        (lambda y, key: None, "the predicate fails: .*TypeError: <lambda> returns None: expected True or False"),
        (lambda y, key: y.no_such_attribute, "the predicate fails: .*AttributeError"),
    ):
        with pytest.raises(AssertionError, match=words) as raised:
            check_program(noise, holds=holds, **ROWS, max_examples=2)
        first, *others = str(raised.value).splitlines()
        assert "the predicate fails: " in first
        assert len(others) < 10, others


def sum_and_double(x: Any, *, data: Any) -> Any:
    """The sum of all elements, and twice each of them."""
    return lax.psum(x.sum(), data), 2 * x


@pytest.mark.parametrize(
    ("holds", "accepted"),
    [
        (lambda y, x: True, "result[0], result[1]"),
        (lambda y, x: bool(np.allclose(y[0], x.sum(), atol=1e-3)), "result[1]"),
        (lambda y, x: bool(np.allclose(y[0], x.sum(), atol=1e-3) and np.allclose(y[1], 2 * x)), ""),
    ],
)
def test_a_predicate_that_refuses_nothing_is_reported(holds: Any, accepted: str) -> None:
    """Results are changed, one at a time, and those that the predicate never missed are in the summary."""
    described: Any = {"arguments": (Array("n@data", "float32"),), "results": ("", "n@data"), "laws": "value"}
    text = str(check_program(sum_and_double, holds=holds, **described, max_examples=6))
    (line,) = [line for line in text.splitlines() if line.startswith("says nothing: ")] or [""]
    assert ("the predicate of holds= never refused a result that was changed" in line) is bool(accepted)
    assert re.sub(r" \(\d+ structures?\)", "", line.rpartition(": ")[2]) == accepted
