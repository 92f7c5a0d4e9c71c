"""Violations of contracts: valid cases that become wrong in one argument."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Violation
from shardproof.properties.contracts.drawing import without


def wrong_value(argument: str, values: Callable[[Case], Sequence[Any]]) -> Violation:
    """A keyword argument with wrong values, which may be none in a case."""

    def cases(case: Case) -> st.SearchStrategy[Case]:
        wrong = [st.just(case.with_params(**{argument: value})) for value in values(case)]
        return st.one_of(wrong)

    return Violation(argument, cases)


def out_of_range(argument: str, *, stacks: bool = False) -> Violation:
    """A dimension that the first operand does not have; `stacks`: one more is valid if not tiled."""

    def values(case: Case) -> tuple[int, ...]:
        rank = len(case.operands[0].block) + (stacks and not case.keywords["tiled"])
        return rank, -rank - 1, rank + 3

    return wrong_value(argument, values)


def indivisible(argument: str) -> Violation:
    """A dimension that does not divide into as many parts as there are participants, or is not their number."""

    def cases(case: Case) -> st.SearchStrategy[Case]:
        if case.group_size == 1 and case.keywords["tiled"]:
            return st.nothing()
        at = case.keywords[argument] % len(case.operands[0].block)
        wrong = longer_block(case, 0, at)
        return st.just(dataclasses.replace(wrong, operands=wrong.operands[:1], tree=False))

    return Violation(argument, cases)


def longer(argument: str, place: int, dimension: int) -> Violation:
    """An operand with one element more in a dimension, counted from the front or the back, of which it has several."""
    return Violation(argument, lambda case: st.just(longer_block(case, place, dimension)))


def deeper(argument: str, place: int, size: int = 1) -> Violation:
    """An operand with a dimension more."""
    return Violation(
        argument, lambda case: st.just(change_operand(case, place, block=(*case.operands[place].block, size)))
    )


def wrong_dtype(argument: str, place: int, dtype: str) -> Violation:
    """An operand of a dtype that is none for it."""
    return Violation(argument, lambda case: st.just(change_operand(case, place, dtype=dtype)))


def longer_block(case: Case, place: int, dimension: int) -> Case:
    """The case with one element more in a dimension of an operand's block."""
    block = list(case.operands[place].block)
    block[dimension] += 1
    return change_operand(case, place, block=tuple(block))


def change_operand(case: Case, place: int, **fields: Any) -> Case:
    """The case with another block or dtype of an operand; further dimensions are not sharded."""
    operands = list(case.operands)
    new = dataclasses.replace(operands[place], **fields)
    more = len(new.block) - len(new.placement.spec)
    placement = dataclasses.replace(new.placement, spec=(*new.placement.spec, *[()] * more))
    operands[place] = dataclasses.replace(new, placement=placement)
    return dataclasses.replace(case, operands=tuple(operands))


def _groups(case: Case) -> list[tuple[tuple[int, ...], ...]]:
    n = case.participants
    wrong = [((0,) * n,) if n > 1 else ((0, 0),), (tuple(range(n + 1)),), ((), tuple(range(n)))]
    if n > 2 and case.contract.name != "all_reduce":
        wrong.append(((0,), tuple(range(1, n))))
    return wrong


def _partly_varying(case: Case) -> st.SearchStrategy[Case]:
    operand = case.operands[0]
    if len(case.axes) < 2 or case.axes[0] not in operand.placement.axes:  # a replica varies along no part at all
        return st.nothing()
    kept = without(operand.placement, case.axes[1:])
    return st.just(dataclasses.replace(case, operands=(dataclasses.replace(operand, placement=kept),), tree=False))


def _over(axes: Callable[[Case], tuple[str, ...]], *, everyone: bool = False) -> Violation:
    return Violation("axis_name", lambda case: st.just(dataclasses.replace(case, axis_name=axes(case))), everyone)


AXES = (
    _over(lambda case: (*case.axes, "no_such_axis"), everyone=True),
    _over(lambda case: (*case.axes, case.axes[0])),
    _over(lambda case: ()),
)
GROUPS = wrong_value("axis_index_groups", _groups)
PARTLY = Violation("x", _partly_varying)
