"""The transformations that people put around a collective, none of which may change its meaning.

Each wraps a device-local function of blocks. The *batched* ones call it on `BATCH` inputs that
are stacked along a leading dimension of every operand and result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardproof.properties.cases.case import BATCH

Local = Callable[..., list[jax.Array]]
"""Blocks in, a list of result blocks out."""


@dataclass(frozen=True)
class Transformation:
    """A transformation by its name, its effect on a function, and what that does to the results.

    Arguments:
        name: what cases call it.
        wrap: the function to the transformed function.
        batched: whether operands and results carry a leading batch dimension.
        differentiable: whether reverse mode goes through it.
        checked: whether `shard_map` checks the types (`check_vma`).
        compiled: whether the program is put under `jit`.
        keeps: which of the batch's results are kept; the others are zeros.
    """

    name: str
    wrap: Callable[[Local], Local]
    batched: bool = False
    differentiable: bool = True
    checked: bool = True
    compiled: bool = True
    keeps: tuple[bool, ...] = (True,) * BATCH

    def expected(self, results: Sequence[np.ndarray], lead: int) -> np.ndarray:
        """The batch of results, stacked behind `lead` mesh dimensions, those not kept as zeros."""
        kept = [r if keep else np.zeros_like(r) for r, keep in zip(results, self.keeps, strict=True)]
        return np.stack(kept, axis=lead)


def _vmap_last(fn: Local) -> Local:
    def batched(*xs: jax.Array) -> list[jax.Array]:
        moved = [jnp.moveaxis(x, 0, -1) for x in xs]
        return [jnp.moveaxis(y, -1, 0) for y in jax.vmap(fn, in_axes=-1, out_axes=-1)(*moved)]

    return batched


def _scan(fn: Local) -> Local:
    return lambda *xs: lax.scan(lambda carry, x: (carry, fn(*x)), 0, xs)[1]


def zeros_of_type(aval: Any) -> jax.Array:
    """Zeros of an abstract value: its shape, its dtype, and its varying axes."""
    zeros = jnp.zeros(aval.shape, aval.dtype)
    axes = tuple(sorted(aval.manual_axis_type.varying))
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


def result_types(fn: Local, *xs: jax.Array) -> list[Any]:
    """The abstract values of the results of `fn`, found by tracing it."""
    return list(jax.make_jaxpr(fn)(*xs).out_avals)


def _while(fn: Local) -> Local:
    def loop(*xs: jax.Array) -> list[jax.Array]:
        types = result_types(fn, *[x[0] for x in xs])
        buffers = [jnp.broadcast_to(zeros_of_type(t), (len(xs[0]), *t.shape)) for t in types]

        def step(state: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, list[jax.Array]]:
            i, held = state
            ys = fn(*[lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs])
            return i + 1, [lax.dynamic_update_index_in_dim(h, y, i, 0) for h, y in zip(held, ys, strict=True)]

        return lax.while_loop(lambda state: state[0] < len(xs[0]), step, (jnp.int32(0), buffers))[1]

    return loop


def _cond(fn: Local) -> Local:
    def choose(*xs: jax.Array) -> list[jax.Array]:
        types = result_types(fn, *[x[0] for x in xs])

        def step(carry: int, inputs: tuple[jax.Array, Sequence[jax.Array]]) -> tuple[int, list[jax.Array]]:
            flag, x = inputs
            return carry, lax.cond(flag, lambda x: list(fn(*x)), lambda x: [zeros_of_type(t) for t in types], x)

        return lax.scan(step, 0, (jnp.array([True, False]), xs))[1]

    return choose


def _plain(fn: Local) -> Local:
    return fn


TRANSFORMATIONS: dict[str, Transformation] = {
    t.name: t
    for t in (
        Transformation("jit", _plain),
        Transformation("eager", _plain, compiled=False),
        Transformation("inner_jit", jax.jit),
        Transformation("checkpoint", jax.checkpoint),
        Transformation("vmap", jax.vmap, batched=True),
        Transformation("vmap_last", _vmap_last, batched=True),
        Transformation("scan", _scan, batched=True),
        Transformation("while_loop", _while, batched=True, differentiable=False),
        Transformation("cond", _cond, batched=True, keeps=(True, False)),
        Transformation("partial_manual", _plain),
        # with unchecked types, the transpose of psum is psum: gradients are known to be wrong (see the known defects)
        Transformation("no_vma", _plain, checked=False, differentiable=False),
    )
}
