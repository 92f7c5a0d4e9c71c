"""Steps of distillation on two meshes are those of one device, and the host waits for none of them."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.impl.distillation import Distillation, predictions, transfer
from shardproof.impl.losses import PARALLELISATIONS, tensor_parallel
from shardproof.impl.training import Step, TrainingStep
from shardproof.oracles import mlp
from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.optimisers import Adam, GradientDescent, Optimiser
from shardproof.properties.cases.strategies import axis_tuples, meshes
from shardproof.properties.contracts import Scope
from shardproof.properties.engines.engine import device_mesh
from shardproof.properties.suite.test_training import check_replicas, close

PATIENCE = 120.0
"""Seconds after which a teacher computes although steps are missing: longer than they take to compile."""

Axes = tuple[str, ...]
Layers = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    """All arrays are of doubles."""
    with jax.enable_x64(True):
        yield


@dataclass(frozen=True)
class Lesson:
    """A teacher with features shared over `model`, and a student on other devices: all that it takes to learn again.

    The student shares examples over `data`, and features over `over`, under its `parallelisation`.
    """

    teacher: MeshCase
    model: Axes
    student: MeshCase
    data: Axes
    teacher_sizes: tuple[int, ...]
    student_sizes: tuple[int, ...]
    examples: int
    over: Axes = ()
    parallelisation: str = "data_parallel"
    seed: int = 0

    def arrays(self) -> tuple[Layers, Layers, Iterator[np.ndarray]]:
        """The teacher's parameters, the student's, and the inputs of one batch after another."""
        rng = np.random.default_rng(self.seed)

        def layers(sizes: tuple[int, ...]) -> Layers:
            pairs = itertools.pairwise(sizes)
            return [(rng.normal(size=(a, b)) / a**0.5, rng.normal(size=b)) for a, b in pairs]

        of_teacher, of_student = layers(self.teacher_sizes), layers(self.student_sizes)
        inputs = (rng.normal(size=(self.examples, self.teacher_sizes[0])) for _ in itertools.count())
        return of_teacher, of_student, inputs


@st.composite
def lessons(draw: st.DrawFn, available: int, *, halves: bool) -> Lesson:
    """Lessons on two disjoint meshes of one or two axes, over devices in any order, most of them with all devices.

    Shrinks to a teacher on one device and a student on another, or to three devices where there are more. With `halves`
    the teacher has as many devices as the student.
    """
    counts = range(4 if halves and available > 3 else min(3, available), available + 1, 2 if halves else 1)
    total = draw(st.sampled_from((*counts, *(counts[-1],) * 4)), label="devices")
    teaching = total // 2 if halves else draw(st.integers(1, total - 1), label="the teacher's")
    teacher, student = (
        draw(meshes(min_devices=n, max_devices=n, max_axes=2), label="mesh") for n in (teaching, total - teaching)
    )
    order = draw(st.permutations(range(available)), label="order")
    teacher = replace(teacher, devices=tuple(order[i] for i in teacher.devices))
    student = replace(student, devices=tuple(order[teaching + i] for i in student.devices))
    model, data = draw(axis_tuples(teacher), label="model"), draw(axis_tuples(student), label="data")
    inputs, hidden, outputs = (teacher.axis_size(model) * draw(st.integers(1, 2), label="size") for _ in range(3))
    narrow = draw(st.integers(1, 3), label="hidden of the student")
    return Lesson(
        teacher,
        model,
        student,
        data,
        draw(st.sampled_from([(inputs, outputs), (inputs, hidden, outputs)]), label="teacher's sizes"),
        draw(st.sampled_from([(inputs, outputs), (inputs, narrow, outputs)]), label="student's sizes"),
        student.axis_size(data) * draw(st.integers(1, 3), label="examples"),
        seed=draw(st.integers(0, 999), label="seed"),
    )


class Watched(Step):
    """A step that keeps the batches that it was given."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.mesh)
        self.step = step
        self.batches: list[Any] = []

    def __call__(self, params: Any, state: Any, batch: Any) -> Any:
        """The step."""
        self.batches.append(batch)
        return self.step(params, state, batch)


