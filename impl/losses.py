"""The loss of a model under every parallelisation: the same function of the same arrays, laid out in different ways.

The loss is `loss(params, batch, *, mesh, data, model)`: the mean over the examples of the summed squares of what
their outputs are off by. Between layers there is a ReLU, and none after the last. `params` is a list of `(W [D_in,
D_out], b [D_out])`, `batch` is `(inputs [B, D_0], targets [B, D_n])`: global arrays, of which the layout says how
devices share them. The scalar has their dtype; 16-bit floats are added up in float32, on a device and over devices,
and hidden values are rounded to their dtype.

Data parallelism has all parameters on every device, and each device its share of the examples: gradients are added up
over all devices, in one all-reduce of each array, which compilers combine.

Fully sharded data parallelism (Rajbhandari et al. 2020; Zhao et al. 2023) shares examples and parameters. A layer
gathers its parameters, multiplies its own examples by them, and drops them. The transpose of the gather is a
reduce-scatter: a device adds up the gradient of its own part. What is rematerialised is gathered again for that.

Tensor parallelism shares the features of all layers, beside the examples. Unlike the layers of Shoeybi et al. 2019,
which are column- and row-parallel by turns, every layer is row-parallel: a device has some features of its examples,
and the rows of W for them. The products are added up over `model`; of the sum every device keeps the columns that are
its features of the next layer, in one reduce-scatter. Devices along `data` hold replicas of parameters, or, fully
sharded, a part of their rows each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Shaped

from shardproof.impl.arguments import Axes, AxisName, as_axes, refuse
from shardproof.impl.collectives import cast_varying
from shardproof.impl.model import Batch, Params, forward, squared_errors, wide
from shardproof.impl.placing import check_parts, check_roles, parts, place
from shardproof.impl.rings import multiply

Roles = tuple[Axes, ...]
"""The roles (`data`, `model`) whose axes shard each dimension, the first varying slowest."""

ROLES = ("data", "model")
EXAMPLES = ROLES
"""The roles that share examples where features are whole."""


@dataclass(frozen=True)
class Layout:
    """The layout of arrays: the roles that shard each dimension."""

    inputs: Roles = ((), ())  # `[B, D_0]`
    weights: Roles = ((), ())  # `[D_in, D_out]`, of every layer
    biases: Roles = ((),)  # `[D_out]`, of every layer
    targets: Roles = ((), ())  # `[B, D_n]`

    def __post_init__(self) -> None:
        for field in fields(self):
            named = [role for roles in getattr(self, field.name) for role in roles]
            if len({*named}) != len(named) or not {*named} <= {*ROLES}:
                value = getattr(self, field.name)
                raise ValueError(f"Layout: {field.name}={value}: expected each of {ROLES} once at most")

    def specs(self, depth: int, *, data: AxisName, model: AxisName) -> tuple[list[Any], tuple[Any, Any]]:
        """The PartitionSpecs of `(params, batch)`, of a model of `depth` layers."""
        axes = dict(zip(ROLES, (as_axes(data), as_axes(model)), strict=True))
        layer = spec(self.weights, axes), spec(self.biases, axes)
        return [layer] * depth, (spec(self.inputs, axes), spec(self.targets, axes))

    def shardings(self, depth: int, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName) -> Any:
        """The shardings of `(params, batch)`, for `jax.device_put`."""
        specs = self.specs(depth, data=data, model=model)
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def axes_of(roles: Sequence[str], *, data: Axes, model: Axes) -> Axes:
    """The axes of these roles, one after the other."""
    return tuple(name for role in roles for name in (data if role == "data" else model))


def spec(roles: Roles, axes: Mapping[str, Axes]) -> PartitionSpec:
    """The PartitionSpec of dimensions that are sharded by these roles."""
    return PartitionSpec(*(tuple(a for role in some for a in axes[role]) or None for some in roles))


Features = Float[Array, "b _"]
Weights = Float[Array, "_ _"]
Biases = Float[Array, "_"]
"""Blocks of features of examples, of weights and of biases, as the layout has them."""


@dataclass(frozen=True)
class Parallelisation:
    """A way to compute the loss of a model on a mesh."""

    name: str  # what messages call it
    layout: Layout  # how devices share parameters and batch
    rematerialised: bool = False  # parameters are gathered again in the backward pass

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(
        self, params: Params, batch: Batch, *, mesh: Mesh | AbstractMesh, data: AxisName, model: AxisName
    ) -> Float[Array, ""]:
        """The loss of global arrays, the same on all devices.

        On axes of type Auto `shard_map` lays the arrays out, on those of type Explicit they are resharded first; arrays
        that have the `layout` do not move. On Explicit axes call it under `jax.jit`, or `jax.set_mesh`.

        Arguments:
            params: layers `(W [D_in, D_out], b [D_out])`.
            batch: `(inputs [B, D_0], targets [B, D_n])`.
            mesh: the mesh.
            data: the axis or axis tuple, in any order, over which examples are shared; it may be of none, `()`.
            model: the same of features, for layouts that share these.
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
        loss: Array = local(*place((params, batch), specs, mesh))
        return loss

    def linear(self, x: Features, w: Weights, b: Biases, data: Axes, model: Axes) -> Features:
        """The block of `x W + b`, in the accumulator's dtype, from blocks of the layout.

        Parameters are gathered over axes that share examples. Where features are shared products are added up, and each
        device keeps its columns of the sum.
        """
        examples, features = self.layout.inputs

        def gather(block: Array, layout: Roles) -> Array:
            shards = [axes_of([r for r in roles if r not in features], data=data, model=model) for roles in layout]
            gathers = [(axes, dimension) for dimension, axes in enumerate(shards)]
            return gather_parameter(block, gathers[::-1], along=axes_of(examples, data=data, model=model))

        product = multiply(x, gather(w, self.layout.weights))
        product = scattered_sum(product, axes_of(features, data=data, model=model))
        return product + gather(b, self.layout.biases)

    def outputs(self, params: Params, inputs: Array, data: Axes, model: Axes) -> Array:
        """The block of the model's outputs, from blocks of the layout, in the accumulator's dtype."""
        layer: Any = self.linear
        if self.rematerialised:
            layer = jax.checkpoint(layer, policy=saves_all_but_gathers, static_argnums=(3, 4))
        return forward(params, inputs, lambda x, w, b: layer(x, w, b, data, model))

    def _local(self, params: Params, batch: Batch, examples: int, data: Axes, model: Axes) -> Array:
        """The loss, on blocks of the layout."""
        inputs, targets = batch
        outputs = self.outputs(params, inputs, data, model)
        over = axes_of([role for roles in self.layout.targets for role in roles], data=data, model=model)
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
        """Checks the arguments of a call; `function` is the name in messages."""
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
        """Checks that sizes match; returns the number of outputs."""
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


