"""Programs of numerics: transforms, decompositions and pooling over a mesh, right ones and wrong ones."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from shardproof import Array, Program, check_program
from shardproof.properties.meta.brief import marked


def spectrum(x: Any, *, data: Any, second: Any = jnp.fft.fft) -> Any:
    """The 2-D transform of rows that are sharded: each device's rows, then its columns of all rows."""
    return second(lax.all_to_all(jnp.fft.fft(x, axis=1), data, 1, 0, tiled=True), axis=0)


def rows_of_all(x: Any, axes: Any) -> Any:
    """The rows of all devices."""
    return lax.all_gather(x, axes, axis=0, tiled=True)


def tall_skinny(x: Any, *, data: Any, gather: Any = rows_of_all) -> Any:
    """R of the QR decomposition of many rows: that of the R of each device's rows, made to have a positive diagonal."""
    own = jnp.linalg.qr(well_conditioned(x))[1]
    return positive(jnp.linalg.qr(gather(own, data))[1])


def well_conditioned(x: Any) -> Any:
    """Rows of three, each of which has one element that outweighs the others."""
    return jnp.tanh(x) + 4 * jnp.eye(3, dtype=x.dtype)[jnp.arange(len(x)) % 3]


def positive(r: Any) -> Any:
    """R with a positive diagonal."""
    return r * jnp.sign(jnp.diagonal(r))[:, None]


def pooled_loss(x: Any, *, data: Any, mean: Any = lax.pmean) -> Any:
    """The mean square of what max pooling leaves of images."""
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID")
    return mean(jnp.mean(pooled**2), data)


def whole_pooled_loss(x: Any) -> Any:
    """The same on whole arrays."""
    n, height, width = x.shape
    return (x.reshape(n, height // 2, 2, width // 2, 2).max((2, 4)) ** 2).mean()


COMPLEX = {"arguments": [Array("n@data m", "complex64")], "results": Array("n m@data", "complex64")}
TALL: dict[str, Any] = {"arguments": [Array("n@data 3", "float32")], "results": "3 3", "multiples": {"n": 3}}
IMAGES: dict[str, Any] = {
    "arguments": [Array("n@data h w", "float32")], "results": "", "multiples": {"h": 2, "w": 2},
}  # fmt: skip


PROGRAMS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "fft": (spectrum, partial(spectrum, second=jnp.fft.ifft), jnp.fft.fft2, COMPLEX),
    "qr": (
        tall_skinny,
        partial(tall_skinny, gather=lax.psum),
        lambda x: jnp.linalg.cholesky(well_conditioned(x).T @ well_conditioned(x)).T,
        TALL,
    ),
    "pooling": (pooled_loss, partial(pooled_loss, mean=lax.psum), whole_pooled_loss, IMAGES),
}
"""The right function, a wrong one, the reference, and how both are described."""


@pytest.mark.parametrize("name", marked(PROGRAMS, ["fft"]))
def test_a_right_program_is_held_and_a_wrong_one_reported(name: str) -> None:
    """It is held, with its gradients, on all structures, by the interpreter, of a mesh of any size."""
    right, wrong, reference, described = PROGRAMS[name]
    summary = check_program(Program(right, reference, **described), laws=["value", "gradient"], max_examples=12)
    assert {tally.law for tally in summary.tallies if tally.outcome == "passed"} == {"value", "gradient"}
    for tally in summary.tallies:
        assert tally.engine != "simulate" or not tally.not_run, (name, tally)
    with pytest.raises(AssertionError, match="blocks wrong"):
        check_program(Program(wrong, reference, **described), laws=["value"], max_examples=20)
