"""How long several functions take, in turns: whatever disturbs a machine meanwhile disturbs all of them."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

Clock = Callable[[], float]
"""Seconds, from whenever."""

ROUNDS = 11
"""How often each is measured: an odd number has one in the middle."""

LEAST = 0.02
"""The seconds that one measurement takes at least: hundreds of times what it takes to launch a program."""

MOST_CALLS = 32
"""The most calls in one measurement, each of which may hold its results until all are over."""


def medians(
    functions: Mapping[str, Callable[[], Any]],
    *,
    clock: Clock = time.perf_counter,
    rounds: int = ROUNDS,
    least: float = LEAST,
) -> dict[str, float]:
    """The median of the seconds that a call of each takes.

    Each is called once before, which compiles it. Then every round measures all of them, each round beginning with
    another one, so that none always comes after the same. In one measurement a function is called as often in a row as
    the slowest needs for `least` seconds, and the last result is waited for.

    Arguments:
        functions: by name; each gives what can be waited for.
        clock: what tells the time.
        rounds: how many measurements of each.
        least: see above.

    Returns:
        Seconds of a call by name, in the order of `functions`.

    Raises:
        ValueError: if there is nothing to measure, or no round.
    """
    if not functions or rounds < 1:
        raise ValueError(f"functions={list(functions)}, rounds={rounds}: expected at least one of each")
    for function in functions.values():
        jax.block_until_ready(function())
    slowest = max(_seconds(function, 1, clock) for function in functions.values())
    calls = min(MOST_CALLS, max(1, math.ceil(least / slowest))) if slowest > 0 else MOST_CALLS
    names = list(functions)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken[name].append(_seconds(functions[name], calls, clock) / calls)
    return {name: statistics.median(times) for name, times in taken.items()}


def _seconds(function: Callable[[], Any], calls: int, clock: Clock) -> float:
    start, result = clock(), None
    for _ in range(calls):
        result = function()
    jax.block_until_ready(result)
    return clock() - start
