"""The known defects of `ragged_all_to_all`."""

from shardproof.properties.cases.case import Case
from shardproof.properties.engines.simulate import RaggedMetadata
from shardproof.properties.known_defects import faults, repairs
from shardproof.properties.known_defects.defect import Defect
from shardproof.properties.known_defects.showing import by_compiler, under_vmap
from shardproof.properties.programs.violation import Broken


def _backward(case: Case, error: Exception) -> bool:
    """Whether a gradient is wrong, or the exchange that computes it contradicts itself."""
    if isinstance(error, Broken):
        return error.of == "gradient" and error.kind not in ("communication", "overlap")
    return isinstance(error, RaggedMetadata)


def _typed_invariant(case: Case, error: Exception) -> bool:
    """Whether a result varies that is typed invariant, or JAX finds its cotangent to be of another type."""
    if isinstance(error, Broken):
        return error.kind == "replicas"
    return type(error) is ValueError and str(error).startswith("Expected cotangent type")


RAGGED = (
    Defect(
        "ragged_all_to_all_cpu",
        "XLA:CPU compiles no ragged_all_to_all: it raises UNIMPLEMENTED.",
        ("0.10.2", "0.12.0.1"),
        platform="cpu",
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: by_compiler(error, "HLO opcode `ragged-all-to-all` is not supported"),
    ),
    Defect(
        "ragged_all_to_all_vmap",
        "vmap of ragged_all_to_all fails an assertion without a message unless all of its operands are mapped.",
        ("0.10.2", "0.12.0.1"),
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: under_vmap(case) and type(error) is AssertionError,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_type",
        "ragged_all_to_all is typed as its `output` operand alone, so a varying result passes as invariant.",
        ("0.10.2", "0.12.0.1"),
        at_fault=faults.ragged_exchange,
        shows=_typed_invariant,
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_output_gradient",
        "The gradient of ragged_all_to_all by `output` is wrong where an empty slice has the offset of another.",
        ("0.10.2", "0.12.0.1"),
        at_fault=faults.ragged_exchange,
        shows=lambda case, error: _backward(case, error) and not isinstance(error, RaggedMetadata),
        repair=repairs.ragged_exchange,
    ),
    Defect(
        "ragged_all_to_all_operand_gradient",
        "The gradient of ragged_all_to_all by `operand` keeps one cotangent of a row that was sent several times.",
        ("0.10.2", "0.12.0.1"),
        at_fault=faults.ragged_exchange,
        shows=_backward,
        repair=repairs.ragged_exchange,
    ),
)
