"""The options of pytest that the suite adds, as rows of a table."""

import importlib
import re
from typing import Any

from shardproof.properties.report import plugin


class Collector:
    """What stands for pytest's parser, and for a group of its options: it keeps what is added."""

    def __init__(self) -> None:
        self.added: list[tuple[str, dict[str, Any]]] = []

    def getgroup(self, *_: str) -> "Collector":
        """The one group that there is."""
        return self

    def addoption(self, name: str, **attributes: Any) -> None:
        """Keeps an option."""
        self.added.append((name, attributes))


def rows() -> list[tuple[str, str]]:
    """Of every option how it is written, and its help, both in Markdown."""
    collector = Collector()
    for name in plugin.pytest_plugins:
        add = getattr(importlib.import_module(name), "pytest_addoption", None)
        if add is not None:
            add(collector)
    return [(f"`{written(name, **attributes)}`", escaped(attributes["help"])) for name, attributes in collector.added]


def written(name: str, *, metavar: str = "", choices: tuple[str, ...] = (), **_: Any) -> str:
    """An option with what stands for its value, if it has one."""
    value = metavar or ("{" + ",".join(choices) + "}" if choices else "")
    return f"{name}={value}" if value else name


def escaped(text: str) -> str:
    """A plain text in Markdown: nothing in it is a mark."""
    return re.sub(r"([*<|`\[\]])", r"\\\1", text)
