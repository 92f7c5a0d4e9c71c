"""One search through the cases that Hypothesis draws for a law: until one breaks it, and then a simpler one."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, Unsatisfiable

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.law import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner import budgets
from shardproof.properties.runner.judging import ENOUGH, verify
from shardproof.properties.runner.tally import Tally
from shardproof.properties.runner.turns import Turns, in_turn
from shardproof.properties.runner.verdict import Enough
from shardproof.properties.runner.violation import LawViolation, first_of

Drawn = TypeVar("Drawn")

FEW = 12
"""So many structures or fewer are for what tells right from wrong alone."""

UNLIKE = 0.5
"""The part of what is run on a smaller mesh that may be unlike the case that was found."""


class Told(BaseException):
    """Ends a search at once, past Hypothesis, which would shrink what nobody reads, or what ends the process."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        super().__init__(violation.headline)


@dataclass(frozen=True)
class Finding:
    """How an implementation fared under a law.

    Arguments:
        law: the law's name.
        violation: the smallest case that breaks it, or None.
        tally: what was checked.
        caught_after: how many structures were tried until the first that broke it.
        caught_seconds: how long that took.
        seconds: how long it took in all, shrinking included.
        nothing: why the law is not held, or does not apply, though nothing broke it.
    """

    law: str
    violation: LawViolation | None
    tally: Tally
    caught_after: int = 0
    caught_seconds: float = 0.0
    seconds: float = 0.0
    nothing: str = ""


@dataclass
class Chosen:
    """Which of the cases that are drawn on a smaller mesh are run: first of all those with the same options.

    Arguments:
        options: what the case that was found has of these: an operation's name, whether dimensions are tiled.
        alike: how many with the same options may still be run.
        unlike: how many others.
    """

    options: Mapping[str, Any]
    alike: int
    unlike: int

    @classmethod
    def like(cls, case: Case, count: int) -> "Chosen":
        """As many as `count` of those with the options of a case, and fewer others."""
        options = {name: value for name, value in case.keywords.items() if isinstance(value, str | bool | None)}
        return cls(options, count, round(count * UNLIKE))

    def takes(self, case: Case) -> bool:
        """Whether a case is run.

        Raises:
            Enough: if no other one will be.
        """
        alike = all(case.keywords.get(name) == value for name, value in self.options.items())
        if self.alike == 0:
            raise Enough
        left = self.alike if alike else self.unlike
        if alike:
            self.alike -= 1
        elif left:
            self.unlike -= 1
        return left > 0


def telling(
    law: Law,
    implementation: Implementation,
    scope: Scope,
    excluded: Callable[[Case], None],
    count: int,
    broken: Callable[[], bool] | None = None,
) -> st.SearchStrategy[Case]:
    """The cases of a law; of a few structures those alone in which something can go wrong, where there are others.

    Of a few all kinds come in turn until one is `broken`, if that is given. It is not where cases are remembered: of
    what failed before Hypothesis would forget whatever is not taken.
    """
    cases = law.cases(implementation, scope, excluded)
    if count > FEW:
        return cases
    possible = cases.filter(_can_fail) if scope.available > 1 else cases
    return possible if broken is None else in_turn(possible, Turns(law.kinds), broken)


@st.composite
def but_the_simplest(draw: st.DrawFn, drawn: st.SearchStrategy[Drawn]) -> Drawn:
    """What is drawn without what Hypothesis tries first, which is the same for every seed, and mostly trivial.

    With a few structures for a law and an implementation, that would be one of a few.
    """
    if not draw(st.integers(0, 15), label="not the simplest"):
        reject()  # a filter Hypothesis would make a bound of, and try that first
    return draw(drawn)


def _can_fail(case: Case) -> bool:
    return not case.trivial


def on_data(case: Case, kind: str) -> Case:
    """The case on its data sets of one kind alone; as it is if it has none, or no kind is given."""
    return dataclasses.replace(case, data=tuple(data for data in case.data if data.kind == kind) or case.data)


def search(
    law: Law,
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    max_examples: int,
    random_seed: int | None,
    shrink: bool,
    before: Callable[[Case], str],
    was_told: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = ENOUGH,
    *,
    past_rounding: bool = False,
    kind: str = "",
    chosen: Chosen | None = None,
) -> Finding:
    """One search, as `find_violation` makes several; one that differs by rounding alone can be passed over.

    Arguments:
        past_rounding: whether what differs by rounding alone is taken to hold.
        kind: the kind of the only data sets to run; after the first violation those of its kind alone are.
        chosen: which of the cases are run; by default all.
    """
    tally = Tally(implementation.contract, implementation.name, law.name, engine.name)
    start = time.perf_counter()
    tried = 0
    caught: tuple[int, float] | None = None
    cases = telling(law, implementation, scope, tally.exclude, max_examples, tally.is_broken)
    if engine.name != law.engines[0]:  # on which what is tried first was run
        cases = but_the_simplest(cases)
    instead = max(budgets.LEAST, round(max_examples * budgets.XLA))

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=random_seed is None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(case=cases)
    def holds(case: Case) -> None:
        nonlocal tried, caught, kind
        if chosen and not caught and not chosen.takes(case):
            return
        tried += 1
        case = on_data(case, kind)
        try:
            known = before(case)
            verify(law, implementation, case, engine, tally, instead=instead, patience=patience, ended_by=known)
        except LawViolation as violation:
            if past_rounding and violation.rounding:
                return
            if was_told(violation) or violation.kind == "ended":
                raise Told(violation) from violation.__cause__
            caught = caught or (tried, time.perf_counter() - start)
            kind = kind or (violation.data.kind if violation.data else "")  # the others would only take their time
            raise

    try:
        (holds if random_seed is None else seed(random_seed)(holds))()
    except (LawViolation, FlakyFailure) as error:
        violation = first_of(error) if isinstance(error, FlakyFailure) else error
        assert caught is not None
        return Finding(law.name, violation, tally, *caught, time.perf_counter() - start)
    except Told as again:
        return Finding(law.name, again.violation, tally, tried, seconds=time.perf_counter() - start)
    except (Unsatisfiable, Enough):  # the tally says what became of what was drawn
        pass
    return Finding(law.name, None, tally, seconds=time.perf_counter() - start)
