"""Layers that are no sums of products, sharded, need no tolerance from anyone: two runs say how far off they may be."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax import Array, lax

from shardproof.properties.engines import simulate
from shardproof.properties.precision.wide import DOUBLES, Rounding
from shardproof.properties.precision.wide.run import run_wide

MESH = jax.sharding.AbstractMesh((2, 4), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
P = jax.P
DTYPES = ("float32", "bfloat16", "float16")
MILLIONTH = 1 + 1e-6
Function = Callable[..., Any]


def sharded(function: Function, *specs: Any, out: Any) -> Function:
    """A function of blocks, on eight devices."""
    return jax.shard_map(function, mesh=MESH, in_specs=specs, out_specs=out)


def shift(x: Array) -> Array:
    """The largest of a row on all devices, with which exponentials do not overflow."""
    return lax.pmax(lax.stop_gradient(jnp.max(x, -1, keepdims=True)), "tp")


def softmax(x: Array) -> Array:
    """Of rows whose elements are sharded."""
    powers = jnp.exp(x - shift(x))
    return powers / lax.psum(jnp.sum(powers, -1, keepdims=True), "tp")


def logsumexp(x: Array) -> Array:
    """Of rows whose elements are sharded."""
    most = shift(x)
    return (jnp.log(lax.psum(jnp.sum(jnp.exp(x - most), -1, keepdims=True), "tp")) + most)[..., 0]


def attention(q: Array, k: Array, v: Array) -> Array:
    """Keys and values are sharded over the sequence."""
    logits = q @ k.T / np.sqrt(q.shape[-1])
    powers = jnp.exp(logits - shift(logits))
    return lax.psum(powers @ v, "tp") / lax.psum(jnp.sum(powers, -1, keepdims=True), "tp")


def layer_norm(x: Array, scale: Array) -> Array:
    """Of tokens whose features are sharded."""
    centred = x - lax.pmean(jnp.mean(x, -1, keepdims=True), "tp")
    variance = lax.pmean(jnp.mean(jnp.square(centred), -1, keepdims=True), "tp")
    return centred * lax.rsqrt(variance + 1e-5) * scale


def gelu_mlp(x: Array, w_in: Array, w_out: Array) -> Array:
    """Hidden features are sharded."""
    return lax.psum(jax.nn.gelu(x @ w_in) @ w_out, "tp")


def plain_attention(q: Array, k: Array, v: Array) -> Array:
    """On one device, from the definition."""
    return jax.nn.softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v


def plain_layer_norm(x: Array, scale: Array) -> Array:
    """On one device, with the variance as a difference of means."""
    variance = jnp.mean(x * x, -1, keepdims=True) - jnp.mean(x, -1, keepdims=True) ** 2
    return (x - jnp.mean(x, -1, keepdims=True)) / jnp.sqrt(variance + 1e-5) * scale


ROWS = P("dp", "tp")
LAYERS: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "softmax": (sharded(softmax, ROWS, out=ROWS), jax.nn.softmax, ((4, 8),)),
    "logsumexp": (sharded(logsumexp, ROWS, out=P("dp")), lambda x: jax.scipy.special.logsumexp(x, -1), ((4, 8),)),
    "attention": (
        sharded(attention, P("dp"), P("tp"), P("tp"), out=P("dp")),
        plain_attention,
        ((4, 3), (8, 3), (8, 5)),
    ),
    "layer norm": (sharded(layer_norm, ROWS, P("tp"), out=ROWS), plain_layer_norm, ((4, 8), (8,))),
    "GELU MLP": (
        sharded(gelu_mlp, P("dp"), P(None, "tp"), P("tp"), out=P("dp")),
        lambda x, w_in, w_out: jax.nn.gelu(x @ w_in) @ w_out,
        ((4, 3), (3, 8), (8, 2)),
    ),
}

NUMPY: dict[str, Function] = {
    "softmax": lambda x: scipy.special.softmax(x, -1),
    "logsumexp": lambda x: scipy.special.logsumexp(x, -1),
    "attention": lambda q, k, v: scipy.special.softmax(q @ k.T / np.sqrt(3), -1) @ v,
    "layer norm": lambda x, s: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * s,
}


def drawn(shapes: tuple[tuple[int, ...], ...], dtype: str, seed: int) -> list[np.ndarray]:
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def gradient(function: Function, count: int) -> Function:
    """The gradient of a sum of the results, weighed so that none is as good as another."""

    def weighed(*args: Array) -> Array:
        result = function(*args).astype(jnp.float32)
        return jnp.sum(result * (1 + jnp.arange(result.size, dtype=jnp.float32).reshape(result.shape)))

    return jax.grad(weighed, argnums=tuple(range(count)))


def apart(function: Function, reference: Function, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """By how much more two functions differ in double precision than roundings of doubles and constants explain."""
    runs = [run_wide(simulate.prepare(f, *arrays), *arrays, rounding=DOUBLES) for f in (function, reference)]
    return [np.abs(a.value - b.value) / (a.error + b.error) for a, b in zip(*runs, strict=True)]


def within(function: Function, arrays: list[np.ndarray]) -> bool:
    """Whether what the program computes in its own dtypes is where its wide run says."""
    program = simulate.prepare(function, *arrays)
    pairs = zip(jax.tree.leaves(program.run(*arrays)), run_wide(program, *arrays), strict=True)
    return all(
        np.isfinite(wide.error).all() and (np.abs(plain.astype(np.float64) - wide.value) <= wide.error).all()
        for plain, wide in pairs
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_needs_no_tolerance(name: str, dtype: str) -> None:
    """Sharded, its values and gradients are those of one device to the last digits, and its roundings are bounded."""
    function, reference, shapes = LAYERS[name]
    for seed in range(3):
        arrays = drawn(shapes, dtype, seed)
        for change in (lambda f: f, lambda f: gradient(f, len(shapes))):
            assert max(ratio.max() for ratio in apart(change(function), change(reference), arrays)) <= 1
            assert within(change(function), arrays)


@pytest.mark.parametrize("name", NUMPY)
def test_a_layer_is_what_numpy_says(name: str) -> None:
    """In double precision its values are those of a formula in NumPy to ten digits, but for a constant's own."""
    function, _, shapes = LAYERS[name]
    arrays = drawn(shapes, "float32", 0)
    (wide,) = run_wide(simulate.prepare(function, *arrays), *arrays, rounding=DOUBLES)
    right = NUMPY[name](*(a.astype(np.float64) for a in arrays))
    assert (np.abs(wide.value - right) <= wide.error).all()
    constants = name in ("attention", "layer norm")
    assert (wide.error <= (1e-6 if constants else 1e-10) * np.abs(right).max()).all()


