"""Engines: what runs a program. A law never knows which one ran; an engine never knows which law asked."""

from shardproof.properties.engines.engine import (
    ENGINES,
    Engine,
    Interpreted,
    Prepared,
    Sets,
    SimulateEngine,
    XlaEngine,
    engine_named,
)

__all__ = ["ENGINES", "Engine", "Interpreted", "Prepared", "Sets", "SimulateEngine", "XlaEngine", "engine_named"]
