"""Data read from a file: decoded by msgspec into dataclasses, each value of its declared type; nothing is executed."""

import keyword
import re
from typing import Any, TypeVar

import msgspec

LONGEST_NAME = 100
"""The most characters of an identifier, or another text."""
IDENTIFIER = rf"\A(?!({'|'.join(keyword.kwlist)})\Z)[^\W\d]\w*\Z"
"""The pattern of a Python identifier that is no keyword."""
SHOWN = 80
"""The most characters of a refused value that a message shows."""

T = TypeVar("T")


class Unreadable(ValueError):
    """A value is not as it could have been written; the message says why in one line."""


def one_line(text: str) -> str:
    """A text with everything that does not print, line breaks and terminal codes among it, as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    """A value as a message shows it: its beginning, in one line."""
    text = one_line(repr(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def counted(number: int, noun: str, ending: str = "s") -> str:
    """A number of things: `1 structure`, `6,883 structures`; the ending is that of several."""
    return f"{number:,} {noun}{ending if number != 1 else ''}"


def load_json(text: str | bytes) -> Any:
    """JSON as data; raises Unreadable if the text is none, or nested too deeply."""
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise Unreadable("not JSON of this suite: nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unreadable(f"not JSON: {error}") from error


def decode(kind: type[T], data: Any) -> T:
    """A dataclass from JSON-able data; Unreadable, with the field, its value and the one expected, unless it fits."""
    try:
        found = msgspec.convert(data, kind)
    except RecursionError as error:
        raise Unreadable("nested too deeply") from error
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        reason = "expected an identifier" if "matching regex" in reason else reason
        path = path.rstrip("`")
        where = f"{path.lstrip('.')}={shown(_at(data, path))}: " if path else ""
        raise Unreadable(f"{where}{reason[:1].lower()}{reason[1:]}") from error
    unknown = _unknown(data, msgspec.to_builtins(found))
    if unknown:
        raise Unreadable(f"{unknown}: expected no such field")
    return found


def _at(data: Any, path: str) -> Any:
    """The value at a path as msgspec writes it, `.case.operands[0]`; or the innermost that the path leads to."""
    for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        try:
            data = data[name] if name else data[int(number)]
        except (KeyError, IndexError, TypeError):
            return data
    return data


def _unknown(data: Any, known: Any, path: str = "") -> str:
    """The first field that was not decoded; empty if there is none."""
    if isinstance(data, dict) and isinstance(known, dict):
        pairs = [
            (data[key], known.get(key), f"{path}.{one_line(key)[:SHOWN]}".lstrip("."), key in known) for key in data
        ]
    elif isinstance(data, list) and isinstance(known, list | tuple):
        pairs = [(a, b, f"{path}[{i}]", True) for i, (a, b) in enumerate(zip(data, known, strict=False))]
    else:
        return ""
    return next((found for a, b, at, there in pairs if (found := _unknown(a, b, at) if there else at)), "")
