"""The simulate engine's Fourier transforms, convolutions and windows, against XLA on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from shardproof.properties.engines.simulate import simulate
from shardproof.properties.meta.test_simulate_arrays import block
from shardproof.properties.meta.test_simulate_elementwise import check

TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2", "rfftn", "irfftn")


def check_near(function: Any, *args: Any, rtol: float = 1e-4) -> None:
    """The engine's results on `args` are those of `jit`, to within roundings of the largest; integers exactly."""
    for ours, theirs in zip(*map(jax.tree.leaves, (simulate(function, *args), jax.jit(function)(*args))), strict=True):
        other = np.asarray(theirs)
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
        size = np.abs(other[np.isfinite(other)]).max(initial=0) if ours.dtype.kind in "fc" else 0
        np.testing.assert_allclose(ours, other, rtol=rtol if size else 0, atol=rtol * size)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Normally distributed, in both parts of complex ones."""
    random = np.random.default_rng(seed)
    parts = random.normal(size=shape), random.normal(size=shape)
    return (parts[0] + 1j * parts[1]).astype(dtype) if dtype.startswith("complex") else parts[0].astype(dtype)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_fourier_transforms(name: str, double: bool) -> None:
    """A transform, of lengths even, odd and prime, and its derivative are XLA's."""
    with jax.enable_x64(double):
        real = name.startswith(("rfft", "ihfft"))
        dtype = ("float64" if double else "float32") if real else ("complex128" if double else "complex64")

        def transform(x: Any) -> Any:
            function = getattr(jnp.fft, name)
            return function(x), jax.vjp(function, x)[1](function(x) * 2)

        for shape in ((3, 4, 6), (2, 5, 7)):
            check_near(transform, numbers(*shape, dtype=dtype), rtol=1e-12 if double else 1e-5)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of images and kernel, and the parameters of their convolution."""
    space = draw(st.integers(0, 2))

    def each(strategy: Any) -> list[Any]:
        return draw(st.lists(strategy, min_size=space, max_size=space))

    few, order = st.integers(1, 2), st.permutations(range(space + 2))
    groups, batches = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    features = draw(few)
    images = (batches * draw(few), groups * features, *each(st.integers(1, 5)))
    kernel = (groups * batches * draw(few), features, *each(st.integers(1, 3)))
    specs = [tuple(draw(order)) for _ in range(3)]
    params = {
        "window_strides": each(few),
        "padding": each(st.tuples(st.integers(-1, 2), st.integers(0, 2))),
        "lhs_dilation": each(few),
        "rhs_dilation": each(few),
        "dimension_numbers": lax.ConvDimensionNumbers(*specs),
        "feature_group_count": groups,
        "batch_group_count": batches,
    }
    shapes = [tuple(shape[spec.index(d)] for d in range(space + 2)) for shape, spec in zip((images, kernel), specs)]  # noqa: B905
    return shapes[0], shapes[1], params


@settings(deadline=None, max_examples=30)
@given(convolutions(), st.sampled_from(["float32", "bfloat16", "int32", "complex64"]))
def test_convolutions(case: tuple[Any, Any, Any], dtype: str) -> None:
    """A convolution by any dimension numbers, strides, dilations and groups, and its gradients, are XLA's."""
    images, kernel, params = case

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, **params)

    def with_gradients(x: Any, w: Any) -> Any:
        value, pull = jax.vjp(convolve, x, w)
        return value, pull(2 * value)

    operands = block(*images, dtype=dtype), block(*kernel, dtype=dtype, seed=1)
    try:
        jax.eval_shape(convolve, *operands)
    except (TypeError, ValueError):  # padding that leaves less than nothing
        return
    check(with_gradients if dtype == "float32" else convolve, *operands)


@st.composite
def moving_windows(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """A block's shape, the window that moves along it, and dilations."""
    rank = draw(st.integers(1, 3))

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=rank, max_size=rank)))

    window: dict[str, Any] = {"window_dimensions": each(1, 3), "window_strides": each(1, 3)}
    window["padding"] = tuple(zip(each(0, 2), each(0, 2), strict=True))
    return each(3, 6), window, {"base_dilation": each(1, 2), "window_dilation": each(1, 2)}


REDUCERS = {"sum": (0, lax.add), "max": (-np.inf, lax.max), "min": (np.inf, lax.min), "product": (1, lax.mul)}


@settings(deadline=None, max_examples=30)
@given(moving_windows(), st.sampled_from(sorted(REDUCERS)), st.sampled_from(["float32", "bfloat16", "int32"]))
def test_windows(case: tuple[Any, Any, Any], name: str, dtype: str) -> None:
    """Sums, extremes and folds over windows, and their derivatives in both modes, are XLA's, also of equal elements."""
    shape, window, dilations = case
    start, reducer = REDUCERS[name]
    x = block(*shape, dtype=dtype)
    if dtype == "int32":
        start = {"max": np.iinfo(dtype).min, "min": np.iinfo(dtype).max}.get(name, start)

    def reduce(x: Any, **more: Any) -> Any:
        return lax.reduce_window(x, np.asarray(start, x.dtype), reducer, **window, **more)

    check(lambda x: reduce(x, **dilations), x)
    if dtype == "float32" and name != "product":
        check(lambda x: jax.jvp(lambda x: reduce(x, **dilations), (x,), (x * x + x,)), x)
        check(lambda x: jax.vjp(reduce, x)[1](jnp.ones_like(reduce(x)) * 3), x)


def test_a_fold_of_two_over_windows() -> None:
    """A function of several arrays folds windows of each, with what it has captured, in a program that is mapped."""
    x = block(2, 5, 4)

    def fold(x: Any) -> Any:
        starts = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
        return lax.reduce_window(
            (x, -x), starts, lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (2, 3), (1, 2), "SAME"
        )

    check(jax.vmap(fold), x)
