"""Engines: what runs a program. A law never knows which one ran; an engine never knows which law asked."""

from shardproof.properties.engines.engine import Engine, Prepared, Sets
from shardproof.properties.engines.simulated import Interpreted, SimulateEngine
from shardproof.properties.engines.xla import XlaEngine

ENGINES: dict[str, type[Engine]] = {"simulate": SimulateEngine, "xla": XlaEngine}


def engine_named(name: str) -> Engine:
    """A new engine.

    Raises:
        ValueError: if there is none of that name.
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r}: expected one of {', '.join(ENGINES)}")
    return ENGINES[name]()


__all__ = ["ENGINES", "Engine", "Interpreted", "Prepared", "Sets", "SimulateEngine", "XlaEngine", "engine_named"]
