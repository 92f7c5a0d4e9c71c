"""Published losses of a model: data parallel, fully sharded in two ways, tensor parallel, and both at once.

From "JAX Sharding and Parallel Computing": a local loss per example, a mean over the device's own examples, a mean of
these over devices, and what a layer gathers or scatters, rematerialised by the name of the primitive. All five are
right. Where ReLU follows every layer, the last one too, as a loop over the layers has it, it is another loss than that
of the contract, and reported on one device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardproof.impl import losses
from shardproof.impl.losses import Layout
from shardproof.impl.model import initialise, random_batch
from shardproof.properties.meta.brief import marked
from shardproof.properties.report.checking import check

Axes = tuple[str, ...]
Linear = Callable[[Any, Any, Any, Axes, Axes], jax.Array]


def alone(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """All parameters are here."""
    return jnp.asarray(x @ w + b)


def gathered(x: Any, over: Axes, dimension: int) -> Any:
    """Along no axis there is nothing to gather."""
    return lax.all_gather(x, over, axis=dimension, tiled=True) if over else x


def of_rows(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """Rows are gathered over all axes, biases over the model's."""
    return jnp.asarray(x @ gathered(w, (*data, *model), 0) + gathered(b, model, 0))


def of_blocks(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """Columns are gathered over the model's axes, then rows over those of data."""
    return jnp.asarray(x @ gathered(gathered(w, model, 1), data, 0) + gathered(b, model, 0))


def of_features(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """Products are scattered as sums."""
    own = x @ w
    return jnp.asarray((lax.psum_scatter(own, model, scatter_dimension=1, tiled=True) if model else own) + b)


def of_gathered_features(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """The same, of rows that are gathered over data first."""
    return of_features(x, gathered(w, data, 0), b, data, model)


def kept(primitive: Any, *_: Any, **__: Any) -> bool:
    """Everything but what was gathered."""
    return str(primitive.name) != "all_gather"


def remat(linear: Linear) -> Linear:
    """Rematerialises what is gathered."""
    checkpointed: Linear = jax.checkpoint(linear, policy=kept, static_argnums=(3, 4))
    return checkpointed


def published(linear: Linear, layout: Layout, *, last_relu: bool = False) -> Callable[..., Any]:
    """The loss: the mean over the device's examples, then over devices.

    Where targets are sharded over the model's axes, parts of an example are added up first. ReLU may follow the last
    layer.
    """

    def loss(params: Any, batch: Any, *, mesh: Any, data: Any, model: Any) -> jax.Array:
        data, model = ((names,) if isinstance(names, str) else tuple(names) for names in (data, model))
        features = layout.targets[1]

        def local(params: Any, batch: Any) -> jax.Array:
            x, targets = batch
            for at, (w, b) in enumerate(params):
                x = linear(x, w, b, data, model)
                x = jax.nn.relu(x) if last_relu or at < len(params) - 1 else x
            each = jnp.sum((x - targets) ** 2, axis=-1)
            each = lax.psum(each, model) if features and model else each
            over = data if features else (*data, *model)
            return lax.pmean(jnp.mean(each), over) if over else jnp.mean(each)

        specs = layout.specs(len(params), data=data, model=model)
        mapped: Any = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P())
        result: jax.Array = mapped(params, batch)
        return result

    return loss


def of_all_features(x: Any, w: Any, b: Any, data: Axes, model: Axes) -> jax.Array:
    """Tensor parallelism alone: devices along data do the same."""
    return of_features(x, w, b, (), model)


ROWS = (("model",), ())
FEATURES = Layout(((), ("model",)), weights=ROWS, biases=(("model",),), targets=((), ("model",)))
"""As printed: no examples are sharded."""

LOSSES: dict[str, Callable[..., Callable[..., Any]]] = {
    "data_parallel": partial(published, alone, losses.data_parallel.layout),
    "fully_sharded_rows": partial(published, remat(of_rows), losses.fsdp_rows.layout),
    "fully_sharded_blocks": partial(published, remat(of_blocks), losses.fsdp_2d.layout),
    "tensor_parallel": partial(published, of_all_features, FEATURES),
    "fully_sharded_tensor_parallel": partial(
        published, remat(of_gathered_features), losses.fsdp_tensor_parallel.layout
    ),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", marked(LOSSES, ["fully_sharded_rows"]))
def test_published_losses_are_right(name: str) -> None:
    """Values and gradients are the contract's, on drawn meshes, roles and sizes, interpreted and compiled."""
    check("mlp_loss", LOSSES[name](), laws=["value", "gradient"], max_examples=6)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", marked(LOSSES, ["data_parallel"]))
def test_a_last_relu_is_reported(name: str) -> None:
    """As one more function of the outputs on one device, of one number."""
    with pytest.raises(
        AssertionError, match=r"^mlp_loss\[loss\]: value: mesh \(dp=1, tp=1\), data='dp', model='tp': 1 of"
    ):
        check("mlp_loss", LOSSES[name](last_relu=True), laws="value", max_examples=2)


TEACHER, STUDENT, EXAMPLES = (32, 128, 256, 128, 4), (32, 4), 16
PRINTED, DISTILLED = 4.0431547, [1.09, 1.01, 0.94, 0.88, 0.83]
"""The published loss of the model under every parallelisation, and those of five steps of distillation."""


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize("name", LOSSES)
def test_numbers_are_those_that_were_printed(name: str) -> None:
    """With a last ReLU, and the published keys, sizes and mesh, every loss is the published one."""
    of_model, of_batch = jax.random.split(jax.random.key(0))
    params, batch = initialise(of_model, TEACHER), random_batch(of_batch, EXAMPLES, TEACHER)
    mesh = jax.make_mesh((4, 2), ("dp", "tp"), (AxisType.Auto,) * 2, devices=jax.devices()[:8])
    loss = LOSSES[name](last_relu=True)
    found = jax.jit(lambda params, batch: loss(params, batch, mesh=mesh, data="dp", model="tp"))(params, batch)
    np.testing.assert_allclose(found, PRINTED, rtol=0, atol=2e-6)


@pytest.mark.needs_devices(8)
def test_distillation_is_the_one_that_was_printed() -> None:
    """A tensor-parallel teacher and a student whose gradients are taken inside of `shard_map`: five losses."""
    of_model, of_batch = jax.random.split(jax.random.key(0))
    teacher, (inputs, _) = initialise(of_model, TEACHER), random_batch(of_batch, EXAMPLES, TEACHER)
    teaching, learning = (
        jax.make_mesh((4,), (name,), (AxisType.Auto,), devices=jax.devices()[first : first + 4])
        for name, first in (("tp", 0), ("dp", 4))
    )

    def outputs(params: Any, x: jax.Array, axes: Axes = ()) -> jax.Array:
        for w, b in params:
            x = jax.nn.relu(of_features(x, w, b, (), axes))
        return x

    forward: Any = jax.shard_map(
        lambda params, x: outputs(params, x, ("tp",)),
        mesh=teaching,
        in_specs=([(P("tp"), P("tp"))] * 4, P(None, "tp")),
        out_specs=P(None, "tp"),
    )
    logits = jax.device_get(jax.jit(forward)(teacher, inputs))

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.pmean(jnp.mean(jnp.sum((outputs(params, x) - y) ** 2, axis=-1)), "dp")

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)

    learn: Any = jax.jit(
        jax.shard_map(step, mesh=learning, in_specs=(P(), P("dp"), P("dp")), out_specs=(P(), P())), donate_argnums=0
    )
    params, found = jax.device_get(initialise(jax.random.key(1), STUDENT)), []
    for _ in range(5):
        value, params = learn(params, jax.device_get(inputs), logits)
        found.append(round(float(value), 2))
    assert found == DISTILLED
