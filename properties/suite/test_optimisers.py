"""Optimisers: in any dtype updates are those of the definition, computed in the accumulator's dtype."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.impl.optimisers import Adapting, Transformation
from shardproof.impl.training import like_parameters
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.dtypes import unit_roundoff
from shardproof.properties.suite.test_training import NARROW, OPTIMISERS

DTYPES = ("float64", "float32", *NARROW)
names = pytest.mark.parametrize("name", OPTIMISERS)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def drawn(dtype: np.dtype, steps: int, seed: int) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Two parameters and their gradients in every step: some are zero, some elements' in all steps."""
    rng = np.random.default_rng(seed)
    shapes = (2, 3), (5,)
    never = [rng.random(shape) < 0.2 for shape in shapes]

    def gradient(shape: tuple[int, ...], zero: np.ndarray) -> np.ndarray:
        values = rng.normal(size=shape).clip(-4, 4)
        return np.where(zero | (rng.random(shape) < 0.2), 0, values).astype(dtype)

    params = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    return params, [[gradient(s, zero) for s, zero in zip(shapes, never, strict=True)] for _ in range(steps)]


def near(found: Any, right: np.ndarray, dtype: np.dtype, off: float, what: str) -> None:
    """An array of that dtype, and nowhere further off."""
    assert found.dtype == dtype, what
    np.testing.assert_allclose(
        np.asarray(found).astype(np.float64), right, rtol=0, atol=off, equal_nan=False, err_msg=what
    )


def check_updates(make: Callable[[], Any], of: oracle.Optimiser, name: str, steps: int = 10, seed: int = 0) -> None:
    """Updates equal those of the definition to the accumulator's rounding; parameters are rounded once in a step.

    A moment after k steps is off by k roundings of the largest gradient, at most 4 here, and by the square root of k
    more beside a second moment, which is at least 1/k of the largest gradient's square. `1 - decay**k` loses as many
    digits as the decay is near 1, at most 1 / (1 - 0.999).
    """
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    accumulator = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    initial, gradients = drawn(dtype, steps, seed)
    leaves, kept = [p.astype(np.float64) for p in initial], of.start(initial)
    with jax.enable_x64(True):
        run, params = make(), [jnp.asarray(p) for p in initial]
        update, state = jax.jit(run.update), run.init(params)
        for step, given_ones in enumerate(gradients, 1):
            right, kept = of.step([np.zeros(p.shape) for p in params], given_ones, kept)
            leaves = [(p + u).astype(dtype).astype(np.float64) for p, u in zip(leaves, right, strict=True)]
            found, state = update([jnp.asarray(g) for g in given_ones], state, params)
            params = optimisers.apply_updates(params, found)
            off = of.learning_rate * (64 * step**2 + 2000) * unit_roundoff(accumulator)
            for one, other in zip(found, right, strict=True):
                near(one, other, accumulator, off, f"step {step}: update")
            for one, other in zip(params, leaves, strict=True):
                ulps = 2 * step * unit_roundoff(dtype) * float(np.max(np.abs(other)))
                near(one, other, dtype, ulps + step * off, f"step {step}: parameter")


