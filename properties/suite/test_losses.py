"""The losses of a model under every parallelisation, beyond the laws of their contract: bit for bit the same."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardproof.impl.losses import PARALLELISATIONS, Parallelisation
from shardproof.impl.model import initialise, random_batch, unsharded_loss
from shardproof.oracles import mlp
from shardproof.oracles.layout import spec_entries
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.communication.counted import count
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.engine import abstract_mesh, device_mesh, trace
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.performance.operations import peak_in
from shardproof.properties.programs.program import Argument, Program

LOSSES = pytest.mark.parametrize("loss", PARALLELISATIONS.values(), ids=PARALLELISATIONS)
REMATERIALISED = pytest.mark.parametrize("name", [name for name in PARALLELISATIONS if name.endswith("_remat")])
FULLY_SHARDED = pytest.mark.parametrize("name", ["fsdp_rows", "fsdp_2d", "fsdp_tensor_parallel"])
SEEDS_SIZES, SEEDS_EXAMPLES = (32, 128, 256, 128, 4), 16


def loss_and_gradients(
    loss: Parallelisation,
    mesh: MeshCase,
    sizes: Sequence[int],
    examples: int,
    *,
    data: Any,
    model: Any,
    dtype: Any = np.float32,
) -> Program:
    """The program `(*parameters, inputs, targets) -> (loss, *gradients)` of a model of sizes D_0 to D_n."""
    layers = [((d_in, d_out), (d_out,)) for d_in, d_out in itertools.pairwise(sizes)]
    wholes = [*itertools.chain(*layers), (examples, sizes[0]), (examples, sizes[-1])]
    named = jax.tree.leaves(
        loss.layout.specs(len(layers), data=data, model=model), is_leaf=lambda s: isinstance(s, jax.P)
    )
    structure: Any = jax.tree.structure(([(0, 0)] * len(layers), (0, 0)))

    def build(on: Any) -> Any:
        def step(*arrays: jax.Array) -> list[jax.Array]:
            params, batch = jax.tree.unflatten(structure, arrays)
            function = jax.value_and_grad(lambda p, b: loss(p, b, mesh=on, data=data, model=model))
            value, gradients = function(params, batch)
            return [value, *jax.tree.leaves(gradients)]

        return step

    arguments = tuple(Argument(x, dtype, spec_entries(s, len(x), mesh)) for x, s in zip(wholes, named, strict=True))
    return Program(build, arguments)


def small_integers(shapes: Sequence[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    """Arrays of -1, 0 and 1: all sums of a small model are integers then, which float32 has exactly."""
    generator = np.random.default_rng(seed)
    return [generator.integers(-1, 2, shape).astype(np.float32) for shape in shapes]


def right_results(arrays: Sequence[np.ndarray], *, of_batch: bool = True) -> list[np.ndarray]:
    """The loss and its gradients, by the oracle."""
    dtypes = [array.dtype for array in arrays]
    moving = range(len(arrays) - (0 if of_batch else 2))
    loss = mlp.loss.value(arrays, dtypes, {})
    return [*loss, *mlp.loss.pullback(arrays, [np.ones(())], moving, dtypes, {})]


def assert_exact(found: Sequence[Any], right: Sequence[np.ndarray], where: str) -> None:
    """Results are right, bit for bit."""
    for i, (one, other) in enumerate(zip(found, right, strict=True)):
        assert np.array_equal(np.asarray(one), other.astype(np.float32)), f"{where}: result {i}: {one} != {other}"


SENT = {
    "one_device": "no communication",
    "data_parallel": "all_reduce=5 (33,284 bytes)",
    "fsdp_rows": "all_gather=4 (640 bytes), all_reduce=3 (132 bytes), reduce_scatter=4 (33,280 bytes)",
    "fsdp_rows_remat": "all_gather=5 (896 bytes), all_reduce=3 (132 bytes), reduce_scatter=4 (33,280 bytes)",
    "fsdp_2d": "all_gather=6 (2,688 bytes), all_reduce=3 (132 bytes), reduce_scatter=6 (35,328 bytes)",
    "fsdp_2d_remat": "all_gather=8 (3,968 bytes), all_reduce=3 (132 bytes), reduce_scatter=6 (35,328 bytes)",
    "tensor_parallel": "all_gather=2 (512 bytes), all_reduce=5 (8,324 bytes), reduce_scatter=2 (2,048 bytes)",
    "fsdp_tensor_parallel": "all_gather=4 (1,024 bytes), all_reduce=3 (132 bytes), reduce_scatter=4 (10,240 bytes)",
    "fsdp_tensor_parallel_remat": (
        "all_gather=5 (1,280 bytes), all_reduce=3 (132 bytes), reduce_scatter=4 (10,240 bytes)"
    ),
}
"""The bytes that a device sends for loss and gradients of (64, 64, 64): data over 16 devices and model over 4."""


@LOSSES
@pytest.mark.parametrize(
    ("mesh", "data", "model"),
    [
        (MeshCase(("dp", "tp"), (16, 4)), "dp", "tp"),
        (MeshCase(("a", "b", "c"), (4, 4, 4)), ("c", "a"), "b"),
    ],
    ids=str,
)
def test_on_sixty_four_devices(loss: Parallelisation, mesh: MeshCase, data: Any, model: Any) -> None:
    """Loss and gradients on 64 devices are those of one, bit for bit, and every byte that is sent is known."""
    sizes, examples = (64, 64, 64), 64
    program = loss_and_gradients(loss, mesh, sizes, examples, data=data, model=model)
    arrays = small_integers([a.shape for a in program.arguments], 0)
    right = right_results(arrays, of_batch=False)
    assert_exact(SimulateEngine().prepare(program, mesh)(arrays), right, str(mesh))
    assert str(count(SimulateEngine().prepare(program, mesh), arrays).cost) == SENT[loss.name]


@pytest.mark.needs_devices(8)
@LOSSES
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_compiled_on_axes_of_either_type(loss: Parallelisation, kind: str) -> None:
    """Compiled, the loss and all gradients are one device's, bit for bit; a gradient is laid out as what it is of.

    Devices are in an order of their own.
    """
    mesh = device_mesh(MeshCase(("a", "b", "c"), (2, 2, 2), (5, 2, 7, 0, 3, 1, 6, 4), (kind,) * 3))
    over: dict[str, Any] = {"data": ("c", "a"), "model": "b"}
    like = initialise(jax.random.key(0), (16, 8, 4)), random_batch(jax.random.key(1), 8, (16, 4))
    leaves, structure = jax.tree.flatten(like)
    arrays = small_integers([x.shape for x in leaves], 0)
    given_ones = jax.tree.unflatten(structure, arrays)
    placed = jax.device_put(given_ones, loss.layout.shardings(2, mesh=mesh, **over))
    value, gradients = jax.jit(jax.value_and_grad(lambda p, b: loss(p, b, mesh=mesh, **over), argnums=(0, 1)))(*placed)
    assert_exact([value, *jax.tree.leaves(gradients)], right_results(arrays), f"{loss.name} on {kind} axes")
    for gradient, array in zip(jax.tree.leaves(gradients), jax.tree.leaves(placed), strict=True):
        assert gradient.sharding.is_equivalent_to(array.sharding, array.ndim)


@LOSSES
def test_what_is_laid_out_otherwise_is_moved(loss: Parallelisation) -> None:
    """On explicit axes the type of every gradient is that of its array, also of arrays that the loss has to move."""
    mesh = abstract_mesh(MeshCase(("a", "b"), (8, 8), axis_types=("explicit", "explicit")))
    over: dict[str, Any] = {"data": "b", "model": "a"}
    for spec in (jax.P(), jax.P("a"), jax.P(("a", "b"))):
        given_ones = jax.tree.map(
            lambda x, s=spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.NamedSharding(mesh, s)),
            (initialise(jax.random.key(0), (64, 64, 64)), random_batch(jax.random.key(1), 64, (64, 64))),
        )
        gradients = jax.eval_shape(
            jax.grad(lambda p, b: loss(p, b, mesh=mesh, **over), argnums=(0, 1)), *given_ones
        )  # fmt: skip
        for gradient, array in zip(jax.tree.leaves(gradients), jax.tree.leaves(given_ones), strict=True):
            rank = len(array.shape)
            assert [*gradient.sharding.spec, *[None] * rank][:rank] == [*array.sharding.spec, *[None] * rank][:rank]


def passes(loss: Parallelisation, dtype: Any) -> tuple[Any, Any]:
    """The two `shard_map`s that are traced for the gradient of all parameters: what is kept, and what becomes of it."""
    on = MeshCase(("dp", "tp"), (4, 2))
    program = loss_and_gradients(loss, on, (16, 24, 32, 8), 8, data="dp", model="tp", dtype=dtype)
    mesh = abstract_mesh(on)
    traced = jax.make_jaxpr(program.build(mesh))(*program.abstract_arguments(mesh))
    first, second = (e for e in traced.jaxpr.eqns if e.primitive.name == "shard_map")
    return first, second


def gathers(equation: Any) -> int:
    """How many all-gathers are inside of an equation."""
    return sum(inner.primitive.name == "all_gather" for inner in equations(equation.params["jaxpr"]))


@REMATERIALISED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gathered_weights_are_not_kept(name: str, dtype: str) -> None:
    """No residual is as large as gathered weights: they are gathered again, but for the first layer's.

    Without rematerialisation they are residuals, of every layer but the first, and nothing is gathered again.
    """
    plain = PARALLELISATIONS[name.removesuffix("_remat")]
    tensor_parallel = name.startswith("fsdp_tensor")
    weights = {(d_in // (2 if tensor_parallel else 1), d_out) for d_in, d_out in ((24, 32), (32, 8))}
    each = 2 if name.startswith("fsdp_2d") else 1
    for loss, again in ((PARALLELISATIONS[name], True), (plain, False)):
        first, second = passes(loss, jnp.dtype(dtype))
        kept = {tuple(v.aval.shape) for v in first.params["jaxpr"].outvars}
        assert gathers(first) == 3 * each + (0 if tensor_parallel else 3)
        assert gathers(second) - (3 if tensor_parallel else 0) == (2 * each if again else 0)
        assert not kept & weights if again else weights <= kept


@LOSSES
def test_sums_over_devices_are_in_float32(loss: Parallelisation) -> None:
    """Sums over devices are float32 where the arrays are bfloat16; arrays are gathered forward in bfloat16."""
    names = ("psum", "psum_invariant", "reduce_scatter")
    both = [e for one in passes(loss, jnp.bfloat16) for e in equations(one.params["jaxpr"])]
    sums = [e for e in both if e.primitive.name in names]
    assert bool(sums) == (loss.name != "one_device")
    assert {v.aval.dtype for e in sums for v in e.invars} <= {np.dtype("float32")}
    first, _ = passes(loss, jnp.bfloat16)
    gathered = [e for e in equations(first.params["jaxpr"]) if e.primitive.name == "all_gather"]
    assert bool(gathered) == loss.name.startswith("fsdp")
    assert all(v.aval.dtype == jnp.bfloat16 for e in gathered for v in e.invars)


@FULLY_SHARDED
@pytest.mark.parametrize("mesh", [MeshCase(("dp", "tp"), (4, 2)), MeshCase(("dp", "tp"), (16, 4))], ids=str)
def test_what_another_layer_holds(name: str, mesh: MeshCase) -> None:
    """One layer more takes a device's part of its parameters, of their gradients, and of what goes into it.

    Under data parallelism it takes all parameters and gradients; without rematerialisation the gathered weights stay.
    """
    width, examples, layers = 64, 64, 4
    weights, biases, parts = 4 * width * width, 4 * width, mesh.shape["tp"]
    inputs = 4 * width * examples // mesh.size
    through_relu = inputs // 4  # a bool of each

    def another(of: str) -> float:
        few, many = (
            peak_in(
                trace(loss_and_gradients(PARALLELISATIONS[of], mesh, widths, examples, data="dp", model="tp"), mesh)
            )
            for widths in ((width,) * (n + 1) for n in (layers, 2 * layers))
        )
        return (many - few) / layers

    assert another("data_parallel") >= 2 * (weights + biases)
    assert another(name) >= weights / (parts if name.startswith("fsdp_tensor") else 1)
    assert another(f"{name}_remat") <= 2 * (weights / mesh.size + biases / parts) + inputs + through_relu


@pytest.mark.needs_devices(8)
def test_published_sizes() -> None:
    """Layers of 32, 128, 256, 128 and 4, 16 examples on 4 x 2 devices: every parallelisation has one device's loss.

    All are interpreted, and the one with most communication is compiled.
    """
    shape = MeshCase(("dp", "tp"), (4, 2))
    params = initialise(jax.random.key(0), SEEDS_SIZES)
    batch = random_batch(jax.random.key(1), SEEDS_EXAMPLES, SEEDS_SIZES)
    right = jax.value_and_grad(unsharded_loss)(params, batch)

    def check(loss: Parallelisation, mesh: Any, run: Callable[..., Any]) -> None:
        step = jax.value_and_grad(lambda p, b: loss(p, b, mesh=mesh, data="dp", model="tp"))
        for one, other in zip(jax.tree.leaves(run(step)), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5, err_msg=str(loss))

    for loss in PARALLELISATIONS.values():
        check(loss, abstract_mesh(shape), lambda step: simulate(step, params, batch))
    loss, mesh = PARALLELISATIONS["fsdp_tensor_parallel_remat"], device_mesh(shape)
    placed = jax.device_put((params, batch), loss.layout.shardings(4, mesh=mesh, data="dp", model="tp"))
    check(loss, mesh, lambda step: jax.jit(step)(*placed))
