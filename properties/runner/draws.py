"""One search through the cases that Hypothesis draws for an implementation: until one breaks a law, then simpler."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import FlakyFailure, Unsatisfiable

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import Engine
from shardproof.properties.laws import Law
from shardproof.properties.laws.drawing import drawn_for
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.judging import ENOUGH, asked, draw_another, tallies_of, verify
from shardproof.properties.runner.profiles import compiled_of, seed_of
from shardproof.properties.runner.tally import Enough, Tally, Verdict
from shardproof.properties.runner.violation import LawViolation, first_of


class StopSearch(BaseException):
    """Ends a search at once, past Hypothesis, which would shrink what nobody reads, or what ends the process."""

    def __init__(self, violation: LawViolation) -> None:
        self.violation = violation
        super().__init__(violation.headline)


@dataclass(frozen=True)
class Finding:
    """How an implementation fared on an engine.

    Arguments:
        violation: the smallest case that breaks a law, or None.
        tallies: what was checked, by law.
        caught_after: how many structures were tried until the first that broke one.
        caught_seconds: how long that took.
        seconds: how long it took in all, shrinking included.
        ended: after how many structures of how many the time was spent, if it was.
    """

    violation: LawViolation | None
    tallies: Mapping[str, Tally]
    caught_after: int = 0
    caught_seconds: float = 0.0
    seconds: float = 0.0
    ended: str = ""

    @property
    def tally(self) -> Tally:
        """The tally of the law that is broken, or of the first."""
        name = next(iter(self.tallies)) if self.violation is None else self.violation.law.name
        return self.tallies[name]


def has_options_of(case: Case, other: Case) -> bool:
    """Whether a case has the options of another one: the same operation's name, and tiled or not as that is."""
    options = {name: value for name, value in other.keywords.items() if isinstance(value, str | bool | None)}
    return all(case.keywords.get(name) == value for name, value in options.items())


def on_data(case: Case, kind: str) -> Case:
    """The case on its data sets of one kind alone; as it is if it has none, or no kind is given."""
    return dataclasses.replace(case, data=tuple(data for data in case.data if data.kind == kind) or case.data)


def search(
    laws: Sequence[Law],
    implementation: Implementation,
    engine: Engine,
    scope: Scope,
    max_examples: int,
    random_seed: int | None,
    shrink: bool,
    before: Callable[[Law, Case], str],
    was_told: Callable[[LawViolation], bool] = lambda violation: False,
    patience: int = ENOUGH,
    *,
    past_rounding: bool = False,
    kind: str = "",
    like: Case | None = None,
    database: ExampleDatabase | None = None,
    until: float | None = None,
) -> Finding:
    """One search, as `find_violation` makes several; one that differs by rounding alone can be passed over.

    Arguments:
        past_rounding: whether what differs by rounding alone is taken to hold.
        kind: the kind of the only data sets to run; after the first violation those of its kind alone are.
        like: a case whose options all others are to have.
        database: where Hypothesis keeps what broke a law, and looks for it first.
        until: when to draw no more, by `time.perf_counter`, unless something was found.
    """
    laws = asked(implementation, engine.name, laws)
    tallies = tallies_of(implementation, engine.name, laws)
    start = time.perf_counter()
    tried = 0
    caught: tuple[int, float] | None = None
    ended = ""

    def exclude(case: Case) -> None:
        for tally in tallies.values():
            tally.exclude(case)

    cases = drawn_for(implementation, scope, eager=engine.name == "xla", excluded=exclude)
    if engine.name == "xla" and scope.available > 1:  # of the few that are compiled in all something can go wrong
        cases = cases.filter(lambda drawn: not drawn[0].trivial)
    if like is not None:
        cases = cases.filter(lambda drawn: has_options_of(drawn[0], like))
    compiled = compiled_of(max_examples)

    limits = settings(
        max_examples=max_examples,
        deadline=None,
        database=database,
        phases=[Phase.reuse, Phase.generate, Phase.shrink][: 3 if shrink else 2],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )

    def holds(drawn: tuple[Case, ...]) -> None:
        nonlocal tried, caught, kind, laws, ended
        if until is not None and caught is None and time.perf_counter() > until:
            ended = f"after {tried} of {max_examples} structures"
            raise Enough
        tried += 1
        verdicts: dict[str, Verdict] = {}
        for case in drawn:
            try:
                verdicts |= verify(
                    implementation, on_data(case, kind), engine,
                    laws=laws, tallies=tallies, instead=compiled, before=before,
                )  # fmt: skip
            except LawViolation as violation:
                if past_rounding and violation.rounding:
                    return
                if was_told(violation) or violation.kind == "ended":
                    raise StopSearch(violation) from violation.__cause__
                caught = caught or (tried, time.perf_counter() - start)
                kind = kind or (violation.data.kind if violation.data else "")  # the others would only take their time
                laws = [violation.law]
                raise
        draw_another(verdicts, tallies, patience=patience, instead=compiled if engine.name == "simulate" else 0)

    test = limits(given(drawn=cases)(holds))
    try:
        seed(seed_of("fixed", implementation, engine.name) if random_seed is None else random_seed)(test)()
    except (LawViolation, FlakyFailure) as error:
        violation = first_of(error) if isinstance(error, FlakyFailure) else error
        assert caught is not None
        return Finding(violation, tallies, *caught, time.perf_counter() - start)
    except StopSearch as again:
        return Finding(again.violation, tallies, tried, seconds=time.perf_counter() - start)
    except (Unsatisfiable, Enough):  # the tallies say what became of what was drawn
        pass
    return Finding(None, tallies, seconds=time.perf_counter() - start, ended=ended)
