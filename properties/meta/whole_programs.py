"""Sharded programs of several kinds with what they mean on whole arrays, and one planted bug in each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from shardproof.properties.contracts.described import Array


@dataclass(frozen=True)
class Written:
    """A program, the same with a bug, what both should mean, and how they are described."""

    right: Callable[..., Any]
    wrong: Callable[..., Any]
    reference: Callable[..., Any]
    arguments: tuple[Any, ...]
    results: Any
    more: Mapping[str, Any] = field(default_factory=dict)
    law: str = "value"


def mlp(x: Any, w_in: Any, w_out: Any, *, data: Any, model: Any) -> Any:
    """Tensor parallel."""
    return lax.psum(jax.nn.relu(x @ w_in) @ w_out, model)


def mlp_without_its_sum(x: Any, w_in: Any, w_out: Any, *, data: Any, model: Any) -> Any:
    """Every device keeps its part of the sum."""
    return jax.nn.relu(x @ w_in) @ w_out


def numpy_mlp(x: Any, w_in: Any, w_out: Any) -> Any:
    """On whole arrays, in NumPy."""
    return np.maximum(x @ w_in, 0) @ w_out


def softmax(x: Any, *, model: Any, temperature: float) -> Any:
    """Over a sharded dimension."""
    largest = lax.pmax(lax.stop_gradient(x.max(-1, keepdims=True)), model)
    powers = jnp.exp((x - largest) / temperature)
    return powers / lax.psum(powers.sum(-1, keepdims=True), model)


def softmax_with_a_trifle(x: Any, *, model: Any, temperature: float) -> Any:
    """One part in a million too much."""
    return softmax(x, model=model, temperature=temperature) * (1 + 1e-6)


def whole_softmax(x: Any, temperature: float) -> Any:
    """In NumPy."""
    powers = np.exp((x - x.max(-1, keepdims=True)) / temperature)
    return powers / powers.sum(-1, keepdims=True)


def _sum_with_its_own_gradient(backward: Callable[[Any, Any], Any]) -> Any:
    """The sum over axes, of which this is the derivative."""
    summed = jax.custom_vjp(lambda x, axes: lax.psum(x, axes), nondiff_argnums=(1,))
    summed.defvjp(lambda x, axes: (lax.psum(x, axes), None), lambda axes, _, ct: (backward(ct, axes),))
    return summed


def _varying(ct: Any, axes: Any) -> Any:
    return lax.pcast(ct, axes, to="varying")


_summed = _sum_with_its_own_gradient(_varying)
_summed_twice_back = _sum_with_its_own_gradient(lambda ct, axes: _varying(lax.psum(_varying(ct, axes), axes), axes))


def parallel(x: Any, w: Any, *, model: Any) -> Any:
    """A product whose sum is a collective with a derivative of its own."""
    return _summed(x @ w, model)


def parallel_summed_back(x: Any, w: Any, *, model: Any) -> Any:
    """Whose backward pass adds up once more what is the same on all."""
    return _summed_twice_back(x @ w, model)


def from_before(x: Any, *, data: Any) -> Any:
    """A loop whose carry begins as zeros: with types, it is not varying as what is added to it is."""
    zeros = jnp.zeros(x.shape[1:], x.dtype)
    return lax.psum(lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], zeros), data)


def from_before_on_each(x: Any, *, data: Any) -> Any:
    """The same without the sum over devices, which `check_vma` would have reported."""
    zeros = jnp.zeros(x.shape[1:], x.dtype)
    return lax.fori_loop(0, x.shape[0], lambda i, total: total + x[i], zeros)


def _bits(data: str) -> range:
    """The bits of the number of participants."""
    p = lax.axis_size(data)
    if p & (p - 1):
        raise ValueError(f"data={data!r}: {p} participants: expected a power of two")
    return range(p.bit_length() - 1)


def butterfly(x: Any, *, data: str) -> Any:
    """An all-reduce by recursive doubling, of one axis with a power of two of participants."""
    for bit in _bits(data):
        x = x + lax.ppermute(x, data, [(i, i ^ 1 << bit) for i in range(lax.axis_size(data))])
    return x


def butterfly_with_one_wing(x: Any, *, data: str) -> Any:
    """Whose every exchange is with the next participant."""
    for _ in _bits(data):
        x = x - lax.ppermute(x, data, [(i, i ^ 1) for i in range(lax.axis_size(data))])
    return x


def _multiply(x: Any, w: Any) -> Any:
    def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.dot(x_ref[...], w_ref[...])

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, w)


def pallas(x: Any, w: Any, *, data: Any, model: Any) -> Any:
    """A product by a kernel, added up."""
    return lax.psum(_multiply(x, w), model)


def pallas_without_its_sum(x: Any, w: Any, *, data: Any, model: Any) -> Any:
    """Every device keeps its part of the sum."""
    return _multiply(x, w)


def average(x: Any, *, data: Any) -> Any:
    """The mean of all rows, on a mesh without that axis as well."""
    return lax.pmean(x.mean(0), data)


def average_of_shards_alone(x: Any, *, data: Any) -> Any:
    """Takes what is not sharded for a row."""
    return lax.pmean(x.mean(0), data) if data else x[0]


def average_of_the_first(x: Any, count: Any, *, data: Any) -> Any:
    """The mean of the first rows; the others are padding."""
    at = lax.axis_index(data) * x.shape[0] + jnp.arange(x.shape[0])
    return _average_where(at < count, x, count, data)


def average_of_the_first_of_each(x: Any, count: Any, *, data: Any) -> Any:
    """Takes the padding to be at the end of each shard."""
    return _average_where(jnp.arange(x.shape[0]) < count, x, count, data)


def _average_where(chosen: Any, x: Any, count: Any, data: Any) -> Any:
    total = lax.psum(jnp.where(chosen[:, None], x, 0).sum(0), data)
    return total / jnp.maximum(count, 1).astype(x.dtype)


def whole_average_of_the_first(x: Any, count: Any) -> Any:
    """In NumPy."""
    return x[:count].sum(0) / max(count, 1)


def _descent(loss: Callable[[Any], Any], params: Any) -> Any:
    """A step of gradient descent, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def _squares(params: Any, batch: Any) -> Any:
    return ((jnp.tanh(batch["x"] @ params["w"] + params["b"]) - batch["y"]) ** 2).mean()


