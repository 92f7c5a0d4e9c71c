"""What a user states of how a program hides its communication: `exposed<=1/p,directions=2,memory<=lhs+rhs+2*out`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shardproof.properties.programs.expectation import ExpectationError, split_terms, value

EXPOSED, DIRECTIONS, MEMORY = "exposed", "directions", "memory"
SIGNS = {EXPOSED: "<=", DIRECTIONS: "=", MEMORY: "<="}


@dataclass(frozen=True)
class Overlap:
    """What is hidden, which links are used, and what is held.

    Arguments:
        exposed: the most that nothing is computed beside, as a part of the time in which anything is sent.
        directions: 2, if blocks go both ways round each ring of three participants or more; 1, if that is not said.
        memory: the most bytes alive at one time on a device; None: nothing is said.
    """

    exposed: str
    directions: int = 1
    memory: str | None = None

    @classmethod
    def parse(cls, text: str, names: Sequence[str], said: str = "overlap") -> "Overlap":
        """Reads `exposed<=EXPRESSION`, and after commas `directions=2` and `memory<=EXPRESSION`.

        An expression is as in `Expectation.parse`.

        Arguments:
            text: what is read.
            names: what expressions may speak of.
            said: the argument or option that it was given by, for messages.

        Raises:
            ExpectationError: for anything else.
        """
        terms: dict[str, str] = {}
        for part in split_terms(text):
            name = next((name for name in SIGNS if part.strip().startswith(name)), "")
            sign, expression = part.strip().removeprefix(name)[:2], part.strip().removeprefix(name)
            if not name or name in terms or not sign.startswith(SIGNS[name]):
                raise ExpectationError(f"{said}={text}: {part.strip()!r}: expected {_FORMS}, each once")
            terms[name] = expression.removeprefix(SIGNS[name]).strip()
            try:
                for p in (4, 1, 2, 3):
                    value(terms[name], **{**dict.fromkeys(names, 64), "p": p})
            except ExpectationError as error:
                raise ExpectationError(f"{said}={text}: {error}") from error
        if EXPOSED not in terms or terms.get(DIRECTIONS, "1") not in ("1", "2"):
            raise ExpectationError(f"{said}={text!s}: expected {_FORMS}: the first, and what else is meant")
        return cls(terms[EXPOSED], int(terms.get(DIRECTIONS, "1")), terms.get(MEMORY))

    def __str__(self) -> str:
        parts = [f"{EXPOSED}<={self.exposed}"]
        parts += [f"{DIRECTIONS}={self.directions}"] if self.directions > 1 else []
        parts += [f"{MEMORY}<={self.memory}"] if self.memory is not None else []
        return ",".join(parts)


_FORMS = "exposed<=EXPRESSION, directions=2, memory<=EXPRESSION"


def limit(one: str, sizes: Mapping[str, Any]) -> Fraction:
    """What a limit is in a case of these sizes."""
    return value(one, **sizes)
