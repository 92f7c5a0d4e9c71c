"""The table of operations: how each is drawn, and its line of plain JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shardproof.properties.conformance.drawing import Drawing

Call = tuple[list[str], dict[str, Any]]
"""The names of the operands, and the parameters."""

Draw = Callable[[Drawing], Call]

Part = Callable[[Drawing, Sequence[str]], Any]
"""A function that draws an operand or a parameter, given the names of the operands before it."""


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


def draws(*operands: Part, **params: Part) -> Draw:
    """A function that draws operands, one after the other, and then parameters."""

    def draw(d: Drawing) -> Call:
        names: list[str] = []
        for operand in operands:
            names.append(operand(d, names))
        return names, {name: param(d, names) for name, param in params.items()}

    return draw


def array(least: int = 1, most: int = 3, *, dtypes: Sequence[str] = (), **how: Any) -> Part:
    """An operand as `Drawing.array` draws it, of one of the dtypes if there are any."""
    return lambda d, names: d.array(least, most, **how, **({"dtype": d.one_of(dtypes)} if dtypes else {}))


def like(**how: Any) -> Part:
    """An operand of the shape of the first one, and of its dtype if no other is given."""
    return lambda d, names: d.array(**{"shape": d[names[0]].shape, "dtype": d[names[0]].dtype, **how})


def scalar(least: int, most: int) -> Part:
    """An operand that is a whole number."""
    return lambda d, names: d.array(shape=(), dtype="int32", data=(least, most))


def each_row(dtype: str, data: tuple[int, int] | None = None) -> Part:
    """An operand with a number for each row of the first one."""
    return lambda d, names: d.array(shape=d[names[0]].shape[:1], dtype=dtype, data=data)


def axis(d: Drawing, names: Sequence[str]) -> int:
    """A dimension of the first operand."""
    return d.axis(names[0])


def dims(d: Drawing, names: Sequence[str]) -> list[int]:
    """Some dimensions of the first operand."""
    return d.subset(len(d[names[0]].shape))


def flag(d: Drawing, names: Sequence[str]) -> bool:
    """True or False."""
    return d.chance(2)


def sizes(least: int = 1, most: int = 3) -> Part:
    """A shape."""
    return lambda d, names: list(d.shape(least, most))


def whole(least: int, most: int) -> Part:
    """A whole number between two, inclusive."""
    return lambda d, names: d.integer(least, most)


def choice(*options: Any) -> Part:
    """One of some; the first is the simplest."""
    return lambda d, names: d.one_of(options)
