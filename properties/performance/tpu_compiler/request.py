"""What is to be compiled, as it goes to the process that compiles."""

from dataclasses import dataclass

from shardproof.properties.cases.case import Case

FORWARD, BACKWARD = "forward", "backward"
WAYS = (FORWARD, BACKWARD)
COMPILER = "compiler"
"""In place of an implementation: the product of global arrays under `jit`, all of whose communication XLA inserts."""


@dataclass(frozen=True)
class Request:
    """One program for one topology.

    Arguments:
        topology: such as `v5e:2x4`; the case's mesh has as many devices as it has.
        case: the contract, the mesh, and the operands. The last axis of the mesh is laid over rings of neighbours.
        implementation: what claims to satisfy the contract: `contract[name]` of one of this project's own,
            `MODULE:FUNCTION`, or `COMPILER`.
        way: `forward`, or `backward`: the gradients of a result's cotangent, by all operands.
    """

    topology: str
    case: Case
    implementation: str
    way: str = FORWARD

    def to_json(self) -> dict[str, str]:
        """What `from_json` reads."""
        return {
            "topology": self.topology,
            "case": self.case.to_json(),
            "implementation": self.implementation,
            "way": self.way,
        }

    @classmethod
    def from_json(cls, record: dict[str, str]) -> "Request":
        """What `to_json` wrote."""
        return cls(record["topology"], Case.from_json(record["case"]), record["implementation"], record["way"])
