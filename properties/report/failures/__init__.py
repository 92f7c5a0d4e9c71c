"""What a person gets when a law does not hold: a text, a picture, a diagnosis, a script, and a case to replay."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["briefly", "diagnosed", "report"]

if TYPE_CHECKING:
    from shardproof.properties.report.failures.text import briefly, diagnosed, report
else:

    def __getattr__(name: str) -> object:
        """One of these names, imported when a law is broken, with all that explains it, draws it and writes it down."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.text"), name)