class Gate:
    """A teacher that computes only after the host has gone through it, or after a time; keeps the order."""

    def __init__(self, patience: float) -> None:
        self.patience, self.open, self.events = patience, threading.Event(), list[str]()

    def issued(self) -> None:
        """The host has issued all steps."""
        self.events.append("issued")
        self.open.set()

    def before(self, teacher: Callable[[Any, Any], Any], inputs: NamedSharding) -> Callable[[Any, Any], Any]:
        """The teacher, of which no device computes before."""

        def late(part: np.ndarray) -> np.ndarray:
            self.open.wait(self.patience)
            self.events.append("taught")
            return part

        def local(x: jax.Array) -> jax.Array:
            ones = 1 + (0 * x).astype(jnp.int32)  # threads of callbacks know nothing of float64
            return x * jax.pure_callback(late, ones, ones)

        mapped: Any = jax.shard_map(local, mesh=inputs.mesh, in_specs=inputs.spec, out_specs=inputs.spec)
        return lambda params, x: teacher(params, mapped(x))


def check_laid_out(array: jax.Array, whole: np.ndarray, mesh: MeshCase, of: P, what: str) -> None:
    """Every device of the mesh, and none beside, holds the part that the spec gives it, to nine digits."""
    held = {part.device.id: np.asarray(part.data) for part in array.addressable_shards}
    numbers = [jax.devices()[number].id for number in mesh.devices]
    assert {*held} == {*numbers}, f"{what} is on devices {sorted(held)}"
    right = shard(whole, mesh, of)
    for number, part in zip(numbers, right.reshape(-1, *right.shape[len(mesh.sizes) :]), strict=True):
        assert held[number].shape == part.shape, f"{what} has blocks {held[number].shape}, expected {part.shape}"
        close(held[number], part, what)


def check(
    lesson: Lesson,
    kind: type[Distillation] = Distillation,
    *,
    steps: int = 2,
    optimiser: tuple[Any, Optimiser] | None = None,
    again: bool = False,
    patience: float = PATIENCE,
) -> list[float]:
    """Losses and parameters are one device's, logits lie as the student takes them, the teacher stays as it is.

    All steps are issued before a teacher on several devices computes the first logits, for which a host that waits has
    `patience` in seconds, and donate their arguments. Returns the losses before each step, `again` of the same batch.
    """
    teacher, student, batches = lesson.arrays()
    first = next(batches)
    inputs = [first if again or i == 0 else next(batches) for i in range(steps)]
    run, oracle = optimiser or (optimisers.adam(0.01), Adam(0.01))
    mesh, of_student = device_mesh(lesson.teacher), device_mesh(lesson.student)
    roles: dict[str, Any] = {"mesh": mesh, "data": (), "model": lesson.model}
    kept, (taught, _) = tensor_parallel.layout.shardings(len(teacher), **roles)
    learning = PARALLELISATIONS[lesson.parallelisation]
    over: dict[str, Any] = {"mesh": of_student, "data": lesson.data, "model": lesson.over}
    layouts, taken = learning.layout.shardings(len(student), **over)
    teacher_params, params = jax.device_put(teacher, kept), jax.device_put(student, layouts)
    inner = TrainingStep(learning, run, **over)
    step, gate = Watched(inner), Gate(patience)
    predict = gate.before(partial(predictions, tensor_parallel, **roles), taught)
    distil = kind(predict, step, teacher_inputs=taught, student_inputs=taken[0], logits=taken[1])
    state, losses = inner.init(params), []
    if lesson.teacher.size == 1:  # XLA:CPU runs what it takes for cheap within the call that issues it
        gate.issued()
    try:
        for x in inputs:
            old = params, state
            params, state, loss = distil(teacher_params, params, state, x)
            losses.append(loss)
            assert all(x.is_deleted() for x in jax.tree.leaves(old)), "a buffer of the student was not donated"
    finally:
        gate.issued()
    jax.block_until_ready((params, state, losses))
    assert gate.events[0] == "issued", f"the host waited for the teacher: {', '.join(gate.events)}"
    for leaf, layout, whole in zip(*map(jax.tree.leaves, (teacher_params, kept, teacher)), strict=True):
        assert not leaf.is_deleted(), "a parameter of the teacher is gone"
        assert leaf.sharding.is_equivalent_to(layout, leaf.ndim), "a parameter of the teacher is laid out otherwise"
        np.testing.assert_array_equal(leaf, whole, err_msg="a parameter of the teacher changed")
    leaves = [x for layer in student for x in layer]
    moments = oracle.start(leaves)
    for i, (x, batch, loss) in enumerate(zip(inputs, step.batches, losses, strict=True)):
        logits = mlp.weighted_sums(teacher, x)[-1]
        for what, array, whole, at in zip(("inputs", "logits"), batch, (x, logits), taken, strict=True):
            check_laid_out(array, whole, lesson.student, at.spec, f"step {i + 1}: {what}")
        arrays = [*leaves, x, logits]
        dtypes = [a.dtype for a in arrays]
        close(loss, mlp.loss.value(arrays, dtypes, {})[0], f"step {i + 1}: loss")
        gradients = mlp.loss.pullback(arrays, [np.ones(())], range(len(leaves)), dtypes, {})
        leaves, moments = oracle.step(leaves, gradients, moments)
    check_replicas((params, state))
    for leaf, right in zip(jax.tree.leaves(params), leaves, strict=True):
        assert leaf.sharding.device_set == {*of_student.devices.flat}
        close(leaf, right, "parameter")
    return [float(loss) for loss in losses]