Gathers = Sequence[tuple[Axes, int]]
"""The axis tuples to gather over, each with the dimension that it shards, one after the other."""

GATHERED = frozenset({"all_gather", "convert_element_type", "custom_jvp_call", "pcast", "pvary"})
"""Primitives whose results are gathered parameters, or these in a wider dtype: none is saved for a backward pass.

`custom_jvp_call` is a gather of 16-bit floats, see `gather_parameter`.
"""


def gather_parameter(block: Shaped[Array, "..."], gathers: Gathers = (), *, along: Axes) -> Float[Array, "..."]:
    """A device's block of a parameter, gathered, in the accumulator's dtype, and typed varying `along` these axes too.

    Blocks travel in their own dtype. The gradient is added up in the accumulator's, over the devices of the gathers (a
    reduce-scatter) and over those that hold replicas of the block (an all-reduce), and rounded once.
    """
    gathers = tuple((axes, dimension) for axes, dimension in gathers if axes)
    if not gathers or wide(block).dtype == block.dtype:
        return _gather(wide(block), gathers, along)

    @jax.custom_jvp
    def gathered(x: Array) -> Array:
        return wide(_gather(x, gathers, along))

    @gathered.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return gathered(*primals), _gather(wide(*tangents), gathers, along)

    result: Array = gathered(block)
    return result


