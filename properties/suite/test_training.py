"""Training steps on a mesh are those of one device, under every parallelisation, with accumulation and ZeRO."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import accumulation, optimisers
from shardproof.impl.accumulation import accumulate, accumulate_gradients, mean_of
from shardproof.impl.collectives import cast_varying
from shardproof.impl.losses import PARALLELISATIONS, Layout, Parallelisation, data_parallel, tensor_parallel
from shardproof.impl.model import initialise, squared_errors
from shardproof.impl.training import Step, TrainingStep
from shardproof.impl.zero import ZeroStep
from shardproof.oracles import mlp
from shardproof.oracles import optimisers as oracle
from shardproof.oracles.communication import KINDS
from shardproof.oracles.dtypes import exact_limit, unit_roundoff
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.strategies import axis_tuples, meshes
from shardproof.properties.communication.counted import Cost, of_compiled, of_record
from shardproof.properties.contracts import Scope
from shardproof.properties.engines.engine import abstract_mesh, device_mesh
from shardproof.properties.engines.simulate import prepare

Axes = tuple[str, ...]
NARROW = ("bfloat16", "float16")
"""Dtypes in which a step is taken from small integers, so that its gradient is exact."""

OPTIMISERS: dict[str, tuple[Callable[[], Any], oracle.Optimiser]] = {
    "sgd": (lambda: optimisers.sgd(0.02), oracle.GradientDescent(0.02)),
    "momentum": (lambda: optimisers.sgd(0.02, momentum=0.9), oracle.GradientDescent(0.02, 0.9)),
    "adam": (lambda: optimisers.adam(0.01), oracle.Adam(0.01)),
}
"""By name: the optimiser, and its definition."""


@dataclass(frozen=True)
class Form:
    """A training step under one parallelisation.

    `specs` maps depth, data and model to the PartitionSpecs of parameters and batch; `step` maps an optimiser, a mesh,
    data, model and microbatches to the step. A `masked` batch has a mask of its examples, the sizes of a `sharded` form
    are multiples of the participants, and those of a `shared` one share the optimiser's state.
    """

    name: str
    specs: Callable[[int, Axes, Axes], Any]
    step: Callable[[Any, Any, Axes, Axes, int], Step]
    masked: bool = False
    sharded: bool = False
    shared: bool = False

    def __str__(self) -> str:
        return self.name


def sum_and_count(parallelisation: Parallelisation) -> Callable[..., Any]:
    """The loss as a device computes it: a sum over examples that are not masked, and their number."""

    def loss(weights: Any, part: Any, *, data: Axes, model: Axes) -> tuple[jax.Array, jax.Array]:
        inputs, targets, mask = part
        over = model if any("model" in roles for roles in parallelisation.layout.targets[1:]) else ()
        outputs = parallelisation.outputs(weights, inputs, (), over)
        total = jnp.sum(jnp.where(mask, squared_errors(outputs, targets), 0))
        return lax.psum(total, over) if over else total, jnp.sum(mask, dtype=jnp.int32)

    return loss


def of_examples(depth: int, data: Axes, model: Axes) -> Any:
    """Parameters everywhere, examples over data."""
    return [(P(), P())] * depth, (P(data), P(data), P(data))


def of_rows(depth: int, data: Axes, model: Axes) -> Any:
    """Rows of weights over data, and examples."""
    return [(P(data), P())] * depth, (P(data), P(data), P(data))


def of_features(depth: int, data: Axes, model: Axes) -> Any:
    """Rows of weights, biases and features over model, examples over data."""
    over = model or None
    return [(P(over), P(over))] * depth, (P(data, over), P(data, over), P(data))


def gathered_rows(params: Any, *, data: Axes, model: Axes) -> Any:
    """The whole weights, of their rows."""
    return [(lax.all_gather(w, data, axis=0, tiled=True), cast_varying(b, data)) for w, b in params]


def accumulated_form(name: str, of: Parallelisation, specs: Any, gather: Any = None, *, sharded: bool = True) -> Form:
    """A form that takes a device's examples in microbatches."""

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Step:
        loss = accumulate_gradients(
            sum_and_count(of),
            microbatches=microbatches,
            layouts=lambda params, data, model: specs(len(params), data, model),
            gather=gather,
        )
        return TrainingStep(loss, optimiser, mesh=mesh, data=data, model=model)

    return Form(name, specs, step, masked=True, sharded=sharded)


