"""The table of operations: how each is drawn, and its line of plain JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shardproof.properties.conformance.drawing import Drawing

Call = tuple[list[str], dict[str, Any]]
"""The names of the operands, and the parameters."""

Draw = Callable[[Drawing], Call]


class Operation(NamedTuple):
    """An operation.

    Arguments:
        name: its name.
        template: its line of plain JAX: `{0}` is its first operand, `{all}` are all of them, others are parameters;
            with `*` in front, it makes a sequence of results.
        draw: draws its operands and parameters.
        exact: it rounds nothing where operands are small whole numbers.
        continuous: it may follow a rounded value.
        weight: how often it is drawn.
        keeps: which dimensions of its operands those of its result are, where layouts follow from that.
    """

    name: str
    template: str
    draw: Draw
    exact: bool = True
    continuous: bool = True
    weight: int = 3
    keeps: str = ""


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, template: str, **how: Any) -> Callable[[Draw], Draw]:
    """Enters a function that draws an operation's operands and parameters into the table."""

    def enter(draw: Draw) -> Draw:
        assert name not in OPERATIONS, name
        OPERATIONS[name] = Operation(name, template, draw, **how)
        return draw

    return enter