@pytest.mark.engine("xla")
@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("split", ["halves", "any"])
@settings(max_examples=max(2, settings().max_examples // 60))
@given(data=st.data())
def test_a_student_learns_from_a_teacher_on_other_devices(split: str, scope: Scope, data: st.DataObject) -> None:
    """A teacher with tensor parallelism on some devices, a student with data parallelism on others.

    Losses and parameters are one device's; every device of the student has its part of the logits; the teacher stays
    as it was; and all steps are issued before the teacher has computed anything.
    """
    check(data.draw(lessons(min(8, scope.available), halves=split == "halves"), label="lesson"))


SPLITS = {
    "4+4": (MeshCase(("tp",), (4,)), MeshCase(("dp", "tp"), (2, 2), (4, 5, 6, 7))),
    "2+6": (MeshCase(("tp",), (2,)), MeshCase(("dp", "tp"), (3, 2), (7, 2, 6, 3, 5, 4))),
}
split = pytest.mark.parametrize("split", SPLITS)


def on_both(split: str, parallelisation: str = "data_parallel") -> Lesson:
    """A lesson on eight devices; of a student with features over an axis where its parallelisation shares them."""
    teacher, student = SPLITS[split]
    over = () if parallelisation == "data_parallel" else ("tp",)
    return Lesson(
        teacher, ("tp",), student, ("dp",), (12, 12, 12), (12, 24, 12), 12, over, parallelisation=parallelisation
    )


@pytest.mark.needs_devices(8)
@split
@pytest.mark.parametrize("student", ["data_parallel", "fsdp_rows", "fsdp_tensor_parallel"])
def test_students_under_other_parallelisations(split: str, student: str) -> None:
    """Three steps, each on a batch of its own, are those of one device."""
    check(on_both(split, student), steps=3)


@pytest.mark.needs_devices(8)
def test_published_sizes() -> None:
    """The teacher and student of "JAX Sharding and Parallel Computing": five steps decrease the loss on one batch."""
    student = MeshCase(("dp", "tp"), (4, 1), (4, 5, 6, 7))
    lesson = Lesson(MeshCase(("tp",), (4,)), ("tp",), student, ("dp",), (32, 128, 256, 128, 4), (32, 4), examples=16)
    losses = check(lesson, steps=5, optimiser=(optimisers.sgd(0.01), GradientDescent(0.01)), again=True)
    assert losses == sorted({*losses}, reverse=True)  # every step decreases it


@pytest.mark.needs_devices(8)
@split
@pytest.mark.parametrize("there", [P(), P("dp"), P(("tp", "dp")), P(None, ("dp", "tp"))], ids=str)
@pytest.mark.parametrize("here", [P(), P("tp"), P(None, "tp"), None], ids=str)
def test_transfer(split: str, here: P | None, there: P) -> None:
    """An array of devices, or of the host, is on the others afterwards, bit for bit and laid out as asked for."""
    teacher, student = SPLITS[split]
    whole = np.random.default_rng(0).normal(size=(12, 12))
    sent = whole if here is None else jax.device_put(whole, NamedSharding(device_mesh(teacher), here))
    sharding = NamedSharding(device_mesh(student), there)
    found = transfer(sent, sharding)
    assert found.sharding == sharding
    check_laid_out(found, whole, student, there, "the array")
    np.testing.assert_array_equal(found, whole, strict=True)


class SplitByDeviceNumber(Distillation):
    """The first part of the logits goes to the device with the lowest number, whatever the order of the mesh."""

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """Parts of the right sizes, some of which are on each other's devices."""
        whole = super().logits(teacher_params, inputs)
        held: dict[Any, Any] = dict(whole.sharding.devices_indices_map(whole.shape))
        owner = {str(part.index): part.data for part in whole.addressable_shards}
        wanted = sorted(held, key=lambda device: device.id)
        moved = [jax.device_put(owner[str(i)], device) for i, device in zip(held.values(), wanted, strict=True)]
        return jax.make_array_from_single_device_arrays(whole.shape, whole.sharding, moved)


class ByWayOfTheHost(Distillation):
    """The logits are NumPy's in between."""

    def logits(self, teacher_params: Any, inputs: Any) -> Any:
        """The right values, laid out as they should be."""
        return jax.device_put(np.asarray(super().logits(teacher_params, inputs)), self.of_logits)


UNEVEN = Lesson(
    MeshCase(("dp",), (2,), (1, 3)),
    ("dp",),
    MeshCase(("dp", "tp"), (3, 2), (7, 2, 6, 0, 5, 4)),
    ("tp", "dp"),
    (2, 4),
    (2, 3, 4),
    examples=6,
)


@pytest.mark.needs_devices(8)
@pytest.mark.parametrize(
    ("kind", "match", "patience"),
    [
        (SplitByDeviceNumber, "step 1: logits", PATIENCE),
        (ByWayOfTheHost, "the host waited for the teacher: taught", 1.0),
    ],
)
def test_a_wrong_distillation_is_found(kind: type[Distillation], match: str, patience: float) -> None:
    """It is reported for what is wrong with it; one that waits holds up its teacher for a second."""
    with pytest.raises(AssertionError, match=match):
        check(UNEVEN, kind, patience=patience)


@pytest.mark.needs_devices(8)
def test_errors() -> None:
    """Meshes that share a device, and parameters that are elsewhere, are refused by name."""
    mesh, other = (device_mesh(case) for case in SPLITS["4+4"])
    mine, theirs = NamedSharding(mesh, P()), NamedSharding(other, P())
    step = TrainingStep(PARALLELISATIONS["data_parallel"], optimisers.sgd(0.01), mesh=other, data="dp")
    with pytest.raises(ValueError, match=r"^Distillation: teacher_inputs=.* none of the devices \[4, 5, 6, 7\] of"):
        Distillation(max, step, teacher_inputs=theirs, student_inputs=theirs, logits=theirs)
    with pytest.raises(ValueError, match=r"^Distillation: logits=.*: expected it on the student's mesh \(dp=2, tp=2\)"):
        Distillation(max, step, teacher_inputs=mine, student_inputs=theirs, logits=mine)
    distil = Distillation(max, step, teacher_inputs=mine, student_inputs=theirs, logits=theirs)
    params = jax.device_put([(np.ones((2, 2)), np.ones(2))], theirs)
    with pytest.raises(ValueError, match=r"^Distillation: teacher_params\[0\]\[0\]=.* on devices \[4, 5, 6, 7\]: exp"):
        distil(params, params, (), np.ones((4, 2)))