def zero_form(
    name: str, of: Parallelisation, specs: Any, kind: type[ZeroStep] = ZeroStep, *, sharded: bool = False
) -> Form:
    """A form whose optimiser is shared."""

    def step(optimiser: Any, mesh: Any, data: Axes, model: Axes, microbatches: int) -> Step:
        layouts = lambda params, data, model: specs(len(params), data, model)  # noqa: E731
        over: dict[str, Any] = {"mesh": mesh, "data": data, "model": model}
        return kind(sum_and_count(of), optimiser, **over, layouts=layouts, microbatches=microbatches)

    return Form(name, specs, step, masked=True, sharded=sharded, shared=True)


def form_of_loss(loss: Parallelisation) -> Form:
    """The step of a loss of global arrays."""
    return Form(
        loss.name,
        lambda depth, data, model: loss.layout.specs(depth, data=data, model=model),
        lambda optimiser, mesh, data, model, microbatches: TrainingStep(
            loss, optimiser, mesh=mesh, data=data, model=model
        ),
        sharded=loss.name not in ("one_device", "data_parallel"),
    )


LOSSES = ("one_device", "data_parallel", "fsdp_rows", "fsdp_2d", "tensor_parallel", "fsdp_tensor_parallel")
FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        *(form_of_loss(PARALLELISATIONS[name]) for name in LOSSES),
        accumulated_form("accumulated", data_parallel, of_examples, sharded=False),
        accumulated_form("accumulated_fsdp", data_parallel, of_rows, gathered_rows),
        accumulated_form("accumulated_tensor_parallel", tensor_parallel, of_features),
        zero_form("zero", data_parallel, of_examples),
        zero_form("zero_tensor_parallel", tensor_parallel, of_features, sharded=True),
    )
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=str)


@dataclass(frozen=True)
class Trial:
    """Some steps of a model with layers of sizes D_0 to D_n on a mesh: everything needed to take them again."""

    mesh: MeshCase
    data: Axes
    model: Axes
    sizes: tuple[int, ...]
    examples: int
    microbatches: int = 1
    steps: int = 1
    seed: int = 0
    dtype: str = "float64"

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype, ml_dtypes' own included."""
        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

    def exact_in(self, dtype: str, *, mean: bool) -> bool:
        """True if the gradient of small integers, whose outputs are off by D_0 + 2 at most, is exact in a dtype."""
        fits = 2 * self.examples * (self.sizes[0] + 2) <= exact_limit(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        return fits and (not mean or self.examples & (self.examples - 1) == 0)

    def arrays(self, form: Form) -> tuple[Any, Any]:
        """Parameters and batch for a form; of a mask at least one is true, and devices count differently."""
        rng, narrow = np.random.default_rng(self.seed), self.dtype in NARROW

        def drawn(*shape: int, by: float = 1) -> np.ndarray:
            return (rng.integers(-1, 2, shape) if narrow else rng.normal(size=shape) / by).astype(self.numpy_dtype)

        layers = [
            (drawn(a, b, by=math.sqrt(a)), drawn(b)) for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True)
        ]
        batch = tuple(drawn(self.examples, self.sizes[i]) for i in (0, -1))
        mask = rng.random(self.examples) < 0.6
        mask[self.seed % self.examples] = True
        return layers, (*batch, mask) if form.masked else batch


