"""Steps of distillation, on drawn pairs of disjoint meshes, are those of a single device; the host never waits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.properties.cases.distilling import Lesson
from shardproof.properties.cases.strategies.distilling import lessons
from shardproof.properties.contracts import Scope
from shardproof.properties.laws.distillation import check_lesson

LESSONS = max(2, settings().max_examples // 60)
"""How many are taken of each kind of split: every one compiles four programs."""

MOST = 8
"""Devices of both together."""


def of_several(available: int, split: str) -> st.SearchStrategy[Lesson]:
    """Lessons with more than one teacher or student, if there are so many devices: with a few, none is for the rest."""
    drawn = lessons(available=available, halves=split == "halves")
    return drawn.filter(lambda lesson: lesson.teacher.size + lesson.student.size > 2) if available > 3 else drawn


@pytest.mark.law("value", "xla")
@pytest.mark.needs_devices(2)
@pytest.mark.parametrize("split", ["halves", "any"])
@settings(max_examples=LESSONS)
@given(data=st.data())
def test_a_student_learns_from_a_teacher_on_other_devices(split: str, scope: Scope, data: st.DataObject) -> None:
    """A teacher with tensor parallelism on some devices, a student with data parallelism on others.

    Losses and parameters are one device's; every device of the student has its part of the logits; the teacher stays
    as it was; and all steps are issued before the teacher has computed anything.
    """
    check_lesson(data.draw(of_several(min(MOST, scope.available), split), label="lesson"))
