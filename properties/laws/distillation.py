"""The law of distillation: steps on two meshes are those of one device, and the host waits for none of them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.impl.distillation import Distillation, predictions
from shardproof.impl.losses import data_parallel, tensor_parallel
from shardproof.impl.training import Step, TrainingStep
from shardproof.oracles import mlp
from shardproof.oracles.layout import shard
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.optimisers import Adam
from shardproof.properties.cases.distilling import Lesson
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.laws.training import check_replicas, close
from shardproof.properties.programs.violation import Broken

PATIENCE = 120.0
"""Seconds after which a teacher computes although steps are missing: longer than they take to compile."""

ALONE = "one device alone"
"""Of a teacher on a single CPU device: XLA:CPU runs what it takes for cheap within the call that issues it."""

RATE = 0.01
Axes = tuple[str, ...]


def learning(optimiser: Any, mesh: Any, data: Axes) -> Step:
    """A student's step with data parallelism."""
    return TrainingStep(data_parallel, optimiser, mesh=mesh, data=data)


@dataclass(frozen=True)
class Method:
    """How a student learns from a teacher.

    Arguments:
        student: `(optimiser, mesh, data)` to the student's step.
        distillation: what is called as `shardproof.impl.distillation.Distillation`.
    """

    student: Callable[[Any, Any, Axes], Step] = learning
    distillation: Callable[..., Distillation] = Distillation


RIGHT = Method()


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
    """What a teacher computes only after the host has gone through it; keeps the order of events.

    Arguments:
        patience: seconds after which the teacher goes first.
    """

    def __init__(self, patience: float) -> None:
        self.patience, self.open, self.events = patience, threading.Event(), list[str]()

    def issued(self, event: str = "issued") -> None:
        """The host has issued all steps; or something else happened, after which the teacher may compute."""
        self.events.append(event)
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


def expected(lesson: Lesson) -> tuple[list[np.ndarray], list[float], list[np.ndarray]]:
    """By the definitions, on one device: the logits of every batch, the losses before each step, and the parameters."""
    teacher, student, batches = lesson.arrays()
    oracle = Adam(RATE)
    leaves = [x for layer in student for x in layer]
    kept = oracle.start(leaves)
    logits, losses = [], []
    for inputs in batches:
        logits.append(mlp.weighted_sums(teacher, inputs)[-1])
        arrays = [*leaves, inputs, logits[-1]]
        dtypes = [a.dtype for a in arrays]
        losses.append(float(mlp.loss.value(arrays, dtypes, {})[0]))
        gradients = mlp.loss.pullback(arrays, [np.ones(())], range(len(leaves)), dtypes, {})
        leaves, kept = oracle.step(leaves, gradients, kept)
    return logits, losses, leaves


def check_lesson(lesson: Lesson, method: Method = RIGHT, *, patience: float = PATIENCE) -> None:
    """Losses and parameters are one device's, logits lie as the student takes them, the teacher stays as it is.

    All steps are issued before a teacher on several devices computes the first logits, and donate what they are given.

    Arguments:
        lesson: the steps.
        method: how they are taken.
        patience: how many seconds a host that waits for the teacher is waited for.

    Raises:
        Broken: if not.
    """
    logits, losses, leaves = expected(lesson)
    teacher, student, batches = lesson.arrays()
    with jax.enable_x64(True):
        mesh, of_student = device_mesh(lesson.teacher), device_mesh(lesson.student)
        roles: dict[str, Any] = {"mesh": mesh, "data": (), "model": lesson.model}
        kept, (taught, _) = tensor_parallel.layout.shardings(len(teacher), **roles)
        teacher_params = jax.device_put(teacher, kept)
        layouts, taken = data_parallel.layout.shardings(len(student), mesh=of_student, data=lesson.data, model=())
        params = jax.device_put(student, layouts)
        inner = method.student(optimisers.adam(RATE), of_student, lesson.data)
        step, gate = Watched(inner), Gate(patience)
        distil = method.distillation(
            gate.before(partial(predictions, tensor_parallel, **roles), taught),
            step,
            teacher_inputs=taught,
            student_inputs=taken[0],
            logits=taken[1],
        )
        state, found = inner.init(params), []
        if lesson.teacher.size == 1:
            gate.issued(ALONE)
        try:
            for inputs in batches:
                old = params, state
                params, state, loss = distil(teacher_params, params, state, inputs)
                found.append(loss)
                if not all(x.is_deleted() for x in jax.tree.leaves(old)):
                    raise Broken("memory", f"{lesson}: a buffer of the student was not donated")
        finally:
            gate.issued()
        jax.block_until_ready((params, state, found))
        if gate.events[0] not in ("issued", ALONE):
            raise Broken("overlap", f"{lesson}: the host waited for the teacher: {', '.join(gate.events)}")
        _check_teacher(lesson, teacher_params, teacher, kept)
        for at, (given, right) in enumerate(zip(step.batches, zip(batches, logits, strict=True), strict=True)):
            for what, array, whole in zip(("inputs", "logits"), given, right, strict=True):
                check_laid_out(array, whole, lesson.student, P(lesson.data), f"{lesson}, step {at + 1}: {what}")
        for at, (loss, right_loss) in enumerate(zip(found, losses, strict=True)):
            close(loss, right_loss, f"{lesson}, step {at + 1}: loss")
        check_replicas((params, state))
        for at, (leaf, right_leaf) in enumerate(zip(jax.tree.leaves(params), leaves, strict=True)):
            close(leaf, right_leaf, f"{lesson}: parameter {at}")


def _check_teacher(lesson: Lesson, found: Any, right: Any, layouts: Any) -> None:
    """The bits and the layout of the teacher's parameters are what they were, on its devices.

    Raises:
        Broken: if not.
    """
    leaves = jax.tree.leaves(found)
    if any(x.is_deleted() for x in leaves):
        raise Broken("memory", f"{lesson}: a parameter of the teacher is gone")
    if not all(x.sharding.is_equivalent_to(y, x.ndim) for x, y in zip(leaves, jax.tree.leaves(layouts), strict=True)):
        raise Broken("type", f"{lesson}: a parameter of the teacher is laid out in another way")
    for at, (leaf, whole) in enumerate(zip(leaves, jax.tree.leaves(right), strict=True)):
        if not np.array_equal(leaf, whole):
            raise Broken("values", f"{lesson}: parameter {at} of the teacher changed")


def check_laid_out(array: jax.Array, whole: np.ndarray, mesh: MeshCase, of: P, what: str) -> None:
    """Every device of the mesh, and none beside, holds the part that the spec gives it, to nine digits.

    Raises:
        Broken: if not.
    """
    held = {part.device.id: np.asarray(part.data) for part in array.addressable_shards}
    numbers = [jax.devices()[number].id for number in mesh.devices]
    if {*held} != {*numbers}:
        raise Broken("type", f"{what} is on devices {sorted(held)}: expected {sorted(numbers)}")
    right = shard(whole, mesh, of)
    parts = right.reshape(-1, *right.shape[len(mesh.sizes) :])
    for number, part in zip(numbers, parts, strict=True):
        if held[number].shape != part.shape:
            raise Broken("shape", f"{what} on device {number} is {held[number].shape}: expected {part.shape}")
        close(held[number], part, f"{what} on device {number}")