def step(params: Any, batch: Any, *, data: Any) -> Any:
    """A step of gradient descent, on trees; the gradient is taken inside."""
    return _descent(lambda params: lax.pmean(_squares(params, batch), data), params)


def step_without_its_mean(params: Any, batch: Any, *, data: Any) -> Any:
    """Adds up the losses of all devices."""
    return _descent(lambda params: lax.psum(_squares(params, batch), data), params)


def whole_step(params: Any, batch: Any) -> Any:
    """In JAX, differentiated by JAX."""
    return _descent(lambda params: _squares(params, batch), params)


def counts(ids: Any, *, data: Any) -> Any:
    """Counts of five numbers: integers alone."""
    return lax.psum((ids[:, None] == jnp.arange(5)).astype(jnp.int32).sum(0, dtype=jnp.int32), data)


def counts_on_each(ids: Any, *, data: Any) -> Any:
    """Presence on each device, added up, in place of counts."""
    return lax.psum((ids[:, None] == jnp.arange(5)).any(0).astype(jnp.int32), data)


def whole_counts(ids: Any) -> Any:
    """In NumPy."""
    return np.bincount(ids, minlength=5).astype(np.int32)


def counted_loss(x: Any, w: Any, mask: Any, *, data: Any) -> Any:
    """A loss, and beside it how many examples it is of, which is no float and has no derivative."""
    terms = jnp.where(mask[:, None], (x @ w) ** 2, 0)
    loss, count = lax.psum((jnp.sum(terms), jnp.sum(mask, dtype=jnp.int32)), data)
    return {"loss": loss, "count": count}


