"""Tables for a terminal, and in Markdown."""

import io
from collections.abc import Collection, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Column, Table

from shardproof.properties.programs.implementations import Implementation

Left = int | Collection[str]
"""The columns that are aligned to the left: the first N, or these."""


def _texts(columns: Sequence[str], left: Left) -> Collection[str]:
    return columns[:left] if isinstance(left, int) else left


def table(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]], left: Left = 2) -> Table:
    """A table for a terminal."""
    texts = _texts(columns, left)
    result = Table(*(Column(c, justify="left" if c in texts else "right") for c in columns), title=title or None)
    for line in lines:
        result.add_row(*line)
    return result


def text_of(shown: RenderableType, width: int) -> str:
    """The text of a table on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines of text, in columns two spaces apart."""
    lines = [*rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]], *, left: Left | None = None) -> str:
    """A table in Markdown; None: all columns to the left."""
    texts = columns if left is None else _texts(columns, left)
    rule = ["---" if column in texts else "---:" for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *lines))


def form_of(one: Implementation) -> str:
    """An implementation's name without that of its contract."""
    return one.name.removesuffix(one.contract.name).rstrip("_") or one.name
