"""Where a run's results go: refused before the run if they cannot be written, and not lost if they then are not."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class DestinationError(ValueError):
    """A file cannot be written there; the message says why in one line."""


def check_destination(option: str, path: Path) -> None:
    """A file can be written to `path`.

    Raises:
        DestinationError: if it is a folder, its folder is missing, or writing is not allowed.
    """
    folder = path.parent
    if path.is_dir():
        raise DestinationError(f"{option}={path}: expected a file, this is a folder")
    if not folder.is_dir():
        raise DestinationError(f"{option}={path}: expected a file in a folder that exists, {folder} does not")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DestinationError(f"{option}={path}: expected a place that can be written to: permission denied")


def write_somewhere(path: Path, text: str, tell: Callable[[str], None]) -> None:
    """Writes the text to `path`, else to the folder for temporary files, else tells it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or error}"
    else:
        tell(f"shardproof: wrote {path}")
        return
    try:
        other = Path(tempfile.mkdtemp(prefix="shardproof-")) / path.name
        other.write_text(text, encoding="utf-8")
    except OSError:
        tell(f"shardproof: {reason}; the report follows\n{text}")
    else:
        tell(f"shardproof: {reason}; wrote {other} instead")
