"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

What is public is imported from `shardproof`.
"""

from shardproof.properties.cases import strategies
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.counting.claims import no_communication
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.reports.checking import check

__all__ = ["CONTRACTS", "check", "no_communication", "simulate", "strategies"]
