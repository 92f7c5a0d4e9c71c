"""A property-based verification suite for distributed JAX.

`check_program` verifies any sharded function of yours against the same function on whole arrays, and `program_test`
makes tests for pytest from a `Program`; `check` verifies a function against one of `CONTRACTS`; `choose` returns the
fastest form of an operation for a shape, on a stated machine, by its timeline; `no_communication` asserts that a
function sends nothing, and `simulate` runs a program on meshes of thousands of devices, without any. `strategies` draw
the cases on which programs are verified.
Implementations are in `shardproof.impl`, the oracles that they are compared with in `shardproof.oracles`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

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

if TYPE_CHECKING:
    from shardproof.properties.cases import strategies
    from shardproof.properties.communication.claims import no_communication
    from shardproof.properties.contracts import CONTRACTS
    from shardproof.properties.contracts.described import Array
    from shardproof.properties.engines.simulate import simulate
    from shardproof.properties.performance.choosing import choose
    from shardproof.properties.report.checking import check, check_program
    from shardproof.properties.report.program_tests import program_test
    from shardproof.properties.runner.programs import Program
else:
    WHERE = {
        "CONTRACTS": "contracts",
        "Array": "contracts.described",
        "Program": "runner.programs",
        "check": "report.checking",
        "check_program": "report.checking",
        "choose": "performance.choosing",
        "no_communication": "communication.claims",
        "program_test": "report.program_tests",
        "simulate": "engines.simulate",
        "strategies": "cases.strategies",
    }
    """The modules that have these names; `strategies` is one."""

    def __getattr__(name: str) -> object:
        """A public name, imported when it is first used: pytest imports this package wherever it is installed."""
        if name not in WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.properties.{WHERE[name]}")
        return getattr(module, name, module)

    def __dir__() -> list[str]:
        """The public names, imported or not."""
        return sorted({*globals(), *__all__})
