"""Statements about precision are heeded: dtypes of results, where sums are carried, what is off by design."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardproof import Array, Program, check_program
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.laws import LAWS
from shardproof.properties.report.failures.files import record
from shardproof.properties.report.scripts.script import script
from shardproof.properties.runner.search import find_violation

EXAMPLES = 6
LOSS: dict[str, Any] = {"arguments": ("k@data n",), "dtypes": "bfloat16", "max_examples": EXAMPLES, "laws": "value"}


def loss(x: Any, *, data: Any) -> Any:
    """The mean square of each column, in float32."""
    total = lax.psum(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=0), data)
    return total / lax.psum(x.shape[0], data)


def narrow_loss(x: Any, *, data: Any) -> Any:
    """The same in the dtype of the activations."""
    return loss(x, data=data).astype(x.dtype)


def whole_loss(x: Any) -> Any:
    """The same on whole arrays."""
    return jnp.mean(jnp.square(x), axis=0)


def test_the_dtype_of_a_result_is_what_it_is_described_as() -> None:
    """A float32 loss of bfloat16 activations is right where it is described so, and then no other one is."""
    check_program(loss, whole_loss, results=Array("n", "float32"), **LOSS)
    with pytest.raises(AssertionError, match="has dtype bfloat16: expected float32"):
        check_program(narrow_loss, whole_loss, results=Array("n", "float32"), **LOSS)
    check_program(narrow_loss, whole_loss, results="n", **LOSS)
    with pytest.raises(AssertionError, match="has dtype float32: expected bfloat16"):
        check_program(loss, whole_loss, results="n", **LOSS)


PRODUCT: dict[str, Any] = {
    "arguments": ("m k@model", "k@model n"),
    "results": "m n",
    "dtypes": "bfloat16",
    "multiples": {"k": 24},
    "max_examples": 20,
    "laws": ["value"],
}


def product(x: Any, w: Any, *, model: Any) -> Any:
    """Sums in float32."""
    return lax.psum(jnp.dot(x, w, preferred_element_type=jnp.float32), model).astype(x.dtype)


def rounded_product(x: Any, w: Any, *, model: Any) -> Any:
    """Rounds the sum of each device before it is sent."""
    return lax.psum(x @ w, model)


def in_a_ring(x: Any, w: Any, *, model: Any) -> Any:
    """Rounds the sum at every hop."""
    p = lax.axis_size(model)
    own = x @ w
    if p == 1:
        return own

    def step(total: Any, _: Any) -> tuple[Any, None]:
        return lax.ppermute(total, model, [(i, (i + 1) % p) for i in range(p)]) + own, None

    return lax.pmean(lax.scan(step, own, length=p - 1)[0], model)


def counting(x: Any, w: Any, *, model: Any) -> Any:
    """Adds up its columns one by one, in the dtype of the operands."""

    def step(total: Any, both: Any) -> tuple[Any, None]:
        return total + jnp.outer(*both), None

    zeros = jnp.zeros((x.shape[0], w.shape[1]), x.dtype)
    start = lax.pcast(zeros, model, to="varying")
    return lax.psum(lax.scan(step, start, (x.T, w))[0].astype(jnp.float32), model).astype(x.dtype)


def test_where_sums_are_rounded_before_they_are_sent_is_reported() -> None:
    """By the line, in the summary; with `accumulator` that is what breaks the law."""
    quiet = check_program(product, jnp.matmul, **PRODUCT)
    assert "part of a sum" not in str(quiet)
    output = str(check_program(rounded_product, jnp.matmul, **PRODUCT))
    assert "a part of a sum over devices is rounded to bfloat16, at" in output
    line = rounded_product.__code__.co_firstlineno + 2
    assert f"test_stated_precision.py:{line}" in output
    assert "may grow with the mesh" in output


def without_nan(x: Any, *, data: Any) -> Any:
    """The sum of the numbers, in a call of JAX's that has no line of the user's inside."""
    return lax.psum(jnp.nansum(x), data)


def test_the_line_of_what_is_inside_of_a_call_is_the_call_s() -> None:
    """JAX traces its own functions once, wherever they are called."""
    described: dict[str, Any] = {"arguments": ("n@data",), "results": "", "dtypes": ("bfloat16",), "gradients": False}
    output = str(check_program(without_nan, jnp.nansum, laws="value", max_examples=5, **described))
    assert f"test_stated_precision.py:{without_nan.__code__.co_firstlineno + 2}" in output


def average(mean: Any, x: Any, *, data: Any) -> Any:
    """A running mean in float32 of numbers of 16 bits."""
    return 0.999 * mean + 0.001 * x.astype(jnp.float32)


def rounded_average(mean: Any, x: Any, *, data: Any) -> Any:
    """The same, of which 16 bits are kept."""
    return (0.999 * mean).astype(x.dtype).astype(jnp.float32) + 0.001 * x.astype(jnp.float32)


def test_where_what_came_with_more_digits_is_rounded_is_reported() -> None:
    """By the line; not where the reference rounds, too."""
    arrays = Array("n@data", "float32"), Array("n@data", "bfloat16")
    described: dict[str, Any] = {"arguments": arrays, "results": arrays[0], "laws": "value", "max_examples": EXAMPLES}

    def reference(mean: Any, x: Any) -> Any:
        return average(mean, x, data="")

    def rounding_reference(mean: Any, x: Any) -> Any:
        return rounded_average(mean, x, data="")

    line = f"test_stated_precision.py:{rounded_average.__code__.co_firstlineno + 2}"
    assert "is rounded to" not in str(check_program(average, reference, **described))
    output = str(check_program(rounded_average, reference, **described))
    assert "float32 is rounded to bfloat16 at" in output
    assert line in output
    assert "is rounded to" not in str(check_program(rounded_average, rounding_reference, **described))


def gathered_product(x: Any, w: Any, *, model: Any) -> Any:
    """Adds up in float32 what devices have rounded."""
    return lax.pmean(lax.all_gather(x @ w, model).astype(jnp.float32).sum(0), model).astype(x.dtype)


@pytest.mark.parametrize(
    "function",
    [rounded_product, *(pytest.param(f, marks=pytest.mark.lengthy) for f in (gathered_product, in_a_ring, counting))],
    ids=lambda f: f.__name__,
)
def test_sums_are_carried_in_the_accumulator(function: Callable[..., Any]) -> None:
    """No part of one is rounded to fewer bits, on a device or between devices."""
    with pytest.raises(AssertionError, match=r"blocks wrong"):
        check_program(function, jnp.matmul, accumulator="float32", **PRODUCT)


def layers(x: Any, w: Any, v: Any, *, model: Any) -> Any:
    """Rounds hidden values, which have all of their terms."""
    hidden = jax.nn.relu(x @ w)
    return lax.psum(jnp.dot(hidden, v, preferred_element_type=jnp.float32), model).astype(x.dtype)


def test_what_is_rounded_between_two_sums_is_no_part_of_one() -> None:
    """A product that has all of its terms is rounded to its dtype, wherever sums are carried."""
    described = PRODUCT | {"arguments": ("m 40", "40 k@model", "k@model n")}
    check_program(layers, lambda x, w, v: jax.nn.relu(x @ w) @ v, accumulator="float32", **described)


SENT: dict[str, Any] = {
    "arguments": ("@data n",),
    "results": "n",
    "dtypes": "float32",
    "max_examples": EXAMPLES,
    "laws": "value",
}


def compressed(x: Any, *, data: Any, steps: float = 127.0) -> Any:
    """An all-reduce of bytes: each device sends magnitudes in steps of the largest, so that none cancel."""
    scale = lax.pmax(jnp.max(jnp.abs(x), initial=0), data) / steps
    scale = jnp.where(scale > 0, scale, 1)
    return lax.psum(jnp.round(jnp.abs(x[0]) / scale), data) * scale


def too_coarse(x: Any, *, data: Any) -> Any:
    """Has fewer steps."""
    return compressed(x, data=data, steps=7.0)


def too_coarse_in_float32(x: Any, *, data: Any) -> Any:
    """The same of any float."""
    return too_coarse(x.astype(jnp.float32), data=data)


def whole_sum(x: Any) -> Any:
    """The sum of magnitudes."""
    return jnp.sum(jnp.abs(x), axis=0)


def test_what_is_off_by_design_is_compared_with_how_far() -> None:
    """An all-reduce of bytes is within a few percent of the largest, and no farther, and is reported without a word."""
    summary = str(check_program(compressed, whole_sum, within=0.05, most_devices=8, **SENT))
    assert "within: 0.05 of the largest number of an array" in summary
    with pytest.raises(AssertionError, match="blocks wrong"):
        check_program(compressed, whole_sum, most_devices=8, **SENT)
    with pytest.raises(AssertionError, match="blocks wrong"):
        check_program(too_coarse, whole_sum, within=0.01, most_devices=8, **SENT)


ROWS: dict[str, Any] = {"arguments": ("rows@data n@model",), "results": "rows@data n@model", "dtypes": "float32"}


def nearly(x: Any, *, data: Any, model: Any, of_row: bool = True) -> Any:
    """Off by a thousandth of the largest number of each row, or of all."""
    largest = lax.pmax(jnp.max(jnp.abs(x), axis=1 if of_row else None, keepdims=True, initial=0), model)
    return x + 1e-3 * (largest if of_row else lax.pmax(largest, data))


def of_all(x: Any, *, data: Any, model: Any) -> Any:
    """Of all."""
    return nearly(x, data=data, model=model, of_row=False)


def test_what_may_be_far_off_by_design_is_compared() -> None:
    """Half of the largest number is no rounding: what is further off is reported, and nothing is undecided."""
    described: dict[str, Any] = {"arguments": ("@data n",), "results": "n", "within": 0.5, "laws": "value"}
    described |= {"dtypes": "float32", "max_examples": EXAMPLES}
    with pytest.raises(AssertionError, match="blocks wrong"):
        check_program(lambda x, *, data: -3 * lax.psum(x, data)[0], lambda x: x.sum(0), **described)
    assert "undecided" not in str(
        check_program(lambda x, *, data: 1.3 * lax.psum(x, data)[0], lambda x: x.sum(0), **described)
    )


def test_a_row_may_be_what_it_is_relative_to() -> None:
    """So that a row of small numbers is not lost beside a large one."""
    described = ROWS | {"max_examples": 40, "laws": "value"}
    check_program(nearly, lambda x: x, within=2e-3, relative_to="row", **described)
    check_program(of_all, lambda x: x, within=2e-3, **described)
    with pytest.raises(AssertionError, match="in double precision"):
        check_program(of_all, lambda x: x, within=1.01e-3, relative_to="row", **described)


def test_what_is_stated_is_in_what_a_failure_leaves_behind() -> None:
    """In its script, and in its JSON."""
    program = Program(
        too_coarse_in_float32,
        whole_sum,
        arguments=("@data n",),
        results=Array("n", "float32"),
        within=0.02,
        relative_to="row",
        accumulator="float32",
    )
    implementation = program.implementation
    scope = Scope(max_devices=4, available=4)
    found = find_violation([LAWS["value"]], implementation, SimulateEngine(), scope, max_examples=40)
    assert found.violation is not None
    text, content = script(found.violation), record(found.violation)
    for said in ("within: 0.02 of the largest number of each row", "accumulator: float32"):
        assert said in text
        assert said in str(found.violation)
        assert said in content["stated"]
