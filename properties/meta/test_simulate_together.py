"""Data sets that are run together in double precision have the results of data sets that are run one by one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import prepare
from shardproof.properties.precision.arithmetic import Doubles
from shardproof.properties.precision.runs import run_samples
from shardproof.properties.report.diagnosis.changes import run_in_doubles

MESH = AbstractMesh((2, 3), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
ROWS = 6


def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of blocks `[3, 1]`, on global arrays `[6, 3]`."""
    return jax.shard_map(function, mesh=MESH, in_specs=P("x", "y"), out_specs=P("x", "y"))


def until_all_are_small(x: Any) -> Any:
    """As many steps as the largest element of all devices needs."""
    return lax.while_loop(lambda x: lax.pmax(jnp.abs(x).max(), ("x", "y")) > 1, lambda x: x / 2, x)


def by_own_sign(x: Any) -> Any:
    """Rows of devices take different branches, as their data says; columns are connected in each."""
    index = (lax.psum(x.sum(), "y") > 0).astype(int)
    return lax.switch(index, [lambda x: lax.ppermute(x, "y", [(0, 1), (1, 2)]), lambda x: x - lax.psum(x, "y")], x)


def in_order(x: Any) -> Any:
    """The order of elements decides what is added up where."""
    values, places = lax.top_k(x[:, 0], 2)
    return x.at[places].add(values[:, None]) + jnp.sort(x, axis=0) + jnp.cumsum(x, axis=0)


def by_bits(x: Any) -> Any:
    """Halves of the bits, and integers that hang on roundings."""
    halves = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.float32).sum(axis=-1)
    return halves + (x / 3).astype(jnp.int32) + jnp.argmax(x * 3, axis=0).astype(jnp.float32)


def of_zeros(x: Any) -> Any:
    """The same for every data set."""
    return jnp.zeros_like(x) + lax.axis_index("x")


def in_part_unwritten(x: Any) -> Any:
    """Memory that is written over."""
    return lax.dynamic_update_slice(lax.pcast(lax.empty((3, 1), x.dtype), ("x", "y"), to="varying"), x, (0, 0))


def nested(x: Any) -> Any:
    """A `shard_map` inside of another."""
    inner = jax.shard_map(lambda x: x * lax.psum(x, "y"), in_specs=P(None, "y"), out_specs=P(None, "y"))
    outer = jax.shard_map(inner, mesh=MESH, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    return jax.jit(outer)(x)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "loop": on_mesh(until_all_are_small),
    "branches": on_mesh(by_own_sign),
    "order": on_mesh(in_order),
    "bits": on_mesh(by_bits),
    "the same": on_mesh(of_zeros),
    "unwritten": on_mesh(in_part_unwritten),
    "nested": nested,
    "softmax": on_mesh(lambda x: jnp.exp(x - lax.pmax(x, "y")) / lax.psum(jnp.exp(x), "y")),
    "gradient": jax.grad(lambda x: on_mesh(lambda x: jnp.tanh(x) * lax.psum(x, "x"))(x).sum()),
    "whole arrays": lambda x: (x @ x.T).sum(axis=0).reshape(3, 2),
}

SETS_OF_DATA = [
    np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32),
    np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32) * 100,
    np.arange(18, dtype=np.float32).reshape(ROWS, 3) - 9,
    np.zeros((ROWS, 3), np.float32),
    np.where(np.eye(ROWS, 3) > 0, np.nan, 1).astype(np.float32),
    np.where(np.eye(ROWS, 3) > 0, np.inf, -1).astype(np.float32),
]


def finite(name: str) -> list[list[np.ndarray]]:
    """The data sets that a program comes to an end with."""
    return [[x] for x in SETS_OF_DATA if name != "loop" or not np.isinf(x).any()]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "loop"])
def test_doubles_of_one_are_those_that_it_has_alone(name: str) -> None:
    """A data set has the same results together with others as alone."""
    program = prepare(PROGRAMS[name], SETS_OF_DATA[0]).live()
    sets = finite(name)
    for arrays, results in zip(sets, run_samples(program, sets, Doubles(), 1), strict=True):
        for one, other in zip(results, run_in_doubles(program, *arrays), strict=True):
            np.testing.assert_array_equal(one[0], other, strict=True)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_recorded_run_takes_every_step() -> None:
    """A recorded run counts collectives that are unused or repeated."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def local(x: Any) -> Any:
        lax.psum(-x, "x")
        return lax.psum(x, "x") + lax.psum(x, "x")

    program = prepare(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P()), X)
    result, record = program.run_recorded(X)
    assert len(record.collectives) == 3
    assert np.array_equal(result, program.run(X))
    (double,) = run_in_doubles(program, X)
    assert np.array_equal(double, result)
