"""Errors of the simulate engine, and where in the user's program an equation comes from."""

import os
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from typing import Any

import jax
from jax.extend import source_info_util

PROPERTIES, IMPL = (Path(__file__).parents[i] / name for i, name in ((2, ""), (3, "impl")))
INNER = tuple(f"{Path(jax.__file__).parents[1] / name}{os.sep}" for name in ("jax", "jaxlib", "jaxtyping", "beartype"))
"""The folders of packages whose lines are never at fault."""

WRAPPERS = ("collectives", "indices", "dtypes", "rings")
"""The modules of `impl` whose functions stand for one operation each: a mistake is in the line that calls them."""


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


UNKNOWN = "an unknown place"


def location(equation: Any) -> str:
    """`file:line (function)` of the line at fault; `an unknown place` without one.

    It is the innermost line that is not JAX's, but of implementations of this project that a user's function calls the
    user's, and of those that the suite calls not that of a wrapper in `WRAPPERS`.
    """
    traceback = equation.source_info.traceback
    codes = zip(*traceback.raw_frames(), strict=True) if traceback else ()
    frames = [frame for frame in codes if not frame[0].co_filename.startswith(("<", *INNER))]
    inner = list(takewhile(lambda frame: frame[0].co_filename.startswith(f"{IMPL}{os.sep}"), frames))
    if not inner:
        return innermost(equation)
    caller = next(iter(frames[len(inner) :]), None)
    if caller is None or is_of_the_suite(Path(caller[0].co_filename)):
        caller = next((frame for frame in inner if Path(frame[0].co_filename).stem not in WRAPPERS), inner[0])
    code, at = caller
    line, column, *_ = traceback.code_addr2location(code, at)
    return f"{code.co_filename}:{line}:{column} ({code.co_qualname})"


def is_of_the_suite(file: Path) -> bool:
    """True of a file of this suite, but for mutants and its own tests, whose functions are checked as a user's are."""
    return PROPERTIES in file.parents and not {"mutants", "meta"} & {*file.parts}


def innermost(equation: Any) -> str:
    """`file:line (function)` of the innermost frame that is not JAX's own; `an unknown place` without one."""
    try:
        summary = source_info_util.summarize(equation.source_info)
    except (AttributeError, IndexError):  # traced without a frame of the user
        summary = ""
    return str(summary) or UNKNOWN
