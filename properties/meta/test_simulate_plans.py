"""A plan that leaves steps out computes what the one does that takes all of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.simulate.plans import plan_of
from shardproof.properties.precision.wide.run import run_wide

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def counts(function: Any, *arrays: np.ndarray) -> dict[str, int]:
    """How many steps each plan of a function takes; all of them have the same results."""
    closed = jax.make_jaxpr(function)(*arrays)
    return {how: len(plan_of(closed, how).steps) for how in ("traced", "short", "live")}


def test_a_call_is_replaced_by_what_it_calls() -> None:
    """Three calls of which two do the same are two sums; what nobody reads is left out where results are all."""

    @jax.jit
    def total(x: Any) -> Any:
        return jnp.sum(x)

    def function(x: Any) -> Any:
        total(-x)  # nobody reads it
        return total(x) + total(x)

    assert counts(function, X) == {"traced": 5, "short": 4, "live": 2}


def test_what_depends_on_nothing_is_known_beforehand() -> None:
    """Numbers in a row, and a mask of them, are computed once for all data sets."""

    def function(x: Any) -> Any:
        return jnp.where(lax.iota(jnp.int32, 3) > 1, x, 0)

    plan = plan_of(jax.make_jaxpr(lambda x: lax.select(lax.iota(jnp.int32, 3) > 1, x, -x))(X[0]), "short")
    assert [step.equation.primitive.name for step in plan.first] == ["iota", "gt"]
    assert [step.equation.primitive.name for step in plan.steps] == ["neg", "select_n"]
    program = prepare(function, jax.ShapeDtypeStruct((3,), np.float32))
    for x in X:
        assert np.asarray(program.run(x)).tolist() == [0, 0, x[2]]


def test_different_constants_are_told_apart() -> None:
    """Zeros of two signs, and equal numbers of two dtypes, are different constants."""

    def function(x: Any) -> Any:
        return lax.div(x, x * 0 + np.float32(0.0)), lax.div(x, x * 0 - np.float32(0.0)), x.astype(np.int32) * 1, x * 1.0

    x = np.ones(1, np.float32)
    results = [np.asarray(one) for one in prepare(function, jax.ShapeDtypeStruct((1,), np.float32)).run(x)]
    assert [one.dtype.kind for one in results] == ["f", "f", "i", "f"]
    signed = prepare(lambda x: (x * 0.0, x * -0.0), jax.ShapeDtypeStruct((1,), np.float32)).run(x)
    assert [bool(np.signbit(one[0])) for one in signed] == [False, True]


def test_a_recorded_run_takes_every_step() -> None:
    """Collectives whose result nobody reads, or that are done twice, are counted, since they are in the program."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def local(x: Any) -> Any:
        lax.psum(-x, "x")
        return lax.psum(x, "x") + lax.psum(x, "x")

    program = prepare(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P()), X)
    result, record = program.run_recorded(X)
    assert record.count("all_reduce") == 3
    assert np.array_equal(result, program.run(X))
    (wide,) = run_wide(program, X)
    assert np.array_equal(wide.value, result)


def test_devices_that_part_take_every_step() -> None:
    """Where devices go different ways their branches are as they were traced, and give what they gave."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def local(x: Any) -> Any:
        first = lax.axis_index("x") == 0
        return lax.cond(first, lambda x: jnp.sum(x) + jnp.sum(x) + x, lambda x: x * 2, x)

    program = prepare(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")), X)
    expected = np.stack([X[0] + 2 * X[0].sum(), X[1] * 2])
    assert np.array_equal(np.asarray(program.run(X)), expected)
    assert np.array_equal(run_wide(program, X)[0].value, expected)
