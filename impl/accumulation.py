"""Gradient accumulation: the gradient of a batch, a microbatch at a time, sent between devices once.

A loss is written here as a device computes it, inside of `jax.shard_map`: from weights and a part of the device's
examples to a *sum* and a *count*; the loss is their quotient, once both are added up over all microbatches and devices.
The count may be that of examples, or of tokens that are not masked: a mean of the microbatches' means would be another
number wherever counts differ.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import AxisName, check_axes, refuse
from shardproof.impl.collectives import accumulator, cast_varying
from shardproof.impl.optimisers import Tree
from shardproof.impl.training import shown

Scalar: TypeAlias = Shaped[Array, ""]
LocalLoss: TypeAlias = Callable[[Tree, Tree], tuple[Scalar, Scalar]]
"""`(weights, microbatch)`, blocks, to a sum and a count."""

Layouts: TypeAlias = Callable[[Any, AxisName, AxisName], Any]


def accumulate(
    loss: LocalLoss, weights: Tree, batch: Tree, microbatches: int, function: str = "accumulate"
) -> tuple[Scalar, Scalar, Tree]:
    """Sum, count, and the sum's gradient, of all microbatches of a device: nothing is sent over the axes of the batch.

    All are in the accumulator's dtype. Weights are typed varying along the axes of the batch: JAX adds up the gradients
    of replicas, in every microbatch. `microbatches` is a divisor of the examples, and `function` the name in messages.
    """
    for leaf in jax.tree.leaves(batch):
        if microbatches < 1 or not leaf.ndim or leaf.shape[0] % microbatches:
            refuse(function, "microbatches", microbatches, f"a number that divides the examples of {jax.typeof(leaf)}")
    parts = jax.tree.map(lambda x: x.reshape(microbatches, -1, *x.shape[1:]), batch)

    def of(part: Tree) -> tuple[Scalar, Scalar, Tree]:
        (total, count), gradients = jax.value_and_grad(loss, has_aux=True)(weights, part)
        return jax.tree.map(lambda x: x.astype(accumulator(x)), (total, count, gradients))

    def step(sums: Any, part: Tree) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, of(part)), None

    shapes = jax.eval_shape(of, jax.tree.map(lambda x: x[0], parts))
    sums, _ = lax.scan(step, jax.tree.map(_zeros, shapes), parts)
    return sums


def accumulate_gradients(
    loss: Callable[..., tuple[Scalar, Scalar]],
    *,
    microbatches: int,
    layouts: Layouts | None = None,
    gather: Callable[..., Tree] | None = None,
) -> Callable[..., Scalar]:
    """A loss of global arrays, `(params, batch, *, mesh, data, model) -> scalar`, whose gradient is accumulated.

    Its gradient by `params` is computed with it, and scaled by the cotangent afterwards. Every gradient is reduced
    once, after the last microbatch. Sums are carried in float32 if they are 16-bit floats, between devices as well, and
    gradients are rounded once, to their parameters' dtypes. If the count is 0, so are the loss and its gradient.

    Arguments:
        loss: as a device computes it: `(weights, microbatch, *, data, model)` to a sum and a count.
        microbatches: the number of parts that the examples of a device are taken in, a divisor of theirs.
        layouts: `(params, data, model)` to the PartitionSpecs of `params` and of `batch`, or prefixes of these trees;
            by default parameters are the same on all devices, and `data` shards the batch in its first dimension.
        gather: for sharded parameters, `(params, *, data, model)` to weights, blocks: a linear function, called once,
            such as an all-gather, whose transpose reduces their gradients (a reduce-scatter).

    Raises:
        NotImplementedError: for a gradient by the batch.
    """

    def both(params: Tree, batch: Tree, mesh: Any, data: AxisName, model: AxisName) -> tuple[Scalar, Tree]:
        specs, over = (layouts or replicated)(params, data, model), {"data": data, "model": model}

        def local(params: Tree, batch: Tree) -> tuple[Scalar, Tree]:
            axes = check_axes("accumulate_gradients", data)
            spread = partial(gather, **over) if gather else partial(cast_varying, axes=axes)
            # reduced in the accumulator's dtype; these weights' values are not used, and so not computed
            _, reduce = jax.vjp(spread, jax.tree.map(lambda p: p.astype(accumulator(p)), params))
            of_part = partial(loss, **over)
            total, count, sums = accumulate(of_part, spread(params), batch, microbatches, "accumulate_gradients")
            total, count = lax.psum(cast_varying((total, count), axes), axes)
            reduced = jax.tree.map(lambda g, p: mean_of(g, count).astype(p.dtype), reduce(sums)[0], params)
            return mean_of(total, count), reduced

        mapped: Any = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(), specs[0]))
        result: tuple[Scalar, Tree] = mapped(params, batch)
        return result

    def accumulated_loss(
        params: Tree, batch: Tree, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName
    ) -> Float[Array, ""]:
        @jax.custom_vjp
        def value(params: Tree, batch: Tree) -> Scalar:
            return both(params, batch, mesh, data, model)[0]

        def with_gradient(params: Any, batch: Any) -> tuple[Scalar, Tree]:
            if any(leaf.perturbed for leaf in jax.tree.leaves(batch)):
                raise NotImplementedError(
                    f"accumulate_gradients: batch: expected a gradient by params alone, on the mesh {shown(mesh)}"
                )
            params, batch = jax.tree.map(lambda leaf: leaf.value, (params, batch))
            return both(params, batch, mesh, data, model)

        def backward(gradients: Tree, cotangent: Any) -> tuple[Tree, None]:
            return jax.tree.map(lambda g: (g * cotangent).astype(g.dtype), gradients), None

        value.defvjp(with_gradient, backward, symbolic_zeros=True)
        result: Scalar = value(params, batch)
        return result

    return accumulated_loss


def replicated(params: Tree, data: AxisName, model: AxisName) -> tuple[Any, Any]:
    """Parameters that are the same everywhere, and a batch that `data` shards in its first dimension."""
    return P(), P(data if isinstance(data, str) else tuple(data))


def mean_of(total: Array, count: Array) -> Array:
    """A sum by its count; 0 if that is 0."""
    return total / jnp.where(count == 0, 1, count).astype(total.dtype)


def _zeros(shape: jax.ShapeDtypeStruct) -> Array:
    """Zeros of a shape, typed as it is, if types are checked."""
    kind = getattr(shape, "manual_axis_type", None)
    axes = sorted(kind.varying) if kind is not None else ()
    return cast_varying(jnp.zeros(shape.shape, shape.dtype), axes)
