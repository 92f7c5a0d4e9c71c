"""A collective that some devices never reach: how long XLA:CPU is told to wait, and how it says that it gave up."""

GAVE_UP = b"Termination timeout for"
"""What XLA:CPU prints before it aborts the process."""


def patience(seconds: tuple[int, int]) -> str:
    """XLA's flags for a warning after the first, and giving up after the second more."""
    warn, give_up = seconds
    return (
        f"--xla_cpu_collective_call_warn_stuck_timeout_seconds={warn} "
        f"--xla_cpu_collective_call_terminate_timeout_seconds={give_up}"
    )
