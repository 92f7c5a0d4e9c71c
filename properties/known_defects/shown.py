"""Runs the scripts of known defects, each in a process of its own, to see which of them this JAX has."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from shardproof.properties.cases.suggestion import RequestError, did_you_mean
from shardproof.properties.known_defects.registry import DEFECTS, Defect

PATIENCE_SECONDS = 300
"""The time limit of a script; those that show a deadlock have their own."""


def verdict(defect: Defect) -> str:
    """The verdict of a defect's script: `shows`, `fixed`, `cannot run` or `no answer`."""
    command = [sys.executable, str(defect.script)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return "no answer"
    shows = defect.is_shown(done.returncode, done.stdout + done.stderr)
    return "shows" if shows else "fixed" if done.returncode == 0 else "cannot run"


def shown(names: Sequence[str] = ()) -> Iterator[str]:
    """A line for each defect: name, whether it shows, sentence; raises RequestError for an unknown name."""
    for name in names:
        if name not in DEFECTS:
            raise RequestError(f"name={name!r}: no such defect; {did_you_mean(name, DEFECTS)}")
    chosen = [DEFECTS[name] for name in names or DEFECTS]
    width = max(len(defect.name) for defect in chosen)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:  # each has threads of its own
        for defect, found in zip(chosen, pool.map(verdict, chosen), strict=True):
            yield f"{defect.name:{width}}  {found:10}  {defect.sentence}"
