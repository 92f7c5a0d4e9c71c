"""What a user's reference means in doubles: its values, its derivatives, and where these are not known."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardproof.properties.contracts.described import Array, Signature, indices
from shardproof.properties.engines.references import JaxReference, NumpyReference, differences, reference_of

BLOCK = Signature.of(("x", "w"), ("b@data k", "k n"), {"y": "b@data n", "total": ""})
SIZES = {"b": 4, "k": 3, "n": 2}
FLOATS = (np.dtype("float32"), np.dtype("float32"))


def numpy_block(x: Any, w: Any) -> Any:
    """A smooth function of two matrices."""
    y = np.tanh(x @ w)
    return {"y": y, "total": np.sum(y * y)}


def jax_block(x: Any, w: Any) -> Any:
    """The same, with casts that doubles ignore."""
    y = jnp.tanh((x @ w).astype(jnp.float32))
    return {"y": y, "total": jnp.sum(y * y)}


def arrays(seed: int) -> list[np.ndarray]:
    """Numbers of float32, as doubles."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in ((4, 3), (3, 2))]


def test_references_are_told_apart() -> None:
    """What JAX can trace is run in wide arithmetic, and what it cannot is NumPy's."""
    assert isinstance(reference_of(jax_block, BLOCK, SIZES, {}), JaxReference)
    assert isinstance(reference_of(numpy_block, BLOCK, SIZES, {}), NumpyReference)


@given(seed=st.integers(0, 2**16))
def test_both_kinds_agree_on_values_and_derivatives(seed: int) -> None:
    """To as many digits as are claimed of them."""
    xs, (dx, dw), (cy, ct) = arrays(seed), arrays(seed + 1), arrays(seed + 2)
    cts = [np.float64(ct.flat[0]), np.resize(cy, (4, 2))]  # the leaves of a dict are in the order of its keys
    ours, theirs = JaxReference(jax_block, BLOCK), NumpyReference(numpy_block, BLOCK)
    exact, rough = ours.doubt[0], theirs.doubt[1]
    for one, other in zip(ours.value(xs, FLOATS, {}), theirs.value(xs, FLOATS, {}), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=exact * max(1, np.abs(other).max()))
    pushed = [r.pushforward(xs, {0: dx, 1: dw}, FLOATS, {}) for r in (ours, theirs)]
    pulled = [r.pullback(xs, [np.asarray(c) for c in cts], (0, 1), FLOATS, {}) for r in (ours, theirs)]
    for one, other in (*zip(*pushed, strict=True), *zip(*pulled, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=rough * max(1, np.abs(one).max()))


FUNCTIONS: dict[str, Any] = {
    "power": lambda t: np.exp(3 * t),
    "quotient": lambda t: np.sin(t) / (2 + t),
    "kink": np.abs,
    "kink nearby": lambda t: np.maximum(t - 1e-4, 0),
    "kink between": lambda t: np.maximum(t - 5e-4, 0),
    "kink at the end": lambda t: np.maximum(t - 9e-4, 0),
    "bend": lambda t: t * np.maximum(t, 0),
    "step": np.floor,
}


@pytest.mark.parametrize(("name", "known"), [(name, name in ("power", "quotient")) for name in FUNCTIONS])
def test_what_is_not_smooth_is_not_known(name: str, known: bool) -> None:
    """A kink is noticed wherever it lies within the steps."""
    (found,) = differences(lambda step: [np.array([FUNCTIONS[name](step)])], 2.0**-9)
    assert np.isfinite(found[0]) == known


def test_options_reach_a_reference() -> None:
    """They are part of what is traced."""
    reference = JaxReference(lambda x, w, factor: {"y": factor * (x @ w), "total": jnp.sum(x)}, BLOCK)
    xs = arrays(0)
    for factor in (2.0, 3.0):
        np.testing.assert_allclose(reference.value(xs, FLOATS, {"factor": factor})[1], factor * (xs[0] @ xs[1]), 1e-12)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("a b!", "'b!': expected NAME, NAME@ROLE, @ROLE, or a size"),
        ("0 a", "'0': expected"),
        ("a@x b@x", "expected each role to shard one dimension at most"),
    ],
)
def test_what_describes_no_array_is_refused(described: str, message: str) -> None:
    """In one line."""
    with pytest.raises(ValueError, match=message):
        Array(described)


def test_only_integers_are_indices() -> None:
    """`below` of floats is refused."""
    with pytest.raises(ValueError, match="below='n': expected a dimension or a positive size, of integers"):
        Array("n", below="n")


@given(size=st.integers(1, 50), below=st.integers(1, 9), seed=st.integers(-9, 9))
def test_indices_are_in_range(size: int, below: int, seed: int) -> None:
    """And with enough of them all are met."""
    found = indices(np.full((size,), seed, np.int32), below)
    assert found.min() >= 0
    assert found.max() < below
    assert size < below or len(set(found.tolist())) == below or 31 % below == 0
