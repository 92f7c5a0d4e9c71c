"""Errors of a user's request in one line, with the nearest name that there is."""

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """A request cannot be met; the message names the argument and its value, and says what was expected."""


FAR = 0.5
"""The least similarity of the nearest name, of 1."""

MOST_NAMES, NEAREST = 35, 3
"""The longest list of names that is printed whole, and how many of a longer one are."""


def did_you_mean(name: str, known: Iterable[str], *, of: str = "one of", instead: Iterable[str] | None = None) -> str:
    """A question with the nearest of the known names, or else a list of them, or of others `instead`."""
    names = list(known)
    listed = names if instead is None else list(instead)
    if len(listed) > MOST_NAMES:
        more = f", or one of {len(listed) - NEAREST} more"
        listed = difflib.get_close_matches(name, listed, n=NEAREST, cutoff=0)
        return near(name, names) or f"expected {', '.join(listed)}{more}"
    return near(name, names) or f"expected {of} {', '.join(listed)}"


def near(name: str, known: Iterable[str]) -> str:
    """The nearest of the names that there are, as a question; nothing, if none is near."""
    names = list(known)
    own = {one.lower(): one for one in names} | {one: one for one in names}
    found = difflib.get_close_matches(name, own, n=1, cutoff=FAR) or difflib.get_close_matches(
        name.lower(), own, n=1, cutoff=FAR
    )
    return f"did you mean {own[found[0]]!r}?" if found else ""
