"""Room for the frames of calls: a loop deep inside of many would ask the system for a piece of memory in every round.

CPython keeps the frames of Python functions in pieces of 16 KiB, and gives a piece back as soon as the call that needed
it returns. Where a loop's calls stand at the end of a piece, each asks for the next one and gives it back: a tenth of
the time that drawing, tracing and interpreting take below a hundred other frames.
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

WORDS = 66_000
"""The stack that a roomy call claims: with more than half of 1 MiB, Python asks for a piece of so much, of which the
rest is for the calls inside."""


def roomy(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, called where there is room for the frames of a few hundred calls inside it."""

    def call(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        return function(*arguments, **keywords)

    call.__code__ = call.__code__.replace(co_stacksize=WORDS)
    return update_wrapper(call, function)
