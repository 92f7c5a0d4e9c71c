"""Tables of what is measured: on a terminal, and in Markdown."""

from collections.abc import Sequence

from rich.table import Table

from shardproof.properties.programs.implementations import Implementation


def table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], left: int = 2) -> Table:
    """Text to the left, numbers to the right behind the first `left` columns."""
    result = Table(title=title or None)
    for i, column in enumerate(columns):
        result.add_column(column, justify="left" if i < left else "right")
    for line in lines:
        result.add_row(*line)
    return result


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]], *, left: int | None = None) -> str:
    """The same in Markdown, numbers to the right behind the first `left` columns; None: all to the left."""
    texts = len(columns) if left is None else left
    rows = ["| " + " | ".join(line) + " |" for line in (columns, *lines)]
    return "\n".join([rows[0], "|" + "---|" * texts + "---:|" * (len(columns) - texts), *rows[1:]])


def form_of(one: Implementation) -> str:
    """An implementation's name without that of its contract."""
    return one.name.removesuffix(one.contract.name).rstrip("_")
