"""A few steps of distillation on two meshes: everything needed to take them again."""

import itertools
from dataclasses import dataclass

import numpy as np

from shardproof.oracles.mesh import MeshCase

Layers = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Lesson:
    """A teacher with tensor parallelism, and a student with data parallelism on other devices.

    Arguments:
        teacher: the teacher's mesh.
        model: its axes over which features are shared; over the others everything is replicated.
        student: the student's mesh, which has no device in common with the teacher's.
        data: its axes over which examples are shared; over the others everything is replicated.
        teacher_sizes: `D_0` to `D_n` of the teacher's layers.
        student_sizes: the same of the student's; the first and the last are the teacher's.
        examples: `B`, of each batch.
        steps: how many batches there are.
        seed: what the arrays are drawn with.
    """

    teacher: MeshCase
    model: tuple[str, ...]
    student: MeshCase
    data: tuple[str, ...]
    teacher_sizes: tuple[int, ...]
    student_sizes: tuple[int, ...]
    examples: int
    steps: int = 2
    seed: int = 0

    def arrays(self) -> tuple[Layers, Layers, list[np.ndarray]]:
        """The teacher's parameters, the student's, and the inputs of every batch, in float64."""
        numbers = np.random.default_rng(self.seed)

        def layers(sizes: tuple[int, ...]) -> Layers:
            pairs = itertools.pairwise(sizes)
            return [(numbers.normal(size=(a, b)) / a**0.5, numbers.normal(size=b)) for a, b in pairs]

        of_teacher, of_student = layers(self.teacher_sizes), layers(self.student_sizes)
        return (
            of_teacher,
            of_student,
            [numbers.normal(size=(self.examples, self.teacher_sizes[0])) for _ in range(self.steps)],
        )
