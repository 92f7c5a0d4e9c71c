"""JAX without one of its defects, for as long as it takes to judge a case.

What is put in place of a rule of JAX's is the rule as it should be, for that primitive alone. Whatever was traced or
derived by the one or the other is forgotten on the way in and out.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

from shardproof.properties.laws import communication, running


def forget() -> None:
    """Drops what was traced."""
    jax.clear_caches()
    running.forget()
    communication.forget()


@contextmanager
def _in_place(rules: MutableMapping[Any, Any], primitive: Any, rule: Callable[..., Any]) -> Iterator[None]:
    original = rules[primitive]
    forget()
    rules[primitive] = rule
    try:
        yield
    finally:
        rules[primitive] = original
        forget()


@contextmanager
def exchange_transposed(primitive: Any) -> Iterator[None]:
    """The transpose of an all_to_all is the one with its axes exchanged, of the primitive and not of the function."""

    def transpose(cotangent: Any, x: Any, *, split_axis: int, concat_axis: int, **params: Any) -> list[Any]:
        if type(cotangent) is ad.Zero:
            return [ad.Zero(x.aval)]
        return [primitive.bind(cotangent, split_axis=concat_axis, concat_axis=split_axis, **params)]

    with _in_place(ad.primitive_transposes, primitive, transpose):
        yield


@contextmanager
def scatter_batched(primitive: Any) -> Iterator[None]:
    """The batch dimension of an untiled psum_scatter moves up by one where it stood behind the scattered one."""
    original = batching.fancy_primitive_batchers[primitive]

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        (x,), (d,) = values, dims
        named = params["axis_name"] if isinstance(params["axis_name"], tuple) else (params["axis_name"],)
        if d is None or axis_data.name in named or params["tiled"]:
            return original(axis_data, values, dims, **params)
        return original(axis_data, (jnp.moveaxis(x, d, 0),), (0,), **params)

    with _in_place(batching.fancy_primitive_batchers, primitive, batch):
        yield


@contextmanager
def ragged_exchange_batched(primitive: Any) -> Iterator[None]:
    """An operand of a ragged_all_to_all that is not mapped is the same for every input of the batch."""
    original = batching.fancy_primitive_batchers[primitive]

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        if all(d is None for d in dims):
            return original(axis_data, values, dims, **params)
        every = [
            jnp.broadcast_to(x, (axis_data.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(values, dims, strict=True)
        ]
        return original(axis_data, every, [0] * len(every), **params)

    with _in_place(batching.fancy_primitive_batchers, primitive, batch):
        yield


@contextmanager
def maximum_of_gathered(primitive: Any) -> Iterator[None]:
    """A maximum (or minimum) over devices is that of the gathered blocks, for maxima and minima alike."""
    primitives: tuple[Any, ...] = (lax.pmax_p, lax.pmin_p)
    originals = {p: p.bind for p in primitives}

    def bind(p: Any) -> Callable[..., Any]:
        reduce = jnp.max if p is lax.pmax_p else jnp.min

        def gathered(x: Any, *, axes: Any, axis_index_groups: Any = None) -> Any:
            if axis_index_groups is not None:
                return originals[p](x, axes=axes, axis_index_groups=axis_index_groups)
            return reduce(lax.all_gather(x, axes, to="invarying"), axis=0)

        return gathered

    forget()
    for p in originals:
        p.bind = bind(p)
    try:
        yield
    finally:
        for p in originals:
            del p.bind  # what hid the method of the class
        forget()