@st.composite
def trials(draw: st.DrawFn, scope: Scope, form: Form, *, steps: int) -> Trial:
    """Steps of training, one in four of them a single one in 16 bits; shrinks to one device and float64.

    Two disjoint axis tuples are drawn, in any order, and sizes that they divide where they must.
    """
    mesh = draw(meshes(max_devices=scope.max_devices, available=scope.available), label="mesh")
    data = draw(axis_tuples(mesh), label="data")
    others = [name for name in mesh.axis_names if name not in data]
    model = tuple(draw(st.permutations(others), label="model")[: draw(st.integers(0, len(others)))])
    both = mesh.axis_size(data) * mesh.axis_size(model)
    unit = both if form.sharded else 1
    depth = draw(st.integers(1, 2), label="depth")
    sizes = tuple(unit * draw(st.integers(1, 2 if unit > 1 else 5)) for _ in range(depth + 1))
    microbatches = draw(st.integers(1, 3), label="microbatches") if form.masked else 1
    examples = both * microbatches * draw(st.integers(1, 2), label="examples")
    trial = Trial(mesh, data, model, sizes, examples, microbatches, steps, draw(st.integers(0, 999), label="seed"))
    dtype = draw(st.sampled_from(("float64", "float64", *NARROW)), label="dtype")
    narrow = replace(trial, sizes=(sizes[0], sizes[-1]), steps=1, dtype=dtype)
    return narrow if dtype in NARROW and narrow.exact_in(dtype, mean=not form.masked) else trial


def close(found: Any, right: Any, what: str, within: float = 1e-9) -> None:
    """Equal to such a part of the largest number."""
    found, right = (np.asarray(x).astype(np.float64) for x in (found, right))
    most = within * max(1.0, float(np.max(np.abs(right), initial=0)))
    np.testing.assert_allclose(found, right, rtol=0, atol=most, equal_nan=False, err_msg=what)


def check_replicas(tree: Any) -> None:
    """Devices that hold the same part of an array hold the same bits."""
    for leaf in jax.tree.leaves(tree):
        first: dict[str, bytes] = {}
        for shard in leaf.addressable_shards:
            bits = np.asarray(shard.data).tobytes()
            assert first.setdefault(str(shard.index), bits) == bits, f"replicas of {leaf.sharding} differ"


def check_steps(trial: Trial, form: Form, optimiser: str | tuple[Any, oracle.Optimiser], engine: str) -> Cost:
    """Losses and parameters are those of a single device after every step; gives what one step sends."""
    make, of = OPTIMISERS[optimiser] if isinstance(optimiser, str) else optimiser
    within = 2 * unit_roundoff(trial.numpy_dtype) if trial.dtype in NARROW else 1e-9
    params, (inputs, targets, *mask) = trial.arrays(form)
    counts = mask[0] if mask else np.ones(trial.examples, bool)
    leaves = [x for layer in params for x in layer]
    kept = of.start(leaves)
    with jax.enable_x64(True):
        cost, found = (simulated if engine == "simulate" else compiled)(trial, form, make())
    for step, (loss, after) in enumerate(found):
        arrays = [*leaves, inputs[counts], targets[counts]]
        dtypes = [a.dtype for a in arrays]
        close(loss, mlp.loss.value(arrays, dtypes, {})[0], f"{form}, step {step + 1}: loss", within)
        gradients = mlp.loss.pullback(arrays, [np.ones(())], range(len(leaves)), dtypes, {})
        leaves, kept = of.step(leaves, gradients, kept)
        leaves = [x.astype(trial.numpy_dtype) for x in leaves]
        for i, (leaf, right) in enumerate(zip(after, leaves, strict=True)):
            close(leaf, right, f"{form}, step {step + 1}: parameter {i}", within)
    return cost


