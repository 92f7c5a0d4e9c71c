"""Simple ways to draw the operands of an operation, and its parameters."""

from collections.abc import Callable, Sequence
from typing import Any

from shardproof.properties.conformance.drawing import Drawing
from shardproof.properties.conformance.operations.table import Call, Draw

Part = Callable[[Drawing, Sequence[str]], Any]
"""A function that draws an operand or a parameter, given the names of the operands before it."""


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

    def draw(d: Drawing, names: Sequence[str]) -> str:
        chosen = {**how, "dtype": d.one_of(dtypes)} if dtypes else how
        return d.array(least, most, **chosen)

    return draw


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
