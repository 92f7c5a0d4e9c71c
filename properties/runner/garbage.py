"""Looking for reference cycles seldom: tracing makes millions of objects, and nearly all are freed without a search."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 2_000_000
"""How many objects more than were freed start a search for cycles: Python's own 700 or 2,000 are soon there."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Starts fewer searches for cycles meanwhile; if there are none at all, it stays so."""
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(max(YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def kept_to_the_end() -> None:
    """Searches nothing that is there now for cycles: for a process that is about to end.

    After a whole run, JAX's caches keep millions of objects alive, and what ends a process searches all several times.
    """
    gc.freeze()
