"""What the programs and commands of the README files print."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def ran(*arguments: str, folder: Path | None = None) -> str:
    """What Python prints, in a folder or a temporary one, with this checkout on its path.

    Raises:
        RuntimeError: if it fails, with what it wrote on standard error.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return ran(*arguments, folder=Path(temporary))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def of_program(source: str, folder: Path | None = None) -> str:
    """What a program prints."""
    return ran("-c", source, folder=folder)


def of_commands(lines: str, folder: Path | None = None) -> str:
    """What commands `python -m …` print, one a line, without the names of the files that they wrote."""
    texts = [ran(*shlex.split(line, comments=True)[1:], folder=folder) for line in lines.strip().splitlines()]
    printed = [line.rstrip() for text in texts for line in text.splitlines() if not line.startswith("wrote ")]
    return "\n".join(printed)
