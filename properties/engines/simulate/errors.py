"""What the simulate engine refuses, and why."""


class SimulationError(Exception):
    """The traced program cannot be interpreted, or would not run on hardware."""


class UnknownPrimitive(SimulationError, NotImplementedError):
    """The program contains a primitive that no rule covers."""

    def __init__(self, name: str, location: str) -> None:
        super().__init__(
            f"no rule for the primitive {name!r} (at {location}): run it with `--engine xla`, or register a rule "
            f"with `@properties.engines.simulate.rule({name!r})`"
        )


class UnwrittenRead(SimulationError):
    """A result depends on memory that was allocated and never written."""


class CollectiveMismatch(SimulationError):
    """Devices of one process group disagree about their next collective: a deadlock on hardware."""
