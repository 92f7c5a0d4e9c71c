"""Steps of distillation: how devices are split between a teacher and a student, their meshes, and sizes."""

from dataclasses import replace

from hypothesis import strategies as st

from shardproof.properties.cases.distilling import Lesson
from shardproof.properties.cases.strategies.axes import axis_tuples, orders
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.meshes import meshes


@st.composite
def lessons(draw: st.DrawFn, *, available: int, halves: bool = False) -> Lesson:
    """Two steps of distillation; shrinks to a teacher on one device and a student on another.

    Both meshes have one or two axes, of names of their own that may be the same, over devices in any order. Most have
    all devices between them.

    Arguments:
        available: how many devices there are, at least two.
        halves: whether the teacher has as many devices as the student. If not, any split is drawn.

    Example:
        Lesson(teacher={'tp': 2}, model=('tp',), student={'sp': 3, 'tp': 2}, data=('tp', 'sp'), ...)
    """
    counts = range(2, available + 1, 2 if halves else 1)
    total = draw(sampled((*counts, *(counts[-1],) * 4)), label="devices")
    teaching = total // 2 if halves else draw(st.integers(1, total - 1), label="the teacher's")
    learning = total - teaching
    teacher, student = (
        draw(meshes(min_devices=n, max_devices=n, max_axes=2), label=label)
        for n, label in ((teaching, "teacher"), (learning, "student"))
    )
    order = draw(orders(range(available)), label="order")
    teacher = replace(teacher, devices=tuple(order[i] for i in teacher.devices))
    student = replace(student, devices=tuple(order[teaching + i] for i in student.devices))
    model = draw(axis_tuples(teacher), label="model")
    data = draw(axis_tuples(student), label="data")
    unit = teacher.axis_size(model)
    inputs, hidden, outputs = (unit * draw(st.integers(1, 2), label="size") for _ in range(3))
    sizes = (inputs, hidden, outputs) if draw(st.booleans(), label="deep teacher") else (inputs, outputs)
    narrow = (inputs, draw(st.integers(1, 3), label="hidden of the student"), outputs)
    return Lesson(
        teacher,
        model,
        student,
        data,
        sizes,
        narrow if draw(st.booleans(), label="deep student") else (inputs, outputs),
        student.axis_size(data) * draw(st.integers(1, 3), label="examples"),
        seed=draw(st.integers(0, 999), label="seed"),
    )
