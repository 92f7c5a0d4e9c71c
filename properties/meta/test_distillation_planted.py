"""The law of distillation reports wrong methods, for what is wrong with them, and does not report right ones."""

import pytest
from hypothesis import Phase, given, settings

from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.distilling import Lesson
from shardproof.properties.laws.distillation import PATIENCE, check_lesson
from shardproof.properties.mutants.distillation import HALVES, ODD, UNEVEN, WRONG, Planted
from shardproof.properties.programs.violation import Broken
from shardproof.properties.suite.test_distillation import LESSONS, MOST, of_several

pytestmark = pytest.mark.needs_devices(8)

SHORTLY = 1.0
"""Seconds that a teacher is held up by a host that waits for it."""

LOPSIDED = (
    Lesson(MeshCase(("tp",), (7,)), ("tp",), MeshCase(("dp",), (1,), (7,)), ("dp",), (7, 14, 7), (7, 7), examples=2),
    Lesson(MeshCase(("dp",), (1,), (7,)), ("dp",), MeshCase(("dp",), (7,)), ("dp",), (3, 2), (3, 4, 2), examples=7),
)


@pytest.mark.parametrize("lesson", [HALVES, UNEVEN, *LOPSIDED], ids=lambda x: f"{x.teacher.size}+{x.student.size}")
def test_a_right_method(lesson: Lesson) -> None:
    """It passes, with seven teachers for one student and one for seven as well."""
    check_lesson(lesson)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("lesson", [HALVES, UNEVEN], ids=["halves", "uneven"])
def test_an_odd_method_is_not_reported(name: str, lesson: Lesson) -> None:
    """It does more than it must, and nothing wrong."""
    check_lesson(lesson, ODD[name])


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("lesson", [HALVES, pytest.param(UNEVEN, marks=pytest.mark.lengthy)], ids=["halves", "uneven"])
def test_planted(name: str, lesson: Lesson) -> None:
    """It is reported for what is wrong, and not where that does no harm."""
    planted = WRONG[name]
    with pytest.raises((Broken, ValueError), match=planted.match):
        check_lesson(lesson, planted.method, patience=patience(planted))
    if planted.harmless:
        check_lesson(planted.harmless, planted.method)


def drawn(split: str) -> list[Lesson]:
    """The lessons that a run draws of a kind of split."""
    found: list[Lesson] = []

    @settings(max_examples=LESSONS, derandomize=True, database=None, phases=[Phase.generate])
    @given(of_several(MOST, split))
    def every(lesson: Lesson) -> None:
        found.append(lesson)

    every()
    return found


def test_what_is_drawn() -> None:
    """Disjoint meshes whose axes divide the sizes, halves and others, and mostly more than one teacher."""
    halves, others = map(drawn, ("halves", "any"))
    assert all(lesson.teacher.size == lesson.student.size for lesson in halves)
    for lesson in (*halves, *others):
        assert not {*lesson.teacher.devices} & {*lesson.student.devices}
        assert not any(size % lesson.teacher.axis_size(lesson.model) for size in lesson.teacher_sizes)
        assert not lesson.examples % lesson.student.axis_size(lesson.data)
    assert any(lesson.teacher.size != lesson.student.size for lesson in others)
    assert any(min(lesson.teacher.size, lesson.student.size) > 1 for lesson in (*halves, *others))


@pytest.mark.lengthy
@pytest.mark.parametrize("name", WRONG)
def test_planted_bugs_are_found_among_what_is_drawn(name: str) -> None:
    """One lesson at least of those that a run draws shows each."""
    assert any(is_reported(WRONG[name], lesson) for split in ("halves", "any") for lesson in drawn(split))


def is_reported(planted: Planted, lesson: Lesson) -> bool:
    """Whether the law says that it is wrong."""
    try:
        check_lesson(lesson, planted.method, patience=patience(planted))
    except (Broken, ValueError):
        return True
    return False


def patience(planted: Planted) -> float:
    """How long a teacher is held up: others than those that wait are given the time that they take to compile."""
    return SHORTLY if planted.waits else PATIENCE
