"""Optimisers in every dtype, and what is planted in them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.impl.training import like_parameters
from shardproof.properties.laws.optimisers import Updates, check_updates
from shardproof.properties.laws.training import OPTIMISERS
from shardproof.properties.mutants.optimisers import RIGHT, WRONG
from shardproof.properties.programs.violation import Broken

DTYPES = ("float64", "float32", "bfloat16", "float16")


@pytest.mark.parametrize("name", OPTIMISERS)
@settings(max_examples=max(2, settings().max_examples // 50))
@given(data=st.data())
def test_updates(name: str, data: st.DataObject) -> None:
    """In every dtype updates are those of the definition, to the accumulator's rounding, and parameters round once."""
    steps, seed = data.draw(st.integers(1, 12), label="steps"), data.draw(st.integers(0, 999), label="seed")
    for dtype in DTYPES:
        check_updates(Updates(dtype, steps=steps, seed=seed), OPTIMISERS[name])


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (*_, dtypes) in WRONG.items() for dtype in dtypes])
def test_planted(name: str, dtype: str) -> None:
    """A wrong optimiser is reported for its values, in the dtypes in which it is wrong."""
    of, make, _ = WRONG[name]
    with pytest.raises(Broken, match=r"step \d+: (update|parameter) \d is off by"):
        check_updates(Updates(dtype, steps=10), (make, OPTIMISERS[of][1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_odd(name: str, dtype: str) -> None:
    """A right one is not."""
    of, make = RIGHT[name]
    check_updates(Updates(dtype, steps=10), (make, OPTIMISERS[of][1]))


@pytest.mark.parametrize("momentum", [1.0, -0.1])
def test_fractions(momentum: float) -> None:
    """What is no fraction is refused by its name."""
    with pytest.raises(ValueError, match=r"^sgd: momentum=.*: expected a number in \[0, 1\)"):
        partial(optimisers.sgd, 0.1)(momentum=momentum)


@pytest.fixture
def optax() -> Any:
    """Its optimisers, where they are installed."""
    return pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    """An array."""
    return jax.ShapeDtypeStruct(shape, "float32")


def layouts_of(optimiser: Any, params: Any, layouts: Any) -> list[str]:
    """Of every array of an optimiser's state its shape and layout, `whole` where it is like no parameter."""
    state = jax.eval_shape(optimiser.init, params)
    found = like_parameters(optimiser, params, layouts, lambda leaf: "whole")
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
    assert layouts_of(columns, params, layouts) == ["[4] whole", "[4] whole"]


def test_a_state_is_that_of_the_parameters_as_they_are(optax: Any) -> None:
    """Adafactor keeps rows and columns of large matrices alone, so that what it keeps depends on the sizes."""
    params = {"w": float32(64, 256), "b": float32(256)}
    layouts = {"w": P("tp"), "b": P("tp")}
    found = layouts_of(optax.adafactor(1e-3), params, layouts)
    assert f"[64, 256] {P('tp')}" in found
    assert f"[256] {P('tp')}" in found
    assert "[64, 256] whole" not in found
    factored = layouts_of(optax.adafactor(1e-3), {"w": float32(256, 256)}, {"w": P("tp")})
    assert [one for one in factored if one.startswith("[256]")] == 2 * ["[256] whole"]


def test_a_state_without_names_goes_by_its_shapes() -> None:
    """Where all parameters of a shape are laid out alike; else nothing says which it is like."""
    flat = optimisers.Transformation(lambda p: {"all": jax.tree.leaves(p)}, lambda g, state, p=None: (g, state))
    alike = {"w": float32(4, 4), "b": float32(4), "v": float32(4, 4)}
    assert layouts_of(flat, alike, {"w": P("tp"), "b": P("dp"), "v": P("tp")}) == [
        f"[4] {P('dp')}",
        f"[4, 4] {P('tp')}",
        f"[4, 4] {P('tp')}",
    ]
    assert layouts_of(flat, alike, {"w": P("tp"), "b": P("dp"), "v": P("dp")})[1:] == 2 * ["[4, 4] whole"]
