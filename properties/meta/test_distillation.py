"""Distillation under further parallelisations and at published sizes; what is transferred, and what is refused.

The law is `laws.distillation`, on drawn meshes.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardproof.impl import optimisers
from shardproof.impl.distillation import Distillation, predictions, transfer
from shardproof.impl.losses import PARALLELISATIONS
from shardproof.impl.losses.layout import spec
from shardproof.impl.training import TrainingStep
from shardproof.oracles import mlp
from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.optimisers import Adam, GradientDescent, Optimiser
from shardproof.properties.engines.xla import device_mesh
from shardproof.properties.laws.distillation import check_laid_out
from shardproof.properties.laws.training import check_replicas, close

EXAMPLES, TEACHER, STUDENT = 12, (12, 12, 12), (12, 24, 12)
"""How many examples, and the sizes of two models that every mesh here divides."""

PUBLISHED = (16, (32, 128, 256, 128, 4), (32, 4))
"""The same of "JAX Sharding and Parallel Computing", where four devices teach and four learn, for five steps."""

SPLITS = {
    "4+4": (MeshCase(("tp",), (4,)), MeshCase(("dp", "tp"), (2, 2), (4, 5, 6, 7))),
    "2+6": (MeshCase(("tp",), (2,)), MeshCase(("dp", "tp"), (3, 2), (7, 2, 6, 3, 5, 4))),
}
"""The meshes of a teacher and of a student, of 8 devices together, none of them in both."""

split = pytest.mark.parametrize("meshes", SPLITS.values(), ids=SPLITS)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    """All arrays are of doubles."""
    with jax.enable_x64(True):
        yield


class Seeing(TrainingStep):
    """A step that keeps the batch that it was given last."""

    def __call__(self, params: Any, state: Any, batch: Any) -> Any:
        """The step."""
        self.seen = batch
        return super().__call__(params, state, batch)


class Lesson:
    """A tensor-parallel teacher and a student under some parallelisation, on their devices.

    Arguments:
        meshes: the teacher's and the student's.
        student: the name of the student's parallelisation.
        optimiser: the student's.
        teacher: instead of a model's outputs, what computes logits.
        sizes: how many examples, and the sizes of the teacher and of the student.
    """

    def __init__(
        self,
        meshes: tuple[MeshCase, MeshCase],
        student: str,
        optimiser: Any,
        teacher: Any = None,
        sizes: tuple[int, tuple[int, ...], tuple[int, ...]] = (EXAMPLES, TEACHER, STUDENT),
    ) -> None:
        mesh, of_student = (device_mesh(case) for case in meshes)
        self.shape = sizes[0], sizes[1][0]
        self.rng = np.random.default_rng(0)
        self.teacher, self.student = self.layers(sizes[1]), self.layers(sizes[2])
        teaching, learning = PARALLELISATIONS["tensor_parallel"], PARALLELISATIONS[student]
        layouts, (of_inputs, _) = teaching.layout.shardings(len(self.teacher), mesh=mesh, data=(), model="tp")
        self.teacher_params = jax.device_put(self.teacher, layouts)
        layouts, self.taken = learning.layout.shardings(len(self.student), mesh=of_student, data="dp", model="tp")
        self.params = jax.device_put(self.student, layouts)
        self.step = Seeing(learning, optimiser, mesh=of_student, data="dp", model="tp")
        self.state = self.step.init(self.params)
        roles = {"data": ("dp",), "model": ("tp",)}
        self.specs = spec(learning.layout.inputs, roles), spec(learning.layout.targets, roles)
        self.distil = Distillation(
            teacher or partial(predictions, teaching, mesh=mesh, data=(), model="tp"),
            self.step,
            teacher_inputs=of_inputs,
            student_inputs=self.taken[0],
            logits=self.taken[1],
        )

    def layers(self, sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random weights and biases."""
        pairs = itertools.pairwise(sizes)
        return [(self.rng.normal(size=(a, b)) / a**0.5, self.rng.normal(size=b)) for a, b in pairs]

    def inputs(self) -> np.ndarray:
        """Random inputs of a batch."""
        return self.rng.normal(size=self.shape)

    def learn(self, inputs: np.ndarray) -> Any:
        """A step; gives the loss before it."""
        self.params, self.state, loss = self.distil(self.teacher_params, self.params, self.state, inputs)
        return loss


def check_lesson(lesson: Lesson, oracle: Optimiser, batches: Iterable[np.ndarray]) -> list[float]:
    """Losses and parameters are those of one device that learns the outputs of the definition's teacher.

    Returns:
        The losses, one before each step.
    """
    leaves = [x for layer in lesson.student for x in layer]
    kept, losses = oracle.start(leaves), []
    for inputs in batches:
        arrays = [*leaves, inputs, mlp.weighted_sums(lesson.teacher, inputs)[-1]]
        dtypes = [a.dtype for a in arrays]
        right = mlp.loss.value(arrays, dtypes, {})[0]
        gradients = mlp.loss.pullback(arrays, [np.ones(())], range(len(leaves)), dtypes, {})
        leaves, kept = oracle.step(leaves, gradients, kept)
        losses.append(float(lesson.learn(inputs)))
        close(losses[-1], right, "loss")
        for found, wanted in zip(jax.tree.leaves(lesson.params), leaves, strict=True):
            close(found, wanted, "parameter")
    check_replicas((lesson.params, lesson.state))
    return losses


