"""The simulate engine: a traced program, run in NumPy for every device of its meshes at once.

No device and no compilation is needed, so meshes of thousands of devices cost as little as their
data. What a collective does is in `exchange`, which shares nothing with the oracles that judge it.
"""

from shardproof.properties.engines.simulate import (  # noqa: F401  # each module registers its rules
    blocks,
    collectives,
    control,
    decompositions,
    elementwise,
    indexing,
    random_bits,
)
from shardproof.properties.engines.simulate.collectives import may_diverge
from shardproof.properties.engines.simulate.env import RULES, rule
from shardproof.properties.engines.simulate.errors import (
    OF_THE_PROGRAM,
    CollectiveMismatch,
    InterpreterLimit,
    OrderDependent,
    RaggedMetadata,
    SimulationError,
    UnequalReplicas,
    UnknownPrimitive,
    UnwrittenRead,
)
from shardproof.properties.engines.simulate.interpreter import (
    Simulated,
    check_that_all_meet,
    interpret,
    prepare,
    select_results,
    simulate,
)

__all__ = [
    "OF_THE_PROGRAM",
    "RULES",
    "CollectiveMismatch",
    "InterpreterLimit",
    "OrderDependent",
    "RaggedMetadata",
    "Simulated",
    "SimulationError",
    "UnequalReplicas",
    "UnknownPrimitive",
    "UnwrittenRead",
    "check_that_all_meet",
    "interpret",
    "may_diverge",
    "prepare",
    "rule",
    "select_results",
    "simulate",
]
