"""Errors of a user's request in one line, with the nearest name that there is."""

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """A request cannot be met; the message names the argument and its value, and says what was expected."""


FAR = 0.5
"""The least similarity of the nearest name, of 1."""


def did_you_mean(name: str, known: Iterable[str], *, of: str = "one of", instead: Iterable[str] | None = None) -> str:
    """A question with the nearest of the known names, or else a list of them, or of others `instead`."""
    names = list(known)
    return near(name, names) or f"expected {of} {', '.join(names if instead is None else instead)}"


def near(name: str, known: Iterable[str]) -> str:
    """The nearest of the names that there are, as a question; nothing, if none is near."""
    names = list(known)
    own = {one.lower(): one for one in names} | {one: one for one in names}
    found = difflib.get_close_matches(name, own, n=1, cutoff=FAR) or difflib.get_close_matches(
        name.lower(), own, n=1, cutoff=FAR
    )
    return f"did you mean {own[found[0]]!r}?" if found else ""