@split
@pytest.mark.parametrize("student", ["data_parallel", "fsdp_rows", "fsdp_tensor_parallel"])
def test_steps(meshes: tuple[MeshCase, MeshCase], student: str) -> None:
    """Three steps, each on a batch of its own, are those of one device."""
    lesson = Lesson(meshes, student, optimisers.adam(0.01))
    check_lesson(lesson, Adam(0.01), [lesson.inputs() for _ in range(3)])


@pytest.mark.needs_devices(8)
def test_published_sizes() -> None:
    """The published teacher and student: five steps at the rate 0.01 on one batch, each of which decreases the loss."""
    meshes = MeshCase(("tp",), (4,)), MeshCase(("dp", "tp"), (4, 1), (4, 5, 6, 7))
    lesson = Lesson(meshes, "data_parallel", optimisers.sgd(0.01), sizes=PUBLISHED)
    losses = check_lesson(lesson, GradientDescent(0.01), [lesson.inputs()] * 5)
    assert losses == sorted({*losses}, reverse=True)


@split
@pytest.mark.parametrize("student", ["data_parallel", "fsdp_tensor_parallel"])
def test_layout(meshes: tuple[MeshCase, MeshCase], student: str) -> None:
    """The student is given inputs and logits on its devices, each of which holds its part of the right ones."""
    lesson = Lesson(meshes, student, optimisers.sgd(0.01))
    inputs = lesson.inputs()
    lesson.learn(inputs)
    assert [x.sharding for x in lesson.step.seen] == [*lesson.taken]
    right = inputs, mlp.weighted_sums(lesson.teacher, inputs)[-1]
    for array, whole, of in zip(lesson.step.seen, right, lesson.specs, strict=True):
        check_laid_out(array, whole, meshes[1], of, "what is given")


@split
def test_teacher_untouched(meshes: tuple[MeshCase, MeshCase]) -> None:
    """The teacher's parameters keep their bits and their layout; the student's old ones are donated."""
    lesson = Lesson(meshes, "fsdp_rows", optimisers.adam(0.01))
    teacher, old = lesson.teacher_params, (lesson.params, lesson.state)
    layouts = jax.tree.map(lambda x: x.sharding, teacher)
    for _ in range(2):
        lesson.learn(lesson.inputs())
    assert all(x.is_deleted() for x in jax.tree.leaves(old))
    assert jax.tree.map(lambda x: x.sharding, teacher) == layouts
    for found, right in zip(jax.tree.leaves(teacher), jax.tree.leaves(lesson.teacher), strict=True):
        np.testing.assert_array_equal(found, right, strict=True)
    numbers = {device.id for x in jax.tree.leaves((lesson.params, lesson.state)) for device in x.sharding.device_set}
    assert numbers == {jax.devices()[number].id for number in meshes[1].devices}


@split
@pytest.mark.parametrize("student", ["data_parallel", "fsdp_tensor_parallel"])
def test_decreases(meshes: tuple[MeshCase, MeshCase], student: str) -> None:
    """Every step on the same inputs decreases the loss, and five take a tenth of it at least."""
    lesson = Lesson(meshes, student, optimisers.sgd(0.01))
    inputs = lesson.inputs()
    losses = [float(lesson.learn(inputs)) for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


@split
@pytest.mark.parametrize("there", [P(), P("dp"), P(("tp", "dp")), P(None, ("dp", "tp"))], ids=str)
@pytest.mark.parametrize("here", [P(), P("tp"), P(None, "tp"), None], ids=str)
def test_transfer(meshes: tuple[MeshCase, MeshCase], here: P | None, there: P) -> None:
    """What is transferred from devices, or from the host, is on the others, bit for bit and laid out as asked for."""
    whole = np.random.default_rng(0).normal(size=(12, 12))
    sent = whole if here is None else jax.device_put(whole, NamedSharding(device_mesh(meshes[0]), here))
    sharding = NamedSharding(device_mesh(meshes[1]), there)
    found = transfer(sent, sharding)
    assert found.sharding == sharding
    check_laid_out(found, whole, meshes[1], there, "what is transferred")
    np.testing.assert_array_equal(found, whole, strict=True)


def test_errors() -> None:
    """Meshes that share a device, what is elsewhere, and what was donated are refused by name."""
    lesson = Lesson(SPLITS["4+4"], "data_parallel", optimisers.sgd(0.01))
    distil = lesson.distil
    mine, theirs = distil.teacher_inputs, distil.student_inputs
    with pytest.raises(ValueError, match=r"^Distillation: teacher_inputs=.* none of the devices \[4, 5, 6, 7\] of"):
        Distillation(max, lesson.step, teacher_inputs=theirs, student_inputs=theirs, logits=theirs)
    with pytest.raises(ValueError, match=r"^Distillation: logits=.*: expected it on the student's mesh \(dp=2, tp=2\)"):
        Distillation(max, lesson.step, teacher_inputs=mine, student_inputs=theirs, logits=mine)
    with pytest.raises(ValueError, match=r"^Distillation: teacher_params\[0\]\[0\]=.* on devices \[4, 5, 6, 7\]: exp"):
        distil(lesson.params, lesson.params, lesson.state, lesson.inputs())
    old = lesson.params
    lesson.learn(lesson.inputs())
    with pytest.raises(ValueError, match=r"^Seeing: params\[0\]\[0\]=.*, deleted: .* donated to an earlier step"):
        distil(lesson.teacher_params, old, lesson.state, lesson.inputs())
