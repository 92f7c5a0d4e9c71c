"""A way to compute the loss of a model on a mesh: a layout, and what a layer does with blocks of it.

The loss is `loss(params, batch, *, mesh, data, model)`: the mean over the examples of the summed squares of what
their outputs are off by. Between layers there is a ReLU, and none after the last. `params` is a list of `(W [D_in,
D_out], b [D_out])`, `batch` is `(inputs [B, D_0], targets [B, D_n])`: global arrays, of which the layout says how
devices share them. The scalar has their dtype; 16-bit floats are added up in float32, on a device and over devices,
and hidden values are rounded to their dtype.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import AxisName, as_axes, refuse
from shardproof.impl.losses.blocks import saves_all_but_gathers
from shardproof.impl.losses.layout import Axes, Layout
from shardproof.impl.model import Batch, Params, forward, squared_errors
from shardproof.impl.placing import check_parts, check_roles, parts, placed

Linear = Callable[[Array, Array, Array, Axes, Axes], Array]
"""Blocks of x, W and b, the axes of `data` and of `model`, to the block of `x W + b`, in the accumulator's dtype."""


@dataclass(frozen=True)
class Parallelisation:
    """A way to compute the loss of a model on a mesh.

    Arguments:
        name: what messages call it.
        layout: how devices share parameters and batch.
        linear: what a layer does with its blocks.
    """

    name: str
    layout: Layout
    linear: Linear

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(
        self, params: Params, batch: Batch, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName
    ) -> Float[Array, ""]:
        """The loss of global arrays, the same on all devices.

        On axes of type Auto `shard_map` lays the arrays out, on those of type Explicit they are resharded first; what
        is laid out as `layout` says moves in neither. On Explicit axes call it under `jax.jit`, or `jax.set_mesh`.

        Arguments:
            params: layers `(W [D_in, D_out], b [D_out])`.
            batch: `(inputs [B, D_0], targets [B, D_n])`.
            mesh: the mesh.
            data: the axis or axis tuple, in any order, over which examples are shared; it may be of none, `()`.
            model: the same of features, for layouts that share these.

        Raises:
            ValueError: for sizes that do not match one another, or that the layout's axes do not divide; for axes that
                are not the mesh's, or are in both roles.
        """
        over = as_axes(data), as_axes(model)
        inputs, targets = batch
        self.check(self.name, params, inputs, targets, mesh=mesh, data=over[0], model=over[1])
        specs = self.layout.specs(len(params), data=over[0], model=over[1])
        local: Any = jax.shard_map(
            lambda params, batch: self._local(params, batch, batch[0].shape[0] * parts(specs[1][0][0], mesh), *over),
            mesh=mesh,
            in_specs=specs,
            out_specs=PartitionSpec(),
        )
        loss: Array = local(*placed((params, batch), specs, mesh))
        return loss

    def rematerialised(self, name: str) -> "Parallelisation":
        """The same under another name, with parameters gathered again in the backward pass rather than kept."""
        linear: Any = jax.checkpoint(self.linear, policy=saves_all_but_gathers, static_argnums=(3, 4))
        return dataclasses.replace(self, name=name, linear=linear)

    def outputs(self, params: Params, inputs: Array, data: Axes, model: Axes) -> Array:
        """The block of the model's outputs that belongs to blocks of the layout, in the accumulator's dtype."""
        return forward(params, inputs, lambda x, w, b: self.linear(x, w, b, data, model))

    def _local(self, params: Params, batch: Batch, examples: int, data: Axes, model: Axes) -> Array:
        """The loss, on blocks of the layout."""
        inputs, targets = batch
        outputs = self.outputs(params, inputs, data, model)
        axes = {"data": data, "model": model}
        over = tuple(name for roles in self.layout.targets for role in roles for name in axes[role])
        own = jnp.sum(squared_errors(outputs, targets)) / examples
        return (lax.psum(own, over) if over else own).astype(inputs.dtype)

    def check(
        self,
        function: str,
        params: Params,
        inputs: Shaped[Array, "..."],
        targets: Shaped[Array, "..."] | None = None,
        *,
        mesh: Mesh | AbstractMesh,
        data: Axes,
        model: Axes,
    ) -> None:
        """Arguments of a function that computes with a model under this parallelisation.

        Arguments:
            function: what messages call it.
            params: layers `(W [D_in, D_out], b [D_out])`.
            inputs: `[B, D_0]`.
            targets: `[B, D_n]`, if it takes any.
            mesh: the mesh.
            data: the axes over which examples are shared.
            model: those over which features are.

        Raises:
            ValueError: for sizes that do not match one another, or that the layout's axes do not divide; for axes that
                are not the mesh's, or are in both roles.
        """
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh):
            check_roles(function, mesh, data=data, model=model)
            width = self._check_sizes(function, params, inputs)
            if targets is not None and targets.shape != (inputs.shape[0], width):
                shapes = f"inputs {list(inputs.shape)}, targets {list(targets.shape)}"
                refuse(function, "batch", shapes, f"inputs [B, {params[0][0].shape[0]}] and targets [B, {width}]")
            layers, of_batch = self.layout.specs(len(params), data=data, model=model)
            arrays: list[tuple[str, Any, PartitionSpec]] = [
                *(("params", x, s) for pair in zip(params, layers, strict=True) for x, s in zip(*pair, strict=True)),
                *(("batch", x, s) for x, s in zip((inputs, targets), of_batch, strict=True) if x is not None),
            ]
            for argument, x, layout in arrays:
                check_parts(function, argument, x, layout, mesh)

    def _check_sizes(self, function: str, params: Params, inputs: Array) -> int:
        """How many outputs there are."""
        if not params:
            refuse(function, "params", params, "one layer at least")
        width = inputs.shape[1:]
        for at, (w, b) in enumerate(params):
            if w.ndim != 2 or w.shape[:1] != width or b.shape != w.shape[1:]:
                shapes = f"W {list(w.shape)}, b {list(b.shape)} of layer {at}"
                refuse(function, "params", shapes, f"W [{', '.join(map(str, width))}, D] and b [D]")
            width = b.shape
        if inputs.ndim != 2:
            refuse(function, "batch", f"inputs {list(inputs.shape)}", f"inputs [B, {params[0][0].shape[0]}]")
        return int(width[0])
