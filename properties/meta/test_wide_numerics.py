"""Wide runs of transforms, decompositions, convolutions and windows: XLA's own result is as near as they say."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import linalg

from shardproof.oracles.dtypes import half_spacing, real_of
from shardproof.properties.meta.test_simulate_decompositions import definite
from shardproof.properties.meta.test_simulate_windows import numbers
from shardproof.properties.precision.wide import DOUBLES, Wide
from shardproof.properties.precision.wide.run import interpret_wide

TELLING = 0.01
"""What the operations may be off by, relative to the largest number, if they are of small matrices in float32."""


def pooled(x: Any) -> Any:
    """Maxima over windows that overlap."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 1, 2), "SAME")


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "fft": lambda x: jnp.fft.fftn(lax.complex(x, 2 * x)),
    "ifft": lambda x: jnp.fft.ifft(lax.complex(x, 2 * x)),
    "rfft": jnp.fft.rfft2,
    "irfft": lambda x: jnp.fft.irfft(lax.complex(x, -x)),
    "power": lambda x: jnp.abs(jnp.fft.fft(x) / 7) ** 2,
    "qr": lambda x: linalg.qr(x, full_matrices=False),
    "svd": lambda x: linalg.svd(x, full_matrices=False),
    "lu": linalg.lu,
    "cholesky": lambda x: jnp.linalg.cholesky(products(x)),
    "eigh": lambda x: jnp.linalg.eigh(products(x) + jnp.diag(jnp.arange(4.0) ** 2)),
    "solve": lambda x: jnp.linalg.solve(products(x), x[:, :4]),
    "triangle": lambda x: linalg.triangular_solve(products(x), x, lower=True),
    "reflections": lambda x: linalg.householder_product(jnp.swapaxes(jnp.linalg.qr(x, mode="raw")[0], -1, -2), x[:, 0]),
    "convolution": lambda x: lax.conv_general_dilated(x, x[:, :, :3], (1,), "SAME"),
    "pooling": pooled,
    "gradient of pooling": jax.grad(lambda x: (pooled(x) ** 3).sum()),
    "tangent of pooling": lambda x: jax.jvp(pooled, (x,), (x * x,)),
    "sums of windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 3), (1, 1, 1), "SAME"),
    "products of windows": lambda x: lax.reduce_window(x, 1.0, lax.mul, (1, 2, 3), (1, 1, 1), "SAME"),
    "cumulative": lambda x: [lax.cumprod(x, 1), lax.cumlogsumexp(x, 2, reverse=True), lax.reduce_prod(x, (0, 1))],
    "scattered": lambda x: [x.at[0, jnp.array([1, 1, 0])].max(x[1, :3]), x.at[:, 1].multiply(x[:, 0])],
}


def products(x: Any) -> Any:
    """Definite matrices."""
    return jnp.swapaxes(x, -1, -2) @ x + jnp.eye(x.shape[-1])


def near(wide: Wide, native: np.ndarray) -> bool:
    """Whether what a backend computed is as near as a wide run says."""
    if native.dtype.kind not in "fc":
        return bool(((wide.value == native) | (wide.error > 0)).all())
    spacing = half_spacing(np.abs(wide.value) + wide.error, real_of(native.dtype))
    return bool((np.abs(native.astype(wide.value.dtype) - wide.value) <= wide.error + 2 * spacing).all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_xla_is_as_near_as_a_wide_run_says(name: str) -> None:
    """XLA's float32 is within the error of the run in doubles, which tells something, and doubles tell much more."""
    x = numbers(2, 6, 4)
    program = jax.make_jaxpr(FUNCTIONS[name])(x)
    native = map(np.asarray, jax.tree.leaves(jax.jit(FUNCTIONS[name])(x)))
    runs = zip(interpret_wide(program, x), interpret_wide(program, x, rounding=DOUBLES), native, strict=True)
    for own, double, result in runs:
        assert near(own, result)
        if result.dtype.kind in "fc":
            size = np.abs(own.value).max(initial=1)
            assert own.error.max(initial=0) <= TELLING * size
            assert double.error.max(initial=0) <= 1e-8 * size


def test_a_choice_that_rounding_decides_is_not_certain() -> None:
    """Of a window in which two elements are equal but for roundings, the tangent is not known; of others it is."""
    x = np.array([1.1, 2.2, 3.3, 3.3], np.float32)

    def tangent(x: Any, t: Any) -> Any:
        return jax.jvp(lambda x: lax.reduce_window(x / 3, -jnp.inf, lax.max, (2,), (2,), "VALID"), (x,), (t,))[1]

    t = np.arange(4.0, dtype=np.float32) * 3
    (found,) = interpret_wide(jax.make_jaxpr(tangent)(x, t), x, t)
    assert found.error[0] < 1e-4
    assert found.error[1] >= 1


def test_what_nothing_is_known_of_stays_unknown() -> None:
    """A matrix with an element of which nothing is known has a decomposition of which nothing is known."""
    x = definite(3, "float32")
    unknown = lambda x: jnp.linalg.cholesky(x * jnp.where(x[..., :1] < 0, jnp.exp(400 * x), 1))  # noqa: E731
    (factor,) = interpret_wide(jax.make_jaxpr(unknown)(x), x)
    assert np.isinf(factor.error).any() or np.isnan(factor.value).any()