@pytest.mark.parametrize("mode", ["value", "gradient"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_millionth_is_caught(name: str, mode: str) -> None:
    """A result, or its gradient alone, that is a millionth too large is no rounding of float32."""
    function, reference, shapes = LAYERS[name]
    arrays = drawn(shapes, "float32", 0)

    def planted(*args: Array) -> Array:
        result = function(*args)
        return result * MILLIONTH if mode == "value" else result + 1e-6 * (result - lax.stop_gradient(result))

    change = (lambda f: f) if mode == "value" else (lambda f: gradient(f, len(shapes)))
    assert max(ratio.max() for ratio in apart(change(planted), change(reference), arrays)) > 1


@pytest.mark.parametrize("name", LAYERS)
def test_an_accumulation_in_sixteen_bits_is_caught(name: str) -> None:
    """What is charged as float32, and computed in bfloat16 in one place, is further off than its wide run says."""
    function, _, shapes = LAYERS[name]
    arrays = drawn(shapes, "float32", 0)
    held = Rounding("float32")

    def planted(*args: Array) -> Array:
        return function(*(a.astype(jnp.bfloat16).astype(a.dtype) for a in args))

    for f, right in ((function, True), (planted, False)):
        program = simulate.prepare(f, *arrays)
        (wide,) = run_wide(program, *arrays, rounding=held)
        assert bool((np.abs(program.run(*arrays) - wide.value) <= wide.error).all()) == right
