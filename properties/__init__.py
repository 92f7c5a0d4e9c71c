"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

`check` verifies one function of yours inside a test of yours; `no_communication` asserts that one sends nothing.
"""

from shardproof.properties.checking import check
from shardproof.properties.communication.claims import no_communication

__all__ = ["check", "no_communication"]
