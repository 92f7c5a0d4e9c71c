"""The keyword arguments of collectives and products."""

from functools import partial
from typing import Any

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.call import Option, of_type


def _is_dimension(case: Case, value: int, *, stacks: bool = False) -> bool:
    """A product's result has two dimensions; one that stacks blocks has one more than they."""
    rank = len(case.operands[0].block) if len(case.contract.call.operands) == 1 else 2
    sides = rank + (stacks and not case.keywords["tiled"])
    return -sides <= value < sides


def _is_permutation(case: Case, value: tuple[tuple[int, ...], ...]) -> bool:
    sides = [*zip(*value, strict=True)] if all(len(pair) == 2 for pair in value) else [(-1,)]
    return all(len({*side}) == len(side) and {*side} <= {*range(case.participants)} for side in sides)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, tuple) and all(map(of_type(int), v)) for v in value)


DIMENSION = Option(of_type(int), _is_dimension)
OPTIONS: dict[str, Option] = {
    "op": Option(of_type(str), lambda case, value: value in ("sum", "mean", "max", "min")),
    "axis": Option(of_type(int), partial(_is_dimension, stacks=True)),
    "scatter_dimension": DIMENSION,
    "split_axis": DIMENSION,
    "concat_axis": DIMENSION,
    "tiled": Option(of_type(bool)),
    "offset": Option(of_type(int)),
    "root": Option(of_type(int), lambda case, value: 0 <= value < case.participants),
    "perm": Option(_are_numbers, _is_permutation),
}
"""What they may be, by their names."""
