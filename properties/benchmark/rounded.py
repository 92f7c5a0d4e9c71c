"""Ten programs on a mesh whose results are rounded, each beside what it means on whole arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array as Block
from jax import lax

from shardproof.impl import attention, collectives
from shardproof.impl.collective_matmul.reduce_scatter import ring_matmul_reduce_scatter
from shardproof.impl.cross_entropy import vocab_parallel_cross_entropy
from shardproof.impl.moe import all_to_all_moe
from shardproof.properties.contracts.described import Array
from shardproof.properties.runner.programs import Program

STEPS = 5
"""The steps of the iteration of Newton and Schulz."""

EPSILON = 2.0**-7
TOP = 2


def all_reduced(x: Block, *, model: Any) -> Block:
    """A sum over devices."""
    return collectives.all_reduce(x[0], model)


def reduce_scattered(x: Block, *, model: Any) -> Block:
    """A sum over devices, of which each keeps its rows."""
    return collectives.reduce_scatter(x[0], model, tiled=True)


def long_rows(x: Block, *, model: Any) -> Block:
    """The sums of long rows, whose parts are sent in the rows' own dtype."""
    return lax.psum(x.sum(axis=1), model)


def layer_norm(x: Block, *, model: Any) -> Block:
    """Rows less their mean, over their standard deviation, whose elements are sharded."""
    x = x - lax.pmean(x.mean(axis=1, keepdims=True), model)
    return x * lax.rsqrt(lax.pmean((x * x).mean(axis=1, keepdims=True), model) + EPSILON)


def layer_norm_of_whole(x: Block) -> Block:
    """The same of whole rows."""
    x = x - x.mean(axis=1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)


def attended(q: Block, k: Block, v: Block) -> Block:
    """Attention to all positions."""
    weights = jax.nn.softmax(jnp.einsum("shd,thd->hst", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("hst,thd->shd", weights, v)


def mixed(tokens: Block, router: Block, experts: Block) -> Block:
    """Each token through its best experts, weighed by the softmax of their logits."""
    best, chosen = lax.top_k(tokens @ router, TOP)
    gates = (jax.nn.one_hot(chosen, router.shape[1], dtype=best.dtype) * jax.nn.softmax(best)[..., None]).sum(axis=1)
    return jnp.einsum("te,td,edf->tf", gates, tokens, experts)


def orthogonalised(x: Block, *, model: Any = ()) -> Block:
    """An iterated polynomial that takes singular values to about 1 (Jordan et al. 2024), columns sharded."""

    def total(part: Block) -> Block:
        return lax.psum(part, model) if model else part

    x = x * lax.rsqrt(total((x * x).sum()))
    for _ in range(STEPS):
        square = total(x @ x.T)
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def scanned(x: Block, *, model: Any = ()) -> Block:
    """A linear recurrence along rows, each step through a tanh."""
    return lax.scan(lambda h, row: (jnp.tanh(0.5 * h + row),) * 2, jnp.zeros_like(x[0]), x)[1]


def _named(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda *arguments, model: function(*arguments, model, **options)


def _losses(logits: Block, labels: Block) -> Block:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


SIZES = {"rows": 16, "n": 64, "t": 64, "long": 256, "v": 64, "s": 16, "h": 2, "d": 16, "e": 16, "f": 16}
"""The sizes of dimensions, which up to eight devices divide."""

DESCRIBED: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[str | Array, ...], str]] = {
    "all-reduce": (all_reduced, partial(jnp.sum, axis=0), ("@model rows n",), "rows n"),
    "reduce-scatter": (reduce_scattered, partial(jnp.sum, axis=0), ("@model rows n",), "rows@model n"),
    "ring matmul": (_named(ring_matmul_reduce_scatter), jnp.matmul, ("rows n@model", "n@model d"), "rows@model d"),
    "long rows": (long_rows, partial(jnp.sum, axis=1), ("t long@model",), "t"),
    "cross-entropy": (
        _named(vocab_parallel_cross_entropy), _losses, ("t v@model", Array("t", "int32", below="v")), "t"
    ),
    "layer norm": (layer_norm, layer_norm_of_whole, ("rows n@model",), "rows n@model"),
    "ring attention": (_named(attention.ring_attention), attended, ("s@model h d",) * 3, "s@model h d"),
    "mixture of experts": (
        _named(all_to_all_moe, top_k=TOP), mixed, ("rows@model d", "d e", "e@model d f"), "rows@model f"
    ),
    "Newton-Schulz": (orthogonalised, orthogonalised, ("rows n@model",), "rows n@model"),
    "scan": (scanned, scanned, ("rows n@model",), "rows n@model"),
}  # fmt: skip
"""The functions, and their references, arguments and results."""


def program(name: str, dtype: str) -> Program:
    """One of the programs, all floats of which have a dtype."""
    function, reference, arguments, results = DESCRIBED[name]
    words = " ".join(a if isinstance(a, str) else "" for a in arguments).replace("@model", "").split()
    sizes = {size: SIZES[size] for size in words}
    return Program(
        function,
        reference,
        arguments=arguments,
        results=results,
        sizes=sizes,
        dtypes=dtype,
        powers_of_two=("model",),
    )
