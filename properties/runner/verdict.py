"""What is known of a case once it was judged, and of a law once all of its cases were."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["held", "unsupported", "excused", "not run"]


@dataclass(frozen=True)
class Verdict:
    """What became of a case that does not break its law; one that does raises `LawViolation`.

    Arguments:
        kind: `held`; `unsupported`: the implementation, or JAX for it, raises NotImplementedError; `excused`: it fails
            because of a known defect of JAX or XLA, without which the law holds on this very case; `not run`: no engine
            that was allowed to can run it.
        reason: why it is not held: the exception, the name of the defect, what the engine lacks.
        checked: how many data sets were checked.
        instead: why another engine ran it than the one that was asked to.
        final: of a case that is not run, whether it is so on every engine.
        declined: of an unsupported case, whether it is so without any derivative, so that the law has nothing to say.
    """

    kind: Kind
    reason: str = ""
    checked: int = 0
    instead: str = ""
    final: bool = False
    declined: bool = False


class Enough(BaseException):
    """Ends a search in which hardly any case is supported.

    It is no Exception, because Hypothesis takes those for a failing example, and shrinks it.
    """


class HeldOnNothing(AssertionError):
    """A law was broken by no case, and held on none either: that is no pass."""