def counted_loss_of_constant_weights(x: Any, w: Any, mask: Any, *, data: Any) -> Any:
    """Wrong in a gradient alone."""
    return counted_loss(x, lax.stop_gradient(w), mask, data=data)


def whole_counted_loss(x: Any, w: Any, mask: Any) -> Any:
    """In JAX."""
    terms = jnp.where(mask[:, None], (x @ w) ** 2, 0)
    return {"loss": jnp.sum(terms), "count": jnp.sum(mask, dtype=jnp.int32)}


def whole(x: Any, w: Any, *, mesh: Any, data: Any, model: Any) -> Any:
    """A function of global arrays with its own `shard_map`."""
    function: Any = jax.shard_map(
        lambda x, w: lax.psum(x @ w, model), mesh=mesh, in_specs=(P(data, model), P(model, None)), out_specs=P(data)
    )
    return function(x, w)


def whole_turned(x: Any, w: Any, *, mesh: Any, data: Any, model: Any) -> Any:
    """Takes the rows of the weights from the neighbour."""

    def product(x: Any, w: Any) -> Any:
        p = lax.axis_size(model)
        return lax.psum(x @ lax.ppermute(w, model, [(i, (i + 1) % p) for i in range(p)]), model)

    specs = (P(data, model), P(model, None))
    function: Any = jax.shard_map(product, mesh=mesh, in_specs=specs, out_specs=P(data))
    return function(x, w)


PROGRAMS: dict[str, Written] = {
    "mlp": Written(
        mlp, mlp_without_its_sum, numpy_mlp,
        ("batch@data embed", "embed hidden@model", "hidden@model embed"), "batch@data embed",
    ),
    "softmax": Written(
        softmax, softmax_with_a_trifle, whole_softmax, ("t c@model",), "t c@model",
        {"options": {"temperature": (1.0, 2.0)}, "dtypes": ["float32"]},
    ),
    "parallel": Written(
        parallel, parallel_summed_back, lambda x, w: x @ w, ("b k@model", "k@model n"), "b n", law="gradient",
    ),
    "from_before": Written(
        from_before, from_before_on_each, lambda x: x.sum(0), ("b@data n",), "n", {"check_vma": False},
    ),
    "butterfly": Written(
        butterfly, butterfly_with_one_wing, lambda x: np.broadcast_to(x.sum(0), x.shape), ("@data n",), "@data n",
        {"one_axis": ["data"], "powers_of_two": ["data"]},
    ),
    "pallas": Written(
        pallas, pallas_without_its_sum, lambda x, w: x @ w, ("b@data k@model", "k@model n"), "b@data n",
        {"check_vma": False},
    ),
    "average": Written(
        average, average_of_shards_alone, lambda x: x.mean(0), ("n@data d",), "d", {"optional": ["data"]},
    ),
    "padded": Written(
        average_of_the_first, average_of_the_first_of_each, whole_average_of_the_first,
        ("n@data d", Array("", "int32", below="n")), "d",
    ),
    "step": Written(
        step, step_without_its_mean, whole_step,
        ({"w": "i o", "b": "o"}, {"x": "batch@data i", "y": "batch@data o"}), ({"w": "i o", "b": "o"}, ""),
        {"differentiates": True},
    ),
    "counts": Written(
        counts, counts_on_each, whole_counts, (Array("n@data", "int32", below=5),), Array("5", "int32"),
    ),
    "counted": Written(
        counted_loss, counted_loss_of_constant_weights, whole_counted_loss,
        ("batch@data i", "i o", Array("batch@data", "bool")), {"loss": "", "count": Array("", "int32")},
        law="gradient",
    ),
    "whole": Written(
        whole, whole_turned, lambda x, w: x @ w, ("b@data k@model", "k@model n"), "b@data n", {"whole": True},
    ),
}  # fmt: skip
