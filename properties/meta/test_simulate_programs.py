"""The simulate engine's rules for calls, loops, branches and random numbers, against XLA on one device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call
from jax.sharding import PartitionSpec as P

from shardproof.properties.engines.simulate import prepare, simulate
from shardproof.properties.meta.test_simulate_arrays import block, distinct
from shardproof.properties.meta.test_simulate_elementwise import check, same


@jax.custom_vjp
def doubled_gradient(x: Any) -> Any:
    """The square of x, with twice its gradient."""
    return x * x


doubled_gradient.defvjp(lambda x: (x * x, x), lambda x, g: (4 * x * g,))


@jax.custom_batching.custom_vmap
def mapped_by_hand(x: Any) -> Any:
    """Twice x, with a batching rule."""
    return x * 2


@mapped_by_hand.def_vmap
def mapped_rule(axis_size: int, in_batched: Any, x: Any) -> Any:
    """Twice all of them."""
    return x * 2, True


def twice_in_turn(x: Any, indices: Any) -> Any:
    """A sum of rows, and another once that is known: what an integer has in the place of a derivative is passed on."""
    first = x[indices[0] % len(x)].sum()
    x, indices, first = lax.optimization_barrier((x, indices, first))
    return first * x[indices[1] % len(x)].sum()


CONTROL: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(lambda x: x + 1),
    "remat": jax.grad(lambda x: jax.checkpoint(lambda x: (x * x * x).sum())(x)),
    "remat of a loop": jax.grad(
        lambda x: jax.checkpoint(lambda x: lax.scan(lambda c, y: (c * y, c), x[0], x)[0].sum())(x)
    ),
    "custom_jvp": lambda x: jax.jvp(jax.nn.relu, (x,), (x * 2,)),
    "custom_vjp": jax.grad(lambda x: doubled_gradient(x).sum()),
    "custom_vjp, not differentiated": doubled_gradient,
    "custom_vmap": mapped_by_hand,
    "gradient beside an integer in branches": jax.grad(lambda x: lax.switch(1, [twice_in_turn] * 2, x, x.astype(int))),
    "composite": lax.composite(lambda x: x - 3, "shardproof.subtract"),
    "scan": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x),
    "scan backwards": lambda x: lax.scan(lambda c, y: (c + y, (c, y)), x[0], x, reverse=True),
    "scan of nothing": lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x[:0]),
    "scan with constants": lambda x: lax.scan(lambda c, y: (c + x[1], y @ x.T), x[0], x),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "map": lambda x: lax.map(lambda row: row.sum(), x),
    "fori_loop": lambda x: lax.fori_loop(0, 4, lambda i, c: c + x[i], x[0]),
    "gradient of a scan": jax.grad(lambda x: (lax.scan(lambda c, y: (c * y, c), x[0], x)[0]).sum()),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * c + 1, x),
    "vmapped while": lambda x: jax.vmap(
        lambda n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (jnp.float32(-4), n))
    )(x[0]),
    "cond": lambda x: lax.cond(x[0, 0] > 0, jnp.cos, lambda x: x * 0 + 1, x * 0),
    "switch": lambda x: [lax.switch(i, [lambda x: x, lambda x: -x, lambda x: x + 1], x) for i in (-1, 1, 9)],
    "gradient of a cond": jax.grad(lambda x: lax.cond(x[0, 1] > 0, lambda x: x * x, lambda x: x * 3, x).sum()),
    "platform_dependent": lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1),
    "linear_transpose": lambda x: jax.linear_transpose(lambda y: y @ x, x)(x),
    "linear_call": lambda x: linear_call(lambda r, y: y * r, lambda r, y: y * r, x[0], x),
    "debug_print": lambda x: [jax.debug.print("{}", x[0, 0] * 0), x][1],
    "debug_callback": lambda x: [jax.debug.callback(lambda _: None, x), x][1],
    "pure_callback": lambda x: jax.pure_callback(lambda a, b: (np.sort(a, 0), b + 1), (x, x[0]), x, x[0]),
    "mapped pure_callback": jax.vmap(lambda x: jax.pure_callback(np.flip, x, x, vmap_method="sequential")),
    "linearize": lambda x: jax.linearize(lambda y: y * y * y, x)[1](x + 1),
    "tanh's gradient, near 0": lambda x: jax.grad(lambda y: jnp.tanh(y).sum())(x * 0),
    "hessian": lambda x: jax.hessian(lambda y: (y * y * y).sum())(x[0]),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control(name: str) -> None:
    """Calls, loops and branches, and what transformations make of them, compute what they do under jit."""
    check(CONTROL[name], block(4, 4))


def test_a_callback_runs_for_every_device() -> None:
    """A function outside of JAX is called with each device's own block, and once for what all of them hold."""
    called = []

    def negated(block: Any) -> np.ndarray:
        called.append(np.asarray(block).tolist())
        return -np.asarray(block)

    mesh = jax.sharding.AbstractMesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    body = jax.shard_map(
        lambda x: jax.pure_callback(negated, x, x), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    assert simulate(body, np.arange(4.0, dtype=np.float32)).tolist() == [0, -1, -2, -3]
    assert called == [[0, 1], [2, 3]]


def test_control_in_a_fold() -> None:
    """A fold's function may loop and branch, element by element, where XLA:CPU aborts the process."""

    def loop(a: Any, b: Any) -> Any:
        return lax.while_loop(lambda c: c < b, lambda c: c + 2, a)

    def branch(a: Any, b: Any) -> Any:
        return lax.cond(a > b, lambda a, b: a - 1, lambda a, b: a + b, a, b)

    x = np.array([[1, 2, 3], [5, 1, 0], [0, 0, 7]], np.float32)
    assert simulate(lambda x: lax.reduce(x, jnp.float32(0), loop, (1,)), x).tolist() == [4, 6, 8]
    assert simulate(lambda x: lax.reduce(x, jnp.float32(0), branch, (1,)), x).tolist() == [6, 3, 7]


RANDOM: dict[str, Callable[[Any], Any]] = {
    "bits": lambda seed: [jax.random.bits(jax.random.key(seed), (3, 5), d) for d in ("uint8", "uint16", "uint32")],
    "legacy keys": lambda seed: jax.random.fold_in(jax.random.split(jax.random.PRNGKey(seed), 3)[1], 7),
    "keys through a loop": lambda seed: lax.scan(
        lambda key, _: (jax.random.split(key)[0], jax.random.bits(key, (2,))), jax.random.key(seed), None, length=3
    )[1],
    "keys in order": lambda seed: jax.random.key_data(jax.random.split(jax.random.key(seed), (2, 3))[::-1].T),
    "keys chosen": lambda seed: jax.random.key_data(
        lax.cond(seed > 1, lambda k: k[0], lambda k: k[1], jax.random.split(jax.random.key(seed)))
    ),
    "wrapped keys": lambda seed: jax.random.key_data(jax.random.clone(jax.random.wrap_key_data(
        jnp.array([seed, 1], jnp.uint32)))),
    "integers": lambda seed: jax.random.randint(jax.random.key(seed), (10,), -5, 100),
    "uniform": lambda seed: jax.random.uniform(jax.random.key(seed), (10,)),
    "permutation": lambda seed: jax.random.permutation(jax.random.key(seed), 10),
    "choice": lambda seed: jax.random.choice(jax.random.key(seed), 10, (4,), replace=False),
    "bernoulli": lambda seed: jax.random.bernoulli(jax.random.key(seed), 0.25, (10,)),
    "mapped": lambda seed: jax.vmap(lambda key: jax.random.bits(key, (2,)))(jax.random.split(jax.random.key(seed), 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random(name: str) -> None:
    """jax.random draws the same numbers."""
    check(RANDOM[name], np.int32(42))


def test_normal() -> None:
    """Normal numbers are the same to within the approximation of their quantile function."""

    def normal(seed: Any) -> Any:
        return jax.random.normal(jax.random.key(seed), (50,))

    np.testing.assert_allclose(simulate(normal, np.int32(3)), jax.jit(normal)(3), rtol=1e-4, atol=1e-6)


def test_keys_as_arguments() -> None:
    """A key is passed in as an argument, and closed over as a constant."""
    key = jax.random.key(5)
    check(lambda k: jax.random.bits(k, (3,)), key)
    check(lambda x: x + jax.random.bits(key, (3,)), np.uint32(1))


def test_one_trace_for_many_data() -> None:
    """A prepared program runs any data of its shapes, and refuses any other."""
    calls = []

    def function(tree: Any) -> Any:
        calls.append(1)
        return {"sum": tree["a"] + tree["b"]}

    aval = jax.ShapeDtypeStruct((3,), np.float32)
    program = prepare(function, {"a": aval, "b": aval})
    for seed in range(3):
        a, b = block(3, seed=seed), block(3, seed=seed + 1)
        assert same(program.run({"a": a, "b": b})["sum"], a + b)
    assert len(calls) == 1
    with pytest.raises(TypeError, match=r"expected \[\(3,\), \(3,\)\], as traced"):
        program.run({"a": np.ones(3), "b": np.ones(4)})


def test_arguments_are_left_alone() -> None:
    """A run changes none of its arguments."""
    x, i = distinct(4, 4), np.array([1, 2])
    before = x.copy()
    simulate(lambda x, i: (x.at[i].set(0), lax.dynamic_update_slice(x, x[:2], (1, 0)), x.sort()), x, i)
    assert same(x, before)
