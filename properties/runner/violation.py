"""A broken law together with all that there is to tell of it."""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from hypothesis.errors import FlakyFailure

from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import in_words
from shardproof.properties.cases.data import Data
from shardproof.properties.laws import Law
from shardproof.properties.laws.law import LARGE
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.programs.violation import RAISED, Broken, Difference, Kind

PROPERTIES = Path(__file__).parents[1]
INNER = ("jax", "jaxlib", "jaxtyping", "beartype", "hypothesis", "_pytest", "pluggy")
"""Packages whose frames say nothing about the implementation."""

MOST_FRAMES, MOST_LINES = 4, 6
"""How much of a traceback is told: its last frames, and the first lines of the message."""


OTHER = "not the same twice: called again on this case, the function does another thing: it depends on earlier calls"
"""What is wrong with a function that keeps state."""


class LawViolation(AssertionError):
    """An implementation breaks a law on a case.

    Arguments:
        engine: the name of the engine that ran it.
        origin: the implementation's own traceback, where it raised.
        diagnosis: what is wrong in words, where that was found out already.
        evidence: what else a report shows that takes further runs, as JSON-able data, where that was found out.
    """

    def __init__(
        self,
        implementation: Implementation,
        law: Law,
        case: Case,
        engine: str,
        broken: Broken,
        *,
        origin: Sequence[str] = (),
        diagnosis: Sequence[str] | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        self.implementation, self.law, self.case, self.engine = implementation, law, case, engine
        self.broken, self.origin, self.diagnosis, self.evidence = broken, tuple(origin), diagnosis, evidence
        super().__init__(self.headline)

    def __str__(self) -> str:
        """What is certain; a report says more."""
        data = "" if self.data is None else f"\n  data: {self.data.kind}, seed {self.data.seed}"
        stated = "".join(f"\n  {line}" for line in self.stated)
        return f"{self.headline}\n  case: {self.case}{stated}{data}\n  engine: {self.engine}"

    @property
    def stated(self) -> list[str]:
        """What its program is said to need, and to be allowed, in a line, if anything is."""
        return [f"stated: {'; '.join(self.implementation.stated)}"] if self.implementation.stated else []

    @property
    def kind(self) -> Kind:
        """What is wrong."""
        return self.broken.kind

    @property
    def finding(self) -> str:
        """What is wrong, in a few words."""
        return self.broken.finding

    @property
    def data(self) -> Data | None:
        """The data set on which it shows, if it depends on one."""
        return self.broken.data

    @property
    def difference(self) -> Difference | None:
        """The blocks that are wrong, where blocks were compared."""
        return self.broken.difference

    @property
    def in_doubles(self) -> bool:
        """Whether it shows in double precision alone, below what rounding to the case's own dtypes may do."""
        return self.difference is not None and self.difference.in_doubles(self.case)

    @property
    def rounding(self) -> bool:
        """Whether values differ by no more than rounding may make them."""
        return self.difference is not None and self.difference.rounding

    @property
    def mistake(self) -> tuple[object, ...]:
        """What stays the same while a smaller case is sought: the law, what is wrong, of what, and what it raises."""
        raised = self.finding.partition(":")[0] if self.kind in RAISED else ""
        of = "derivative" if self.broken.of_derivative else self.broken.of
        return self.law.name, self.kind, of, raised, self.rounding

    def resembles(self, other: "LawViolation") -> bool:
        """Whether another violation has the same blocks, or where none are compared is told in the same words."""
        mine, its = self.difference, other.difference
        if mine is None or its is None:
            return self.finding == other.finding
        return mine.actual.shape == its.actual.shape and bool(nan_equal(mine.actual, its.actual).all())

    @property
    def title(self) -> str:
        """The law, with the chain around the call and the size of a large mesh: `gradient under vmap of scan`."""
        under = f" under {in_words(self.case.chain)}" if self.case.chain else ""
        size = f" on {self.case.mesh.size:,} devices" if self.case.mesh.size > LARGE else ""
        return f"{self.law.name}{under}{size}"

    @property
    def headline(self) -> str:
        """Implementation, law, mesh, axis, and what is wrong, in one line."""
        roles = ", ".join(f"{role}={axes!r}" for role, axes in self.case.roles)
        where = f"mesh {self.case.mesh}, {roles or f'axis {self.case.axis_name!r}'}"
        return f"{self.implementation}: {self.title}: {where}: {self.finding}"


def once(violation: LawViolation) -> LawViolation:
    """The violation, of a case on which another thing happened when it was run again."""
    violation.diagnosis = [OTHER]
    return violation


def first_of(failure: FlakyFailure) -> LawViolation:
    """The violation that Hypothesis did not find again; raises FlakyFailure if no law was broken."""
    found = [error for error in failure.exceptions if isinstance(error, LawViolation)]
    if not found:
        raise failure
    return once(found[0])


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the traceback of an exception that are neither JAX's nor this suite's, nor of what they wrap."""
    packages = [contextlib.__file__, *(str(Path(jax.__file__).parents[1] / package) for package in INNER)]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*packages, "<"))
        and (PROPERTIES not in Path(frame.filename).parents or "mutants" in frame.filename or "test_" in frame.filename)
    ]


def origin_of(error: BaseException) -> list[str]:
    """The traceback of the implementation's own exception: its frames, without those of JAX and of this suite."""
    lines = []
    for frame in own_frames(error)[-MOST_FRAMES:]:
        lines += [f'File "{frame.filename}", line {frame.lineno}, in {frame.name}', f"  {frame.line}"]
    message = f"{type(error).__name__}: {error}".rstrip().split("\n")
    message = [line for line in message if "shardproof/properties/" not in line]  # where JAX names the suite's function
    return [f"  {line}" for line in (*lines, *message[:MOST_LINES])]
