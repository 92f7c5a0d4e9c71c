"""A call of an operation on arrays whose types say how they are laid out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardproof.oracles.mesh import MeshCase
from shardproof.oracles.sharding_types import ShardedType

Params = tuple[Any, ...]
Rule = Callable[[Sequence[ShardedType], Params, MeshCase], ShardedType]
"""The type of a result, given those of the operands, further parameters and the mesh; it may raise `Refused`."""


@dataclass(frozen=True)
class Call:
    """An operation on operands of these types, on a mesh some of whose axes are explicit.

    Arguments:
        operation: its name.
        mesh: the mesh; types name its explicit axes alone.
        operands: the types of the operands.
        params: further parameters.
        function: a function of arrays of these types.
        rule: what types the result.
    """

    operation: str
    mesh: MeshCase
    operands: tuple[ShardedType, ...]
    params: Params
    function: Callable[..., Any]
    rule: Rule

    @property
    def expected(self) -> ShardedType:
        """The type of the result.

        Raises:
            Refused: if there is none.
        """
        return self.rule(self.operands, self.params, self.mesh)

    def __str__(self) -> str:
        given = ", ".join(map(str, (*self.operands, *self.params)))
        return f"{self.operation}({given}) on {self.mesh}"


def explicit_axes(mesh: MeshCase) -> tuple[str, ...]:
    """The axes that types may name."""
    return tuple(name for name, kind in mesh.types.items() if kind == "explicit")