def simulated(trial: Trial, form: Form, optimiser: Any) -> tuple[Cost, list[tuple[Any, list[Any]]]]:
    """The steps, interpreted."""
    mesh = abstract_mesh(trial.mesh)
    step = form.step(optimiser, mesh, trial.data, trial.model, trial.microbatches)
    params, batch = trial.arrays(form)
    of_params, of_batch = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, s)),
        (params, batch),
        form.specs(len(trial.sizes) - 1, trial.data, trial.model),
    )
    state = prepare(step.init_traceable, of_params).run(params)
    traced = prepare(step.function, of_params, jax.eval_shape(step.init_traceable, of_params), of_batch).live()
    found: list[tuple[Any, list[Any]]] = []
    records = []
    for _ in range(trial.steps):
        (params, state, loss), record = traced.run_recorded(params, state, batch)
        records.append(record)
        found.append((loss, jax.tree.leaves(params)))
    cost = of_record(records[0]).cost
    return cost, found


def compiled(trial: Trial, form: Form, optimiser: Any) -> tuple[Cost, list[tuple[Any, list[Any]]]]:
    """The steps, compiled: they donate what they are given, and keep layouts, replicas and shares of the state."""
    mesh = device_mesh(trial.mesh)
    step = form.step(optimiser, mesh, trial.data, trial.model, trial.microbatches)
    specs = form.specs(len(trial.sizes) - 1, trial.data, trial.model)
    params, batch = jax.tree.map(
        lambda x, s: jax.device_put(np.copy(x), NamedSharding(mesh, s)), trial.arrays(form), specs
    )
    state = step.init(params)
    text = str(step.lower(params, state, batch).compile().as_text())
    found: list[tuple[Any, list[Any]]] = []
    for _ in range(trial.steps):
        old = (params, state)
        layouts = jax.tree.map(lambda x: x.sharding, old)
        params, state, loss = step(params, state, batch)
        # later ones were read on the host, which keeps the memory of a CPU's array for the reader
        assert found or all(x.is_deleted() for x in jax.tree.leaves(old)), "a buffer was not donated"
        assert jax.tree.map(lambda x: x.sharding, (params, state)) == layouts, "a layout changed"
        check_replicas((params, state))
        for leaf in jax.tree.leaves(state) if form.shared else ():
            parts = trial.mesh.axis_size(trial.data) if leaf.ndim else 1
            held = math.prod(leaf.sharding.shard_shape(leaf.shape))
            assert held * parts <= leaf.size, f"of {leaf.size} numbers of the optimiser's a device holds {held}"
        found.append((np.asarray(loss), [np.asarray(x) for x in jax.tree.leaves(params)]))
    cost = of_compiled(text).cost
    return cost, found


