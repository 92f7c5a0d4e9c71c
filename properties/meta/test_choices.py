"""The choices of a function of which the runs took one side alone are named by the call that makes them."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Array, Program
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.laws import LAWS
from shardproof.properties.report.summary import Summary, weak_points
from shardproof.properties.runner.search import find_violation
from shardproof.properties.runner.tally import Tally


def one_sided(function: Any, *arrays: Any) -> list[str]:
    """The choices of a function with one side, where it is run on arrays, in words without their places."""
    program = prepare(function, *arrays)
    program.run(*arrays)
    tally = Tally("", "", "value", choices=program.choices.sides)
    return [f"{text.split('`')[1]}: {text.partition(') never ')[2]}" for text in tally.one_sided]


def many(x: Any, i: Any) -> list[Any]:
    """Choices of every kind: of the first of each pair, both sides are taken."""
    return [
        jnp.where(x > 1, x, 0), jnp.where(x > 5, x, jnp.where(x > 9, x, 0)),
        jnp.maximum(x, 1), jnp.maximum(x, -2),
        jnp.clip(x, 1, 2), jnp.clip(x, 0, 7), x.clip(2, 9), lax.clamp(-1.0, x, 1.0),
        lax.cond(i > 0, jnp.sin, jnp.cos, x),
        lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x),
        lax.fori_loop(i, 5, lambda _, y: y + 1, x), lax.fori_loop(i, 0, lambda _, y: y + 1, x),
        jax.tree.map(partial(jnp.where, x > 8), x, x),
        jnp.fmin(x, 9), jnp.select([x > 9, x > 1], [x, -x], 2), jnp.piecewise(x, [x > 9, x < 8], [abs, abs]),
        x * (x < 8), x * (x > 1)[:, None], jnp.where(True, x, 0), lax.cond(True, jnp.sin, jnp.cos, x),
        jnp.take(x, i), x[i], jnp.nan_to_num(x), jax.nn.relu(x + 1), jnp.linalg.norm(x),
    ]  # fmt: skip


def test_sides_of_every_kind_of_choice() -> None:
    """A choice is named by its call, if that is the user's, with the side that no number took."""
    assert one_sided(many, np.arange(4.0), 1) == [
        "jnp.where(x > 9, x, 0): had a true condition",
        "jnp.where(x > 5, x, jnp.where(x > 9, x, 0)): had a true condition",
        "jnp.maximum(x, -2): had a larger second operand",
        "jnp.clip(x, 0, 7): had a number below its lower bound or a number above its upper bound",
        "x.clip(2, 9): had a number above its upper bound",
        "lax.clamp(-1.0, x, 1.0): had a number below its lower bound",
        "lax.cond(i > 0, jnp.sin, jnp.cos, x): had a false condition",
        "lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x): had an index of 0 or an index of 2",
        "lax.fori_loop(i, 0, lambda _, y: y + 1, x): had a true condition",
        "jax.tree.map(partial(jnp.where, x > 8), x, x): had a true condition",
        "jnp.fmin(x, 9): had a smaller second operand",
        "jnp.select([x > 9, x > 1], [x, -x], 2): had condition 1 as the first true one",
        "jnp.piecewise(x, [x > 9, x < 8], [abs, abs]): had all conditions false or condition 1 as the first true one",
        "x * (x < 8): had a zero in its mask",
        "i > 0: had equal sides",
    ]


def test_sides_under_transformations() -> None:
    """A `cond` that `vmap` makes a selection has the sides of all calls, and a cached `where` those of its line."""

    def chosen(x: Any) -> Any:
        y = jnp.where(x > 1, x, 0)
        z = jnp.where(x > 7, x, 0)
        return lax.cond(x > 1, jnp.sin, jnp.cos, x) + lax.cond(x > 7, jnp.sin, jnp.cos, x) + jax.jit(chosen_too)(y) + z

    def chosen_too(y: Any) -> Any:
        return jax.grad(lambda y: jnp.where(y > 8, y, 0))(y)

    assert one_sided(jax.vmap(chosen), np.arange(4.0)) == [
        "jnp.where(x > 7, x, 0): had a true condition",
        "lax.cond(x > 7, jnp.sin, jnp.cos, x): had a true condition",
        "jnp.where(y > 8, y, 0): had a true condition",
    ]


