"""Where in the user's program an equation comes from."""

from typing import Any

from jax.extend import source_info_util


def location(equation: Any) -> str:
    """`file:line (function)` of the innermost frame that is not JAX's own; `an unknown place` without one."""
    try:
        summary = source_info_util.summarize(equation.source_info)
    except (AttributeError, IndexError):  # an equation that was traced without any frame of the user's
        summary = ""
    return str(summary) or "an unknown place"
