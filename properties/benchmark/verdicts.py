"""How long `check` takes to a verdict: of wrong functions, shrinking included, and of right ones."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import track

from shardproof.properties.mutants import MUTANTS
from shardproof.properties.mutants.right import RIGHT_ONES
from shardproof.properties.report.checking import check

SAMPLED = 20
"""How many functions of each kind are timed: every so many of the catalogue, so that all contracts are among them."""


def measure() -> None:
    """Prints the median and the longest time of the sampled functions, and whatever got the other verdict."""
    wrong = sample(
        [
            (m.contract, m.function, str(m))
            for m in MUTANTS.values()
            if m.runs == "drawn" and not (m.claims or m.whole or m.communication)
        ]
    )
    right = sample([(r.contract, r.function, str(r)) for r in RIGHT_ONES.values() if not r.whole])
    console = Console(width=130)
    for kind, functions, reported in (("wrong", wrong, True), ("right", right, False)):
        seconds: dict[str, float] = {}
        for contract, function, name in track(functions, kind, transient=True):
            start = time.perf_counter()
            if is_reported(contract, function) != reported:
                console.print(f"  {name}: {'held' if reported else 'reported'}, although it is {kind}", markup=False)
            seconds[name] = time.perf_counter() - start
        slowest = max(seconds, key=lambda name: seconds[name])
        console.print(
            f"{kind}: {len(seconds)} functions, median {statistics.median(seconds.values()):.1f} s to a verdict, "
            f"at most {seconds[slowest]:.1f} s ({slowest})",
            markup=False,
        )


def sample(functions: list[tuple[str, Callable[..., Any], str]]) -> list[tuple[str, Callable[..., Any], str]]:
    """About `SAMPLED` of them, evenly spread."""
    return functions[:: max(1, len(functions) // SAMPLED)]


def is_reported(contract: str, function: Callable[..., Any]) -> bool:
    """Whether `check` finds anything."""
    try:
        check(contract, function)
    except AssertionError:
        return True
    return False
