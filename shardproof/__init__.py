"""A property-based verification suite for distributed JAX.

`check_program` verifies any sharded function of yours against the same on whole arrays, and `program_test` makes tests
for pytest of what is described in a `Program`; `check` verifies a function that is in `CONTRACTS` against what that
means; `choose` says which form of an operation is the fastest for a shape, on a stated machine, by its timeline;
`no_communication` asserts that a function sends nothing, and `simulate` runs a program on meshes of thousands of
devices, without any. What programs are verified on is drawn by `strategies`.
Implementations are in `shardproof.impl`, what they are compared with in `shardproof.oracles`.
"""

from typing import TYPE_CHECKING

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
    from shardproof.properties import (
        CONTRACTS,
        Array,
        Program,
        check,
        check_program,
        choose,
        no_communication,
        program_test,
        simulate,
        strategies,
    )
else:

    def __getattr__(name: str) -> object:
        """A public name, imported when it is first used: pytest imports this package wherever it is installed."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import shardproof.properties as public

        return getattr(public, name)

    def __dir__() -> list[str]:
        """The public names, imported or not."""
        return sorted({*globals(), *__all__})