@pytest.mark.engine("simulate")
@forms
@settings(max_examples=max(2, settings().max_examples // 33))
@given(data=st.data())
def test_steps_simulate(form: Form, scope: Scope, data: st.DataObject) -> None:
    """After each of three steps, losses and parameters are those of a single device."""
    trial = data.draw(trials(scope, form, steps=3), label="trial")
    check_steps(trial, form, data.draw(st.sampled_from(sorted(OPTIMISERS)), label="optimiser"), "simulate")


@pytest.mark.engine("xla")
@forms
@settings(max_examples=max(2, settings().max_examples // 100))
@given(data=st.data())
def test_steps_xla(form: Form, scope: Scope, data: st.DataObject) -> None:
    """So they are after each of ten compiled steps, which send no more bytes than the program says."""
    trial = data.draw(trials(scope, form, steps=10), label="trial")
    name = data.draw(st.sampled_from(sorted(OPTIMISERS)), label="optimiser")
    sent = check_steps(trial, form, name, "xla")
    # XLA:CPU may send 16 bits as 32, and changes layouts where axes are of both types
    if trial.dtype == "float64" and len({*trial.mesh.types.values()}) == 1:
        most = check_steps(replace(trial, steps=1), form, name, "simulate")
        assert all(sent.bytes[kind] <= most.bytes[kind] for kind in KINDS)


@pytest.mark.parametrize("engine", ["simulate", pytest.param("xla", marks=pytest.mark.needs_devices(2))])
def test_steps_with_optax(engine: str) -> None:
    """Optax's Adam takes the steps that its definition says, under data parallelism, FSDP and ZeRO."""
    optax = pytest.importorskip("optax", reason="the dependency group `optimisers` is not installed")
    for form in ("data_parallel", "fsdp_rows", "zero"):
        optimiser = (lambda: optax.adam(0.01), OPTIMISERS["adam"][1])
        check_steps(replace(TWO, sizes=(8, 12, 4), steps=10), FORMS[form], optimiser, engine)


ONE = Trial(MeshCase(("x",), (1,)), ("x",), (), (4, 2), examples=8)
TWO = replace(ONE, mesh=MeshCase(("x",), (2,)))
SQUARE = Trial(MeshCase(("dp", "tp"), (2, 2)), ("dp",), ("tp",), (8, 4), examples=12)

SENT = {
    "one_device": "no communication",
    "data_parallel": "all_reduce=3 (296 bytes)",
    "fsdp_rows": "all_gather=2 (80 bytes), all_reduce=2 (24 bytes), reduce_scatter=2 (288 bytes)",
    "fsdp_2d": "all_gather=3 (208 bytes), all_reduce=2 (24 bytes), reduce_scatter=3 (416 bytes)",
    "tensor_parallel": "all_gather=1 (96 bytes), all_reduce=3 (152 bytes), reduce_scatter=1 (192 bytes)",
    "fsdp_tensor_parallel": "all_gather=2 (160 bytes), all_reduce=2 (24 bytes), reduce_scatter=2 (320 bytes)",
    "accumulated": "all_reduce=4 (300 bytes)",
    "accumulated_fsdp": "all_gather=1 (128 bytes), all_reduce=3 (44 bytes), reduce_scatter=1 (256 bytes)",
    "accumulated_tensor_parallel": "all_gather=3 (96 bytes), all_reduce=7 (180 bytes), reduce_scatter=3 (192 bytes)",
    "zero": "all_gather=2 (144 bytes), all_reduce=2 (12 bytes), reduce_scatter=2 (288 bytes)",
    "zero_tensor_parallel": "all_gather=5 (168 bytes), all_reduce=5 (36 bytes), reduce_scatter=5 (336 bytes)",
}
"""The bytes that a device sends in a step on `SQUARE` of float64, in three microbatches where there are any."""


def sums(cost: Cost, *, masked: bool) -> int:
    """The bytes of sums over devices, without the number of examples, an int32."""
    return cost.bytes["all_reduce"] + cost.bytes["reduce_scatter"] - 4 * masked


@forms
def test_what_a_step_sends(form: Form) -> None:
    """Parameters and their gradients are sent once, whatever the number of microbatches; sums of 16 bits are float32.

    Tensor parallelism sends hidden values in every microbatch, as many bytes in all.
    """
    parts = 3 if form.masked else 1
    many = check_steps(replace(SQUARE, microbatches=parts), form, "sgd", "simulate")
    one = check_steps(SQUARE, form, "sgd", "simulate")
    narrow = check_steps(replace(SQUARE, dtype="bfloat16", microbatches=parts), form, "sgd", "simulate")
    assert str(many) == SENT[form.name]
    assert one.bytes["all_gather"] == many.bytes["all_gather"]
    assert one.bytes["reduce_scatter"] == many.bytes["reduce_scatter"]
    assert one == many or "tensor_parallel" in form.name
    assert 2 * sums(narrow, masked=form.masked) == sums(many, masked=form.masked)


def masked(name: str, step: Callable[..., Any]) -> Form:
    """A form of data parallelism with a mask; `step` makes a step of `(optimiser, mesh, data, microbatches)`."""
    return Form(name, of_examples, lambda optimiser, mesh, data, model, n: step(optimiser, mesh, data, n), masked=True)


LOSS = sum_and_count(data_parallel)


class ReducedInEveryMicrobatch(TrainingStep):
    """Weights are typed the same on all devices, so that JAX adds up their gradient inside of the scan."""

    parts = 2

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """A step whose values are right."""

        def local(params: Any, batch: Any) -> Any:
            loss = partial(LOSS, data=self.data, model=())
            total, count, gradients = accumulate(loss, params, batch, microbatches=self.parts)
            total, count = lax.psum((total, count), self.data)
            return mean_of(total, count), jax.tree.map(lambda g: mean_of(g, count), gradients)

        mapped: Any = jax.shard_map(local, mesh=self.mesh, in_specs=(P(), P(self.data)), out_specs=P())
        value, gradients = mapped(params, batch)
        updates, state = self.optimiser.update(gradients, state, params)
        return optimisers.apply_updates(params, updates), state, value


def mean_of_means(weights: Any, part: Any, **axes: Any) -> tuple[Any, Any]:
    """Every microbatch's mean counts as one, however many examples it has."""
    total, count = LOSS(weights, part, **axes)
    return mean_of(total, count), lax.pcast(jnp.ones((), jnp.int32), axes["data"], to="varying")


class OfOneAxis(TrainingStep):
    """Gradients are added up over the first axis alone."""

    def function(self, params: Any, state: Any, batch: Any) -> Any:
        """A step in which replicas part."""

        def local(params: Any, state: Any, batch: Any) -> Any:
            loss = partial(LOSS, data=self.data, model=())
            (total, count), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch)
            total, count = lax.psum((total, count), self.data)
            whole = jax.tree.map(lambda g: mean_of(lax.psum(g, self.data[:1]), count), gradients)
            updates, new = self.optimiser.update(whole, state, params)
            return optimisers.apply_updates(params, updates), new, mean_of(total, count)

        specs: Any = (P(), P(), P(self.data))
        mapped: Any = jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return mapped(params, state, batch)


class WholeState(ZeroStep):
    """Every device holds all of the optimiser's state."""

    def init(self, params: Any) -> Any:
        """A state of the right values."""
        return jax.device_put(jax.jit(self.init_traceable)(params), NamedSharding(self.mesh, P()))


def step_of(kind: type[TrainingStep], loss: Callable[..., Any] = LOSS) -> Callable[..., TrainingStep]:
    """A step of a kind that accumulates a loss of sums and counts."""
    return lambda optimiser, mesh, data, n: kind(
        accumulate_gradients(loss, microbatches=n), optimiser, mesh=mesh, data=data
    )


FOUR = replace(TWO, mesh=MeshCase(("x", "y"), (2, 2)), data=("x", "y"))
ONE_AXIS = masked("one_axis", step_of(OfOneAxis))
MEANS = masked("mean_of_means", step_of(TrainingStep, mean_of_means))
WHOLE = zero_form("whole_state", data_parallel, of_examples, WholeState)
WRONG: list[tuple[Form, Trial, str, str, str]] = [
    (MEANS, replace(ONE, examples=6, microbatches=2, seed=2), "sgd", "simulate", "step 1: loss"),
    (ONE_AXIS, FOUR, "sgd", "simulate", "step 1: parameter"),
    (ONE_AXIS, FOUR, "sgd", "xla", "replicas of .* differ"),
    (WHOLE, TWO, "adam", "xla", "of 8 numbers of the optimiser's a device holds 8"),
]
"""Wrong steps: a trial that shows each, and the message."""


def compiled_on(trial: Trial, engine: str) -> list[pytest.MarkDecorator]:
    """The marks of a test that compiles for the devices of a fixed mesh; none for the interpreter, which needs none."""
    return [pytest.mark.needs_devices(trial.mesh.size)] if engine == "xla" else []


@pytest.mark.parametrize(
    ("form", "trial", "optimiser", "engine", "match"),
    [pytest.param(*wrong, marks=compiled_on(wrong[1], wrong[3]), id=f"{wrong[0].name}-{wrong[3]}") for wrong in WRONG],
)
def test_a_wrong_step_is_found(form: Form, trial: Trial, optimiser: str, engine: str, match: str) -> None:
    """Each is reported for what is wrong with it."""
    with pytest.raises(AssertionError, match=match):
        check_steps(trial, form, optimiser, engine)


@pytest.mark.parametrize("engine", ["simulate", pytest.param("xla", marks=pytest.mark.needs_devices(2))])
def test_gradients_in_every_microbatch_are_sent_more_often(engine: str) -> None:
    """A step that reduces gradients inside of the scan has right values, and sends twice the bytes of parameters."""
    trial = replace(TWO, microbatches=2)
    wrong = masked("", lambda optimiser, mesh, data, n: ReducedInEveryMicrobatch(LOSS, optimiser, mesh=mesh, data=data))
    sent = [check_steps(trial, form, "sgd", engine).bytes["all_reduce"] for form in (wrong, FORMS["accumulated"])]
    assert sent == [2 * 8 * (4 * 2 + 2) + 12, 8 * (4 * 2 + 2) + 12]


narrow_forms = pytest.mark.parametrize("name", ["accumulated", "accumulated_fsdp", "zero"])


def check_narrow_gradients(name: str, dtype: np.dtype) -> None:
    """A part's gradient is rounded to the parameters' dtype; their sum is not before it is divided by the count.

    All parts' gradients are positive, so that roundings add up; there are 64 microbatches on each of two devices.
    """
    rng, examples = np.random.default_rng(0), 128
    shapes = (4, 4), (4,), (examples, 4), (examples, 4)
    w, b, inputs, targets = (np.abs(rng.normal(size=shape)).astype(dtype) for shape in shapes)
    targets = -targets
    keeping = optimisers.Transformation(  # its state is the gradient
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradients, state, params=None: (jax.tree.map(jnp.zeros_like, gradients), gradients),
    )
    step = FORMS[name].step(keeping, abstract_mesh(TWO.mesh), ("x",), (), examples // 2)
    params, batch = [(w, b)], (inputs, targets, np.ones(examples, bool))
    state = prepare(step.init_traceable, params).run(params)
    _, state, _ = prepare(step.function, params, state, batch).run(params, state, batch)
    parts = [
        mlp.loss.pullback([w, b, inputs[i : i + 1], targets[i : i + 1]], [np.ones(())], range(2), [w.dtype] * 4, {})
        for i in range(examples)
    ]
    for i, (leaf, own) in enumerate(zip(jax.tree.leaves(state), (w, b), strict=True)):
        found = np.asarray(leaf).ravel()[: own.size].reshape(own.shape)
        whole = np.mean([part[i] for part in parts], axis=0)
        rounded = np.mean([np.abs(part[i]) for part in parts], axis=0) + np.abs(whole)
        assert found.dtype == dtype
        off = np.abs(found.astype(np.float64) - whole) - (unit_roundoff(dtype) * 1.01 + 1e-5) * rounded
        assert off.max() <= 0, f"{name} in {dtype}: gradient {i}"


@narrow_forms
@pytest.mark.parametrize("dtype", NARROW)
def test_gradients_are_rounded_twice(name: str, dtype: str) -> None:
    """A gradient is off by two roundings of its own size, however many microbatches and devices there are."""
    check_narrow_gradients(name, np.dtype(getattr(ml_dtypes, dtype, dtype)))


@narrow_forms
def test_sums_in_the_parameters_dtype_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that adds up microbatches in 16 bits is off by more, and sends fewer bytes."""
    monkeypatch.setattr(accumulation, "accumulator", lambda x: x.dtype)
    with pytest.raises(AssertionError, match="gradient 0"):
        check_narrow_gradients(name, np.dtype(ml_dtypes.bfloat16))
    narrow, wide = (
        check_steps(replace(SQUARE, dtype=dtype, microbatches=3), FORMS[name], "sgd", "simulate")
        for dtype in ("bfloat16", "float64")
    )
    assert 2 * sums(narrow, masked=True) < sums(wide, masked=True)


@pytest.mark.parametrize("dtype", NARROW)
def test_a_loss_in_16_bits_is_added_up_in_float32(dtype: str) -> None:
    """Sum and count are, of many microbatches, where a sum of 16 bits stays where it is at 256; so is the quotient."""
    microbatches = 1028
    loss = accumulate_gradients(
        lambda w, part, **axes: (jnp.sum(w * part), jnp.sum(jnp.ones_like(part))), microbatches=microbatches
    )
    mesh, narrow = abstract_mesh(TWO.mesh), np.dtype(getattr(ml_dtypes, dtype, dtype))
    arrays = np.ones((), narrow), np.ones(2 * microbatches, narrow)
    step = jax.value_and_grad(lambda w, part: loss(w, part, mesh=mesh, data="x", model=()))
    value, gradient = prepare(step, *arrays).run(*arrays)
    assert (np.asarray(value).dtype, float(value)) == (np.dtype("float32"), 1.0)
    assert (np.asarray(gradient).dtype.name, float(gradient)) == (dtype, 1.0)


def some_params() -> Any:
    """Those of one layer, on one device."""
    return [(jnp.zeros((2, 2)), jnp.zeros(2))]


@pytest.mark.parametrize("name", ["data_parallel", "accumulated", "zero"])
def test_an_abstract_mesh_is_refused(name: str) -> None:
    """A step that runs on devices requires a mesh with devices; its error says how to trace without."""
    step: Any = FORMS[name].step(OPTIMISERS["adam"][0](), abstract_mesh(MeshCase(("dp",), (2,))), ("dp",), (), 1)
    params = some_params()
    for method, arguments in ((step.init, [params]), (step.lower, [params, (), ()]), (step, [params, (), ()])):
        with pytest.raises(ValueError, match=r"^\w+Step: mesh=\(dp=2\): expected a mesh of devices; on an abstract"):
            method(*arguments)
    jax.eval_shape(step.init_traceable, params)


@pytest.mark.parametrize(("name", "caller"), [("accumulated", "accumulate_gradients"), ("zero", "ZeroStep")])
def test_microbatches_that_do_not_divide_are_refused(name: str, caller: str) -> None:
    """The error names the function that was called."""
    step: Any = FORMS[name].step(OPTIMISERS["sgd"][0](), abstract_mesh(MeshCase(("dp",), (2,))), ("dp",), (), 3)
    batch = np.zeros((4, 2)), np.zeros((4, 2)), np.ones(4, bool)
    with pytest.raises(ValueError, match=rf"^{caller}: microbatches=3: expected a number that divides the examples of"):
        jax.eval_shape(step.function, some_params(), (), batch)


@pytest.mark.needs_devices(2)
def test_a_donated_array_is_refused() -> None:
    """A step from arrays that an earlier one was given says which is gone, and why."""
    mesh = device_mesh(TWO.mesh)
    step: Any = FORMS["data_parallel"].step(OPTIMISERS["sgd"][0](), mesh, ("x",), (), 1)
    batch = jnp.zeros((2, 2)), jnp.zeros((2, 2))
    params, batch = jax.device_put((some_params(), batch), NamedSharding(mesh, P()))
    state = step.init(params)
    step(params, state, batch)
    with pytest.raises(ValueError, match=r"^TrainingStep: params\[0\]\[0\]=.*, deleted: .* donated to an earlier step"):
        step(params, state, batch)


def test_wrong_sizes_and_layouts_are_refused() -> None:
    """Too few sizes, and a role that is named twice."""
    with pytest.raises(ValueError, match=r"^initialise: sizes=\(3,\): expected the sizes of inputs and outputs at"):
        initialise(jax.random.key(0), (3,))
    with pytest.raises(ValueError, match=r"^Layout: weights=\(\('model',\), \('model',\)\): expected each of"):
        Layout(weights=(("model",), ("model",)))
