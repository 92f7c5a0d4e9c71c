"""What rounds too much is told by its line, where a program is right in double precision; and nothing else is."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from shardproof import check_program

ROWS: dict[str, Any] = {"arguments": ("n@data k",), "results": "n@data k", "dtypes": "float32"}


def shares(x: Any) -> Any:
    """What the programs mean."""
    return jax.nn.softmax(32 * x, -1)


def of_narrow_logits(x: Any, *, data: Any) -> Any:
    """What is raised to a power was of 16 bits."""
    narrow = (32 * x).astype(jnp.bfloat16)
    return jax.nn.softmax(narrow.astype(x.dtype), -1)


def of_narrow_logits_and_factors(x: Any, *, data: Any) -> Any:
    """Before that, what 16 bits hold is cast."""
    factor = jnp.asarray(32, jnp.bfloat16).astype(x.dtype)
    return jax.nn.softmax((factor * x).astype(jnp.bfloat16).astype(x.dtype), -1)


def narrow_at_the_end(x: Any, *, data: Any) -> Any:
    """The result was of 16 bits."""
    return shares(x).astype(jnp.float16).astype(x.dtype)


def of_another_base(x: Any, *, data: Any) -> Any:
    """Two is raised to a power, and what is 1 in any case is cast."""
    one = jnp.ones((), jnp.bfloat16).astype(x.dtype)
    return one * jnp.exp2(32 * x) / jnp.exp2(32 * x).sum(-1, keepdims=True)


def summed_narrowly(x: Any, *, data: Any) -> Any:
    """A sum over devices in 16 bits."""
    return jnp.tanh(lax.psum(jnp.sum(x, 0).astype(jnp.bfloat16), data).astype(x.dtype))


def scaled(x: Any, trifle: Any = 1e-5) -> Any:
    """Rows, divided by the root of their squares and a little more."""
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True) + trifle)


def scaled_by_a_narrow_trifle(x: Any, *, data: Any) -> Any:
    """What is added was of 16 bits, and so is a half, which they hold."""
    half = jnp.asarray(0.5, jnp.bfloat16).astype(x.dtype)
    return 2 * half * scaled(x, jnp.asarray(1e-5, jnp.bfloat16).astype(x.dtype))


def told(function: Any, reference: Any, **described: Any) -> str:
    """The report of a check."""
    with pytest.raises(AssertionError) as caught:
        check_program(function, reference, laws="value", max_examples=20, random_seed=5, **described)
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "line", "dtype"),
    [
        (of_narrow_logits, 2, "bfloat16"),
        (of_narrow_logits_and_factors, 3, "bfloat16"),
        (narrow_at_the_end, 2, "float16"),
    ],
)
def test_the_cast_is_told(function: Any, line: int, dtype: str) -> None:
    """By its line, in a function that is right in double precision."""
    number = function.__code__.co_firstlineno + line
    place = rf"convert_element_type at test_narrowing.py:{number}:\d+ \({function.__name__}\)"
    text = told(function, shares, **ROWS)
    assert re.search(rf"rounded too much: .*; {place} rounds to {dtype}$", text, re.MULTILINE), text


def test_a_cast_before_a_sum_is_told() -> None:
    """Of a result that is not sharded, too."""
    described = {**ROWS, "results": "k"}
    text = told(summed_narrowly, lambda x: jnp.tanh(x.sum(0)), **described)
    place = r"(convert_element_type|psum) at test_narrowing.py:\d+:\d+ \(summed_narrowly\)"
    assert re.search(rf"rounded too much: .*; {place} rounds to bfloat16$", text, re.MULTILINE), text


def test_what_is_wrong_in_double_precision_is_no_rounding() -> None:
    """Another formula is one, whatever is cast in it."""
    assert "rounded too much" not in told(of_another_base, shares, **ROWS)


@pytest.mark.lengthy
def test_a_constant_that_was_rounded_is_told_by_its_line() -> None:
    """What is off by less than float32 rounds, since a constant was of 16 bits: where it is used."""
    line = scaled.__code__.co_firstlineno + 2
    report = told(scaled_by_a_narrow_trifle, scaled, **ROWS)
    place = rf"\w+ at test_narrowing.py:{line}:\d+ \(scaled\)"
    assert re.search(f"another constant: 1.001e-05, in {place}, may have been rounded to bfloat16; ", report), report
