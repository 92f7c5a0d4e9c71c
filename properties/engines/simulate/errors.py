"""Errors of the simulate engine, and where in the user's program an equation comes from."""

from traceback import walk_tb
from typing import Any

from jax.extend import source_info_util


class SimulationError(Exception):
    """The traced program cannot be interpreted, or would not run on hardware."""


class InterpreterLimit(SimulationError):
    """The interpreter cannot run the program, which may be right: `lacks` says in a few words what is missing."""

    def __init__(self, message: str, lacks: str) -> None:
        self.lacks = lacks
        super().__init__(message)


class UnknownPrimitive(InterpreterLimit):
    """The program contains a primitive that no rule covers."""

    def __init__(self, name: str, location: str) -> None:
        super().__init__(
            f"no rule for the primitive {name!r} (at {location}): run it with `--engine xla`, or register a rule "
            f"with `@shardproof.properties.engines.simulate.rule({name!r})`",
            name,
        )


class UnwrittenRead(SimulationError):
    """A result depends on memory that was allocated and never written."""


class OrderDependent(SimulationError):
    """A result depends on the order of two updates of one place, or on unsorted indices."""


class CollectiveMismatch(SimulationError):
    """Devices of one process group disagree about their next collective: a deadlock on hardware."""


class InvalidGroups(SimulationError):
    """`axis_index_groups`, or blocks, that do not fit the participants of a collective."""


class RaggedMetadata(SimulationError):
    """The offsets and sizes of a ragged exchange contradict each other: hardware would corrupt memory."""


class UnequalReplicas(SimulationError):
    """Devices differ in a result that is typed invariant along a mesh axis."""


OF_THE_PROGRAM = (SimulationError, MemoryError, RecursionError)
"""Errors of the interpreted program, wherever they are raised."""


def raised_in(error: Exception) -> str:
    """The module that raised an exception, or called the part of NumPy that did."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return next((name for name in reversed(names) if name.partition(".")[0] != "numpy"), "")


def location(equation: Any) -> str:
    """`file:line (function)` of the innermost frame that is not JAX's own; `an unknown place` without one."""
    try:
        summary = source_info_util.summarize(equation.source_info)
    except (AttributeError, IndexError):  # traced without a frame of the user
        summary = ""
    return str(summary) or "an unknown place"
