"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

What is public is imported from `shardproof`.
"""

from shardproof.properties import strategies
from shardproof.properties.checking import check
from shardproof.properties.communication.claims import no_communication
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.engines.simulate import simulate

__all__ = ["CONTRACTS", "check", "no_communication", "simulate", "strategies"]
