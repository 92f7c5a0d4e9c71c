"""Engines, which run programs. A law never knows which one ran; an engine never knows which law needs it."""

from shardproof.properties.engines.engine import ENGINES, Engine, SimulateEngine, XlaEngine, engine_named
from shardproof.properties.engines.simulate.interpreter import Prepared, Sets

__all__ = ["ENGINES", "Engine", "Prepared", "Sets", "SimulateEngine", "XlaEngine", "engine_named"]
