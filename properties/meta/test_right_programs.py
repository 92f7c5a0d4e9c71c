"""Right programs in users' styles, each of which was once reported falsely."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array as JaxArray
from jax import lax

from shardproof import Array, Program, check, check_program
from shardproof.impl.collectives import cast_varying
from shardproof.oracles.mesh import as_axes
from shardproof.properties.meta.brief import marked

ROWS: dict[str, Any] = {"arguments": ["n@data k"], "results": "n@data k"}
TABLE = np.sin(np.arange(1.0, 6.0))


def sorted_in_place(x: Any) -> Any:
    """NumPy's way."""
    x[...] = np.sort(x, axis=1)
    return x


def grouped(q: Any, k: Any, *, model: Any) -> Any:
    """Several queries for each key."""
    return q.reshape(*k.shape, q.shape[1] // k.shape[1]).sum(-1) * k


def grouped_one_by_one(q: Any, k: Any) -> Any:
    """The same, which fails where there are fewer queries than keys."""
    times = q.shape[1] // k.shape[1]
    return np.stack(
        [q[:, i * times : (i + 1) * times].sum(1) * k[:, i // (1 // min(times, 1))] for i in range(k.shape[1])], 1
    )


def powers(x: Any, *, data: Any) -> Any:
    """The iteration of a loop that begins with a constant."""

    def body(_: Any, v: Any) -> Any:
        u = lax.psum(x.T @ (x @ v), data) + v
        return u / jnp.linalg.norm(u)

    return lax.fori_loop(0, 3, body, jnp.ones(x.shape[1], x.dtype))


def powers_one_by_one(x: Any) -> Any:
    """The same."""
    v = jnp.ones(x.shape[1], x.dtype)
    for _ in range(3):
        u = x.T @ (x @ v) + v
        v = u / jnp.sqrt((u * u).sum())
    return v


def squares(w: Any, x: Any, *, data: Any) -> Any:
    """Mixed precision."""
    return lax.psum(jnp.sum(jnp.square((x @ w.astype(x.dtype)).astype(jnp.float32))), data)


def normalised(x: Any, scale: Any, bias: Any, *, data: Any) -> Any:
    """Batch norm, of which XLA divides by a number of devices through its reciprocal."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - lax.pmean(wide.mean(0), data)
    variance = lax.pmean(jnp.square(centred).mean(0), data)
    return (centred * lax.rsqrt(variance + 0.01) * scale + bias).astype(x.dtype)


def on_rows(function: Any, results: Any = "n@data k", **described: Any) -> Program:
    """A function of rows that is its own reference."""
    return Program(lambda x, *, data: function(x), function, **{**ROWS, "results": results, **described})


def contrast(image: Any, text: Any, *, data: Any) -> Any:
    """SigLIP's loss (Zhai et al. 2023): texts go round a ring, and pairs of different devices are negative."""
    p = lax.axis_size(data)

    def loss(text: Any, signs: Any) -> Any:
        return -jax.nn.log_sigmoid(signs * (2 * image @ text.T - 1)).sum()

    total = loss(text, 2 * jnp.eye(len(image), dtype=image.dtype) - 1)
    for _ in range(1, p):
        text = lax.ppermute(text, data, [(i, (i + 1) % p) for i in range(p)])
        total = total + loss(text, -1)
    return lax.psum(total, data) / (p * len(image))


def contrast_of_all(image: Any, text: Any) -> Any:
    """The same on whole arrays."""
    return -jax.nn.log_sigmoid((2 * np.eye(len(image)) - 1) * (2 * image @ text.T - 1)).sum() / len(image)


PROGRAMS = {
    "a sigmoid loss": Program(
        contrast,
        contrast_of_all,
        arguments=["n@data d", "n@data d"],
        results="",
        one_axis="data",
        dtypes="float32",
    ),
    "batch norm": Program(
        normalised,
        lambda x, scale, bias: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.01) * scale + bias,
        arguments=["batch@data c", "c", "c"],
        results="batch@data c",
    ),
    "a tenth": Program(lambda x, *, data: x / 10, lambda x: 0.1 * x, **ROWS),
    "a number of NumPy": Program(
        lambda x, *, data: jnp.asarray(np.sqrt(2 / np.pi), x.dtype) * x, lambda x: np.sqrt(2 / np.pi) * x, **ROWS
    ),
    "a table of NumPy": Program(
        lambda x, *, data: x * jnp.asarray(TABLE, x.dtype),
        lambda x: x * TABLE,
        arguments=["n@data 5"],
        results="n@data 5",
    ),
    "an end of a dtype": on_rows(lambda x: jnp.where(x > 0, x, jnp.finfo(x.dtype).min)),
    "ties": Program(
        lambda x, *, data: jnp.sort(x, axis=1)[:, -1], lambda x: x.max(axis=1), arguments=["n@data k"], results="n@data"
    ),
    "zeros in order": on_rows(lambda x: lax.top_k(0 * x, 1)[1], Array("n@data 1", "int32")),
    "a remainder": on_rows(lambda x: jnp.mod(x, 0.7)),
    "a whole quotient": on_rows(lambda x: (x * 3) // 0.3),
    "buckets": on_rows(lambda x: jnp.digitize(x, jnp.array([-1, 0, 0.3, 2])), Array("n@data k", "int32")),
    "a median": on_rows(lambda x: jnp.median(x, axis=1), "n@data"),
    "a step between constants": on_rows(lambda x: jnp.sign(x * 0.1 - 0.07)),
    "an area": on_rows(lambda x: jnp.arccosh(1 + x * x)),
    "a root of what vanishes": on_rows(lambda x: jnp.sqrt((1 - jnp.tanh(8 * x) ** 2) ** 2)),
    "a constant that varies": Program(
        lambda x, *, data: (
            x.astype(jnp.bfloat16) * cast_varying(jnp.float32(4.775), as_axes(data)).astype(jnp.bfloat16)
        ),
        lambda x: x.astype(jnp.bfloat16) * 4.775,
        arguments=["n@data"],
        results=Array("n@data", "bfloat16"),
    ),
    "products in bfloat16": Program(
        lambda x, w, *, data: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32),
        lambda x, w: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32),
        arguments=[Array("n@data k", "float32"), Array("k m", "float32")],
        results=Array("n@data m", "float32"),
    ),
    "eight bits on the way": on_rows(lambda x: x.astype(jnp.float8_e4m3fn).astype(x.dtype)),
    "fewer bits": on_rows(lambda x: lax.reduce_precision(x, 8, 7)),
    "in place": Program(lambda x, *, data: jnp.sort(x, axis=1), sorted_in_place, **ROWS),
    "no gradient": on_rows(lambda x: abs(x) / 127.0, arguments=[Array("n@data k", gradient=False)]),
    "sizes that go together": Program(
        grouped,
        grouped_one_by_one,
        arguments=["t h@model", "t kv@model"],
        results="t kv@model",
        serves=lambda h, kv: h % kv == 0,
    ),
    "a constant carry": Program(powers, powers_one_by_one, arguments=["n@data k"], results="k"),
    "mixed precision": Program(
        squares,
        lambda w, x: ((x @ w) ** 2).sum(),
        arguments=[Array("k n", "float32"), "b@data k"],
        results=Array("", "float32"),
    ),
    "an exact GELU": on_rows(lambda x: jax.nn.gelu(x, approximate=False)),
    "numbers in order": Program(
        lambda x, t, *, data: jnp.searchsorted(jnp.sort(t), x),
        lambda x, t: np.searchsorted(np.sort(t), x),
        arguments=["n@data", "k"],
        results=Array("n@data", "int32"),
    ),
}

BRIEF = (
    *("a tenth", "a number of NumPy", "an end of a dtype", "zeros in order", "in place", "no gradient"),
    "an exact GELU",
)
"""Those that are tried in every run."""


@pytest.mark.parametrize("name", marked(PROGRAMS, BRIEF))
def test_a_right_program_is_not_reported(name: str) -> None:
    """A right program passes in values and gradients on both engines."""
    laws = [
        law for law in ("value", "gradient") if law == "value" or PROGRAMS[name].contract.differentiable is not None
    ]
    check_program(PROGRAMS[name], max_examples=32, laws=laws)


@pytest.mark.lengthy
def test_a_mean_may_travel_with_its_count() -> None:
    """A masked mean passes if its sum and count travel in one array."""

    def packed(values: JaxArray, mask: JaxArray, axis_name: Any) -> JaxArray:
        wide = jnp.promote_types(values.dtype, jnp.float32)
        pair = jnp.stack([jnp.where(mask, values, 0).astype(wide).sum(), mask.sum().astype(wide)])
        total, count = lax.psum(cast_varying(pair, as_axes(axis_name)), axis_name)
        return (total / jnp.maximum(count, 1)).astype(values.dtype)

    check("masked_mean", packed, laws=["value", "gradient"], max_examples=32)


def halved(x: Any, kernel: Any) -> Any:
    """Every other row, convolved."""
    return lax.conv_general_dilated(x, kernel, (2,), ((0, 1),), dimension_numbers=("NWC", "WIO", "NWC")).sum((0, 1))


def halved_in_parts(x: Any, kernel: Any, *, mesh: Any, rows: Any = None, images: Any = None) -> Any:
    """The same, of rows or images that are sharded."""
    return halved(lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(images, rows))), kernel)


@pytest.mark.parametrize(("dimensions", "excused"), [("b n@rows c", True), ("b@images n c", False)])
def test_a_gradient_that_xla_gets_wrong_is_excused(dimensions: str, excused: bool) -> None:
    """A right strided convolution is compiled, and excused where XLA aborts on its gradient or gets it wrong."""
    described: dict[str, Any] = {"arguments": (dimensions, "k c f"), "results": "f", "whole": True}
    found = check_program(halved_in_parts, halved, **described, dtypes=("float32",), laws=["gradient"], max_examples=2)
    assert re.search("^gradient +xla +held ", str(found), re.MULTILINE)
    assert ("known defect" in str(found)) == excused
