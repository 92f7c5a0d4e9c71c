"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

What is public is imported from `shardproof`.
"""

from shardproof.properties.cases import strategies
from shardproof.properties.communication.claims import no_communication
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.described import Array
from shardproof.properties.engines.simulate import simulate
from shardproof.properties.performance.choosing import choose
from shardproof.properties.report.checking import check, check_program, program_test
from shardproof.properties.runner.programs import Program

__all__ = [
    "CONTRACTS",
    "Array",
    "Program",
    "check",
    "check_program",
    "choose",
    "no_communication",
    "program_test",
    "simulate",
    "strategies",
]
