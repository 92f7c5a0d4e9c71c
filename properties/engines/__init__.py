"""Engines: what runs a program. A law never knows which one ran; an engine never knows which law asked."""

from properties.engines.engine import Engine, Prepared
from properties.engines.xla import XlaEngine

__all__ = ["Engine", "Prepared", "XlaEngine"]
