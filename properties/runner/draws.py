"""One search through the cases that Hypothesis draws for a law: until one breaks it, and then a simpler one."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, Unsatisfiable

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws.law import Law
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner import budgets
from shardproof.properties.runner.judging import ENOUGH, verify
from shardproof.properties.runner.tally import Enough, Tally
from shardproof.properties.runner.violation import LawViolation, first_of


class StopSearch(BaseException):
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


def with_options_of(cases: st.SearchStrategy[Case], other: Case) -> st.SearchStrategy[Case]:
    """The cases with the options of another one: the same operation's name, and tiled or not as that is."""
    options = {name: value for name, value in other.keywords.items() if isinstance(value, str | bool | None)}
    return cases.filter(lambda case: all(case.keywords.get(name) == value for name, value in options.items()))


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
    like: Case | None = None,
) -> Finding:
    """One search, as `find_violation` makes several; one that differs by rounding alone can be passed over.

    Arguments:
        past_rounding: whether what differs by rounding alone is taken to hold.
        kind: the kind of the only data sets to run; after the first violation those of its kind alone are.
        like: a case whose options all others are to have.
    """
    tally = Tally(implementation.contract, implementation.name, law.name, engine.name)
    start = time.perf_counter()
    tried = 0
    caught: tuple[int, float] | None = None
    cases = law.cases(implementation, scope, tally.exclude)
    if like is not None:
        cases = with_options_of(cases, like)
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
        tried += 1
        case = on_data(case, kind)
        try:
            known = before(case)
            verify(law, implementation, case, engine, tally, instead=instead, patience=patience, ended_by=known)
        except LawViolation as violation:
            if past_rounding and violation.rounding:
                return
            if was_told(violation) or violation.kind == "ended":
                raise StopSearch(violation) from violation.__cause__
            caught = caught or (tried, time.perf_counter() - start)
            kind = kind or (violation.data.kind if violation.data else "")  # the others would only take their time
            raise

    try:
        (holds if random_seed is None else seed(random_seed)(holds))()
    except (LawViolation, FlakyFailure) as error:
        violation = first_of(error) if isinstance(error, FlakyFailure) else error
        assert caught is not None
        return Finding(law.name, violation, tally, *caught, time.perf_counter() - start)
    except StopSearch as again:
        return Finding(law.name, again.violation, tally, tried, seconds=time.perf_counter() - start)
    except (Unsatisfiable, Enough):  # the tally says what became of what was drawn
        pass
    return Finding(law.name, None, tally, seconds=time.perf_counter() - start)
