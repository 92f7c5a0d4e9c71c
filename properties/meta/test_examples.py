"""The functions of the page of examples hold as they stand there, and are reported with a bug."""

import re
from typing import Any

import pytest

from shardproof.properties.meta.brief import marked
from shardproof.properties.meta.pages import EXAMPLES_PAGE, block
from shardproof.properties.report.checking import check_program
from shardproof.properties.runner.programs import Program

BUGS = {
    "swiglu": ("x @ gate) * (x @ up)) @ down, model", "x @ up) * (x @ gate)) @ down, model"),
    "ring_attention": ("out * rescale[:, None]", "out"),
    "experts": ("lax.axis_index(expert) * len(w) + ", ""),
    "fsdp": ("lax.psum_scatter(x.T @ cotangent", "lax.psum_scatter(x.T @ cotangent / lax.axis_size(data)"),
    "recurrence": ("local + decay * before", "local + before"),
    "halo": ("for i in range(p - 1)]", "for i in range(-1, p - 1)]"),
    "batch_norm": ("((x - mean) ** 2).mean(0)", "x.var(0)"),
    "cross_entropy": ("lax.axis_index(model) * logits.shape[1] + ", ""),
    "train_step": ("return unsharded(weights", "return unsharded(jax.tree.map(jnp.abs, weights)"),
    "dropout": ("jax.random.fold_in(key, lax.axis_index(data))", "jax.random.fold_in(key, 0)"),
}
"""The change in the text of each: its first occurrence."""


def described(text: str) -> Program:
    """The program that the text of an example describes."""
    its: dict[str, Any] = {}
    exec(text, its)  # noqa: S102
    (program,) = [value for value in its.values() if isinstance(value, Program)]
    return program


@pytest.mark.parametrize("name", marked(BUGS, ["swiglu", "halo", "train_step"]))
def test_an_example_holds(name: str) -> None:
    """Every law that applies holds."""
    summary = check_program(described(block(EXAMPLES_PAGE, name, "python")), max_examples=4, random_seed=1)
    assert "violated" not in str(summary)


@pytest.mark.parametrize("name", marked(BUGS, ["experts", "fsdp", "cross_entropy"]))
def test_an_example_with_a_bug_is_reported(name: str) -> None:
    """A bug in an example is reported."""
    text, (old, new) = block(EXAMPLES_PAGE, name, "python"), BUGS[name]
    assert old in text
    says = "every wrong block holds 1/2 of the right values" if name == "fsdp" else r"(value|gradient): mesh \("
    with pytest.raises(AssertionError, match=says):
        check_program(described(text.replace(old, new, 1)), max_examples=10, random_seed=1)


def test_every_example_is_run() -> None:
    """Each block of the page has a bug here."""
    marks = re.findall(r"^<!-- (\w+) -->$", EXAMPLES_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert marks == [*BUGS]
