"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

What is public is imported from `shardproof`.
"""

from shardproof.properties.cases import strategies
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.described import Array
from shardproof.properties.counting.claims import no_communication
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.reports.checking import check
from shardproof.properties.reports.programs import check_program

__all__ = ["CONTRACTS", "Array", "check", "check_program", "no_communication", "simulate", "strategies"]