def test_a_side_counts_where_a_device_executes_it() -> None:
    """What the devices of the other branch would choose is not a side that was taken."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def own(x: Any) -> Any:
        return lax.cond(x[0] > 0, lambda x: jnp.where(x > 0, x, 1), lambda x: x, x)

    assert one_sided(jax.shard_map(own, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")), np.arange(2.0)) == [
        "jnp.where(x > 0, x, 1): had a false condition"
    ]


def skips_by_its_own(w: Any, g: Any, *, data: Any) -> Any:
    """Each participant skips the step by its own gradient, where one that is not finite should stop all."""
    return lax.psum(jnp.where(jnp.isfinite(g).all(), w - g, w).sum(0), data)


def skips(w: Any, g: Any) -> Any:
    """The step, unless a gradient is not finite."""
    return jnp.where(jnp.isfinite(g).all(), w - g, w).sum(0)


def masked_mean(x: Any, mask: Any, *, data: Any) -> Any:
    """The mean of what is not masked."""
    count = jnp.maximum(lax.psum(mask.sum(), data), 1)
    return lax.psum(jnp.where(mask, x, 0).sum(), data) / count.astype(x.dtype)


def whole_masked_mean(x: Any, mask: Any) -> Any:
    """The mean of what is not masked, of whole arrays."""
    return jnp.where(mask, x, 0).sum() / jnp.maximum(mask.sum(), 1).astype(x.dtype)


def checked(function: Any, reference: Any, *arguments: Any, results: Any) -> Summary:
    """The summary of a few structures, interpreted."""
    program = Program(function, reference, arguments=arguments, results=results, dtypes=("float32",)).implementation
    found = find_violation([LAWS["value"]], program, SimulateEngine(), Scope(4, 4, large=0), max_examples=8)
    assert found.violation is None
    return Summary(program, (found.tally,))


def test_a_pass_that_saw_one_side_is_weak() -> None:
    """The summary of a wrong function that passes names its condition; data that goes both ways is not mentioned."""
    summary = checked(skips_by_its_own, skips, "batch@data n", "batch@data n", results="n")
    (line,) = (line for line in str(summary).split("\n") if line.startswith("one-sided: "))
    call, place = "`jnp.where(jnp.isfinite(g).all(), w - g, w)`", "(skips_by_its_own) never had a false condition"
    assert line.startswith(f"one-sided: skips_by_its_own: {call} at test_choices.py:")
    assert line.endswith(place)
    read = [Tally.from_json(json.loads(json.dumps(tally.to_json()))) for tally in summary.tallies]
    assert weak_points(read, 1)["choices with one side"] == [line.partition(": ")[2]]
    arrays = "batch@data", Array("batch@data", "bool")
    assert "one-sided" not in str(checked(masked_mean, whole_masked_mean, *arrays, results=""))


def test_a_comparison_that_never_had_equal_sides_is_mentioned() -> None:
    """Of a whole number with one of the source, where the reference may compare otherwise."""

    def reference(w: Any, step: Any) -> Any:
        return w.sum(0) * jnp.where(step > 500, 1, 2).astype(w.dtype)

    def warmed_up(w: Any, step: Any, *, data: Any) -> Any:
        return lax.psum(w.sum(0), data) * jnp.where(step >= 500, 1, 2).astype(w.dtype)

    summary = checked(warmed_up, reference, "n@data k", Array("", "int32", below=1000), results="k")
    (line,) = (line for line in str(summary).split("\n") if "equal sides" in line)
    assert line.startswith("one-sided: warmed_up: `step >= 500` at test_choices.py:")


def counts(ids: Any, *, data: Any) -> Any:
    """The numbers of each, by a function of JAX's that clips them."""
    return lax.psum(jnp.bincount(ids, length=4), data)


def test_what_a_function_of_jax_chooses_is_not_mentioned() -> None:
    """The user's line has no choice."""
    ids = Array("n@data", "int32", below=4)
    summary = checked(counts, lambda ids: np.bincount(ids, minlength=4), ids, results=Array("4", "int32"))
    assert "one-sided" not in str(summary)


@pytest.mark.parametrize(
    "function", [lambda x: lax.max(x, x[0]), lambda x: lax.clamp(x[0], x, x[1])], ids=["max", "clamp"]
)
def test_a_scalar_of_each_device_may_be_chosen(function: Any) -> None:
    """It is compared with all elements of the block."""
    mesh = jax.sharding.AbstractMesh((2,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))
    each = jax.shard_map(function, mesh=mesh, in_specs=jax.P("dp"), out_specs=jax.P("dp"))
    x = np.arange(6, dtype=np.float32)
    assert (prepare(each, x).run(x) == np.concatenate([function(half) for half in (x[:3], x[3:])])).all()


def whole_numbers(x: Any, *, data: Any) -> Any:
    """A sum over devices of numbers up to 100, in 8 bits."""
    return lax.psum(jnp.round(100 * jnp.tanh(x)).astype(jnp.int8).sum(0, dtype=jnp.int8), data)


def test_sums_that_wrap_as_the_reference_does_are_mentioned() -> None:
    """By the lines that add, where the interpreter sees it."""
    summary = checked(
        whole_numbers,
        lambda x: np.round(100 * np.tanh(x)).astype(np.int8).sum(0, dtype=np.int8),
        "n@data k",
        results=Array("k", "int8"),
    )
    found = [
        line for line in str(summary).split("\n") if line.startswith("finding: whole_numbers: a sum of int8 wraps")
    ]
    assert any("`lax.psum(" in line for line in found)
