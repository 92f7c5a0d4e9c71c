"""What a user asks for that cannot be had: an error in one line, and what a name may have been meant to be."""

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """What was asked for cannot be had; the message names the argument and its value, and says what was expected."""


FAR = 0.5
"""How alike the nearest name is at least, of 1."""


def meant(name: str, known: Iterable[str], *, of: str = "one of", instead: Iterable[str] | None = None) -> str:
    """The nearest of the names that there are, or all of them.

    Arguments:
        of: whether one or some of them are expected.
        instead: what is listed in place of all of them.
    """
    names = list(known)
    return near(name, names) or f"expected {of} {', '.join(names if instead is None else instead)}"


def near(name: str, known: Iterable[str]) -> str:
    """The nearest of the names that there are, as a question; nothing, if none is near."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=FAR)
    return f"did you mean {found[0]!r}?" if found else ""