def _gather(block: Array, gathers: Gathers, along: Axes) -> Array:
    # cast first: the transpose of the cast is a sum over replicas, which is then one of a block
    block = cast_varying(block, along)
    for axes, dimension in gathers:
        block = lax.all_gather(block, axes, axis=dimension, tiled=True)
    return block


def scattered_sum(x: Float[Array, "b d"], axes: Axes) -> Float[Array, "b d_part"]:
    """The sum over these axes, of whose columns every device keeps its part."""
    return lax.psum_scatter(x, axes, scatter_dimension=1, tiled=True) if axes else x


def saves_all_but_gathers(primitive: object, *_: object, **__: object) -> bool:
    """A policy of `jax.checkpoint`: gathered parameters are gathered again where a backward pass needs them."""
    return getattr(primitive, "name", "") not in GATHERED


one_device = Parallelisation("one_device", Layout())
"""Every device computes all of it; nothing is sent."""

data_parallel = Parallelisation("data_parallel", Layout(inputs=(EXAMPLES, ()), targets=(EXAMPLES, ())))
"""`inputs [B_XY, D_0]`, `W [D_in, D_out]`, `b [D_out]`, `targets [B_XY, D_n]`, with data X and model Y."""

ROWS = Layout((EXAMPLES, ()), weights=(EXAMPLES, ()), biases=(("model",),), targets=(EXAMPLES, ()))
fsdp_rows = Parallelisation("fsdp_rows", ROWS)
"""`inputs [B_XY, D_0]`, `W [D_in_XY, D_out]`, `b [D_out_Y]`, `targets [B_XY, D_n]`, with data X and model Y."""

BLOCKS = Layout((EXAMPLES, ()), weights=(("data",), ("model",)), biases=(("model",),), targets=(EXAMPLES, ()))
fsdp_2d = Parallelisation("fsdp_2d", BLOCKS)
"""`inputs [B_XY, D_0]`, `W [D_in_X, D_out_Y]`, `b [D_out_Y]`, `targets [B_XY, D_n]`, with data X and model Y."""

FEATURES = (("data",), ("model",))
tensor_parallel = Parallelisation(
    "tensor_parallel", Layout(FEATURES, weights=(("model",), ()), biases=(("model",),), targets=FEATURES)
)
"""`inputs [B_X, D_0_Y]`, `W [D_in_Y, D_out]`, `b [D_out_Y]`, `targets [B_X, D_n_Y]`, with data X and model Y."""

SHARDED_FEATURES = Layout(FEATURES, weights=(("model", "data"), ()), biases=(("model",),), targets=FEATURES)
fsdp_tensor_parallel = Parallelisation("fsdp_tensor_parallel", SHARDED_FEATURES)
"""`inputs [B_X, D_0_Y]`, `W [D_in_YX, D_out]`, `b [D_out_Y]`, `targets [B_X, D_n_Y]`, with data X and model Y."""

fsdp_rows_remat = Parallelisation("fsdp_rows_remat", ROWS, rematerialised=True)
fsdp_2d_remat = Parallelisation("fsdp_2d_remat", BLOCKS, rematerialised=True)
fsdp_tensor_parallel_remat = Parallelisation("fsdp_tensor_parallel_remat", SHARDED_FEATURES, rematerialised=True)

PARALLELISATIONS: dict[str, Parallelisation] = {
    each.name: each
    for each in (
        one_device,
        data_parallel,
        fsdp_rows,
        fsdp_rows_remat,
        fsdp_2d,
        fsdp_2d_remat,
        tensor_parallel,
        fsdp_tensor_parallel,
        fsdp_tensor_parallel_remat,
    )
}
"""All of them by their names."""