@names
@settings(max_examples=max(2, settings().max_examples // 50))
@given(steps=st.integers(1, 12), seed=st.integers(0, 999))
def test_updates(name: str, steps: int, seed: int) -> None:
    """In every dtype updates are those of the definition, to the accumulator's rounding, and parameters round once."""
    for dtype in DTYPES:
        check_updates(*OPTIMISERS[name], dtype, steps, seed)


@names
def test_updates_are_those_of_optax(name: str) -> None:
    """Element by element ten updates of ours and of optax's are equal, to nine digits of the largest."""
    optax = pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")
    theirs = {
        "sgd": lambda: optax.sgd(0.02),
        "momentum": lambda: optax.sgd(0.02, momentum=0.9),
        "adam": lambda: optax.adam(0.01),
    }[name]
    check_updates(theirs, OPTIMISERS[name][1], "float64")


def wide(x: Any) -> Any:
    """An array in the accumulator's dtype."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def own_adam(*, second: float = 0.999, moments: Callable[[Any], Any] = lambda x: x) -> Any:
    """Adam whose moments have the dtype that `moments` gives them: by default the parameters' own."""

    def init(params: Any) -> Adapting:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(moments(p)), params)
        return Adapting(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(gradients: Any, state: Adapting, params: Any = None) -> tuple[Any, Adapting]:
        steps, gradients = state.steps + 1, jax.tree.map(moments, gradients)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.first, gradients)
        squares = jax.tree.map(lambda v, g: second * v + 0.001 * jnp.square(g), state.second, gradients)

        def moved(m: Any, v: Any) -> Any:
            one, other = (1 - decay**steps for decay in (0.9, 0.999))
            return wide(-0.01 * (m / one.astype(m.dtype)) / (jnp.sqrt(v / other.astype(v.dtype)) + 1e-8))

        return jax.tree.map(moved, first, squares), Adapting(steps, first, squares)

    return Transformation(init, update)


def narrow_momentum() -> Transformation:
    """Momentum whose velocity has the parameters' dtype."""

    def update(gradients: Any, velocity: Any, params: Any = None) -> tuple[Any, Any]:
        moved = jax.tree.map(lambda v, g: 0.9 * v - 0.02 * g, velocity, gradients)
        return jax.tree.map(wide, moved), moved

    return Transformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


WRONG: dict[str, tuple[str, Callable[[], Any], tuple[str, ...]]] = {
    "adam_in_own_dtype": ("adam", own_adam, NARROW),
    "adam_never_decays": ("adam", partial(own_adam, second=1.0, moments=wide), ("float64", *NARROW)),
    "velocity_in_own_dtype": ("momentum", narrow_momentum, NARROW),
}
"""By name: the optimiser that it is to be, itself, and the dtypes in which it is wrong."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_optimiser_is_found(name: str) -> None:
    """It is reported for its values, in the dtypes in which it is wrong."""
    of, make, wrong_in = WRONG[name]
    for dtype in wrong_in:
        with pytest.raises(AssertionError, match=r"step \d+: (update|parameter)"):
            check_updates(make, OPTIMISERS[of][1], dtype)


@dtypes
def test_adam_by_hand_is_right(dtype: str) -> None:
    """One whose moments are wide is not reported."""
    check_updates(partial(own_adam, moments=wide), OPTIMISERS["adam"][1], dtype)


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_fractions(momentum: float) -> None:
    """A momentum that is no fraction is refused by its name."""
    with pytest.raises(ValueError, match=r"^sgd: momentum=.*: expected a number in \[0, 1\)"):
        optimisers.sgd(0.1, momentum=momentum)


@pytest.fixture
def optax() -> Any:
    """Its optimisers, where they are installed."""
    return pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    """An array."""
    return jax.ShapeDtypeStruct(shape, "float32")


WHOLE = P("whole")
"""The layout of what is like no parameter."""


def layouts_of(optimiser: Any, params: Any, layouts: Any) -> list[str]:
    """Of every array of an optimiser's state its shape and layout, `WHOLE` where it is like no parameter."""
    state = jax.eval_shape(optimiser.init, params)
    found = like_parameters(optimiser, params, layouts, lambda leaf: WHOLE)
    shapes = [x.shape for x in jax.tree.leaves(state)]
    return [f"{list(shape)} {at}" for shape, at in zip(shapes, jax.tree.leaves(found), strict=True) if shape]


def test_a_state_is_laid_out_as_what_it_is_like(optax: Any) -> None:
    """By its path, where shapes are the same; a sum over a dimension is like nothing, whatever else has its shape."""
    params = {"w": float32(4, 4), "b": float32(4), "v": float32(4, 4)}
    layouts = {"w": P("tp"), "b": P("dp"), "v": P(None, "tp")}
    moments = [f"[4] {P('dp')}", f"[4, 4] {P(None, 'tp')}", f"[4, 4] {P('tp')}"]
    assert layouts_of(optax.adam(1e-3), params, layouts) == 2 * moments
    assert layouts_of(optimisers.adam(1e-3), params, layouts) == 2 * moments
    columns = optimisers.Transformation(
        lambda p: jax.tree.map(lambda x: jnp.sum(x, 0), p), lambda g, state, p=None: (g, state)
    )
    assert layouts_of(columns, params, layouts) == [f"[4] {WHOLE}", f"[4] {WHOLE}"]


def test_a_state_is_that_of_the_parameters_as_they_are(optax: Any) -> None:
    """Adafactor keeps rows and columns of large matrices alone, so that what it keeps depends on the sizes."""
    params = {"w": float32(64, 256), "b": float32(256)}
    layouts = {"w": P("tp"), "b": P("tp")}
    found = layouts_of(optax.adafactor(1e-3), params, layouts)
    assert f"[64, 256] {P('tp')}" in found
    assert f"[256] {P('tp')}" in found
    assert f"[64, 256] {WHOLE}" not in found
    factored = layouts_of(optax.adafactor(1e-3), {"w": float32(256, 256)}, {"w": P("tp")})
    assert [one for one in factored if one.startswith("[256]")] == 2 * [f"[256] {WHOLE}"]


def test_a_state_without_names_goes_by_its_shapes() -> None:
    """Where all parameters of a shape have the same layout; otherwise it is like none of them."""
    flat = optimisers.Transformation(lambda p: {"all": jax.tree.leaves(p)}, lambda g, state, p=None: (g, state))
    params = {"w": float32(4, 4), "b": float32(4), "v": float32(4, 4)}
    assert layouts_of(flat, params, {"w": P("tp"), "b": P("dp"), "v": P("tp")}) == [
        f"[4] {P('dp')}",
        f"[4, 4] {P('tp')}",
        f"[4, 4] {P('tp')}",
    ]
    assert layouts_of(flat, params, {"w": P("tp"), "b": P("dp"), "v": P("dp")})[1:] == 2 * [f"[4, 4] {WHOLE}"]
