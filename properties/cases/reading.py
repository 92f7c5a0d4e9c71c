"""Values read from a file: each is exactly of the type, and within the bounds, that could have been written."""

import json
import keyword
from collections.abc import Collection, Mapping
from typing import Any

LONGEST = 1000
"""The most characters of a text, unless it says otherwise."""
LONGEST_NAME = 100
"""The most characters of an identifier."""
DIGITS = 10
"""The most digits of a number: no size, index or seed has more."""
SHOWN = 80
"""The most characters of a refused value that a message shows."""


class Unreadable(ValueError):
    """A value is not what could have been written; the message says why in one line."""


def one_line(text: str) -> str:
    """A text with everything that does not print, line breaks and terminal codes among it, as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """A value as a message shows it: its beginning, in one line."""
    text = one_line(repr(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def loaded(text: str) -> Any:
    """JSON as data; a name may stand in an object once, and a number is a short one.

    Raises:
        Unreadable: if the text is no such JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_whole, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON: {error}") from error
    except RecursionError as error:
        raise Unreadable("not JSON of this suite: nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"not JSON of this suite: {shown(twice)} stands twice in an object")
    return found


def _whole(digits: str) -> int:
    if len(digits) > DIGITS + 1:
        raise Unreadable(f"not JSON of this suite: {shown(digits)}: expected a number of at most {DIGITS} digits")
    return int(digits)


def _constant(name: str) -> None:
    raise Unreadable(f"not JSON of this suite: {name}: expected a finite number")


def fields(what: str, value: Any, names: Collection[str], *, optional: Collection[str] = ()) -> Mapping[str, Any]:
    """An object with just these names.

    Raises:
        Unreadable: if it is none, or lacks a name, or has another.
    """
    if not isinstance(value, dict):
        raise Unreadable(f"{what}={shown(value)}: expected an object")
    missing = sorted(set(names) - set(optional) - set(value))
    if missing:
        raise Unreadable(f"{what}: expected {missing[0]!r} in it")
    more = [name for name in value if name not in names]
    if more:
        raise Unreadable(f"{what}: {shown(more[0])} in it: expected {', '.join(names)}")
    return value


def items(what: str, value: Any, *, most: int) -> list[Any]:
    """A list of at most `most` values.

    Raises:
        Unreadable: if it is none, or longer.
    """
    if not isinstance(value, list):
        raise Unreadable(f"{what}={shown(value)}: expected a list")
    if len(value) > most:
        raise Unreadable(f"{what}: {len(value)} in it: expected at most {most}")
    return value


def text(what: str, value: Any, *, most: int = LONGEST, printable: bool = True) -> str:
    """A text of at most `most` characters, by default one that prints in one line.

    Raises:
        Unreadable: if it is none.
    """
    if type(value) is not str:
        raise Unreadable(f"{what}={shown(value)}: expected a text")
    if len(value) > most:
        raise Unreadable(f"{what}={shown(value)}: {len(value)} characters, expected at most {most}")
    if printable and not value.isprintable():
        raise Unreadable(f"{what}={shown(value)}: expected one line that can be printed")
    return value


def identifier(what: str, value: Any) -> str:
    """A Python identifier.

    Raises:
        Unreadable: if it is none, or a keyword.
    """
    if not text(what, value, most=LONGEST_NAME).isidentifier() or keyword.iskeyword(value):
        raise Unreadable(f"{what}={shown(value)}: expected an identifier")
    return str(value)


def dotted(what: str, value: Any) -> str:
    """Identifiers with dots between them: the name of a module, or of a function in one.

    Raises:
        Unreadable: if it is anything else.
    """
    for part in text(what, value).split("."):
        if not part.isidentifier() or keyword.iskeyword(part):
            raise Unreadable(f"{what}={shown(value)}: expected identifiers with dots between them")
    return str(value)


def number(what: str, value: Any, low: int, high: int) -> int:
    """A whole number from `low` to `high`; True is none.

    Raises:
        Unreadable: if it is anything else.
    """
    if type(value) is not int or not low <= value <= high:
        raise Unreadable(f"{what}={shown(value)}: expected a whole number from {low} to {high}")
    return value


def truth(what: str, value: Any) -> bool:
    """True or False.

    Raises:
        Unreadable: if it is anything else.
    """
    if type(value) is not bool:
        raise Unreadable(f"{what}={shown(value)}: expected true or false")
    return value


def one_of(what: str, value: Any, known: Collection[str]) -> str:
    """One of the known texts.

    Raises:
        Unreadable: if it is another.
    """
    if type(value) is not str or value not in known:
        raise Unreadable(f"{what}={shown(value)}: expected one of {', '.join(known)}")
    return value
