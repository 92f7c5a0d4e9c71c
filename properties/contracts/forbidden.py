"""What contracts forbid, as valid cases that become wrong in one argument."""

import dataclasses
from typing import Any

from hypothesis import strategies as st

from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Violation
from shardproof.properties.contracts.drawing import without


def out_of_range(argument: str, *, stacks: bool = False) -> Violation:
    """A dimension of the first operand that it does not have; if it `stacks`, one of an untiled result is counted."""

    def cases(case: Case) -> st.SearchStrategy[Case]:
        rank = len(case.operands[0].block) + (stacks and not case.keywords["tiled"])
        return st.sampled_from((rank, -rank - 1, rank + 3)).map(lambda at: case.with_params(**{argument: at}))

    return Violation(argument, cases)


def indivisible(argument: str) -> Violation:
    """A dimension that does not divide into as many parts as there are participants, or is not their number."""

    def cases(case: Case) -> st.SearchStrategy[Case]:
        if case.group_size == 1 and case.keywords["tiled"]:
            return st.nothing()
        operand = case.operands[0]
        at = case.keywords[argument] % len(operand.block)
        block = tuple(n + (i == at) for i, n in enumerate(operand.block))
        return st.just(dataclasses.replace(case, operands=(dataclasses.replace(operand, block=block),), tree=False))

    return Violation(argument, cases)


def changed(case: Case, place: int, **fields: Any) -> Case:
    """The case with another block or dtype of an operand; further dimensions are not sharded."""
    operands = list(case.operands)
    new = dataclasses.replace(operands[place], **fields)
    more = len(new.block) - len(new.placement.spec)
    placement = dataclasses.replace(new.placement, spec=(*new.placement.spec, *[()] * more))
    operands[place] = dataclasses.replace(new, placement=placement)
    return dataclasses.replace(case, operands=tuple(operands))


def _unbound_axis(case: Case) -> st.SearchStrategy[Case]:
    return st.just(dataclasses.replace(case, axis_name=(*case.axes, "no_such_axis")))


def _repeated_axis(case: Case) -> st.SearchStrategy[Case]:
    return st.just(dataclasses.replace(case, axis_name=(*case.axes, case.axes[0])))


def _no_axis(case: Case) -> st.SearchStrategy[Case]:
    return st.just(dataclasses.replace(case, axis_name=()))


def _op(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from(("median", "", "SUM")).map(lambda op: case.with_params(op=op))


def _root(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from((case.participants, -1)).map(lambda root: case.with_params(root=root))


def _perm(case: Case) -> st.SearchStrategy[Case]:
    n = case.participants
    return st.sampled_from((((0, n),), ((-1, 0),), ((0, 0), (0, 0)))).map(lambda perm: case.with_params(perm=perm))


def _groups(case: Case) -> st.SearchStrategy[Case]:
    n = case.participants
    wrong = [((0,) * n,) if n > 1 else ((0, 0),), (tuple(range(n + 1)),), ((), tuple(range(n)))]
    if n > 2 and case.contract.name != "all_reduce":
        wrong.append(((0,), tuple(range(1, n))))
    return st.sampled_from(wrong).map(lambda groups: case.with_params(axis_index_groups=groups))


def _partly_varying(case: Case) -> st.SearchStrategy[Case]:
    operand = case.operands[0]
    if len(case.axes) < 2 or case.axes[0] not in operand.placement.axes:  # a replica varies along no part at all
        return st.nothing()
    kept = without(operand.placement, case.axes[1:])
    return st.just(dataclasses.replace(case, operands=(dataclasses.replace(operand, placement=kept),), tree=False))


AXES = (
    Violation("axis_name", _unbound_axis, everyone=True),
    Violation("axis_name", _repeated_axis),
    Violation("axis_name", _no_axis),
)
GROUPS = Violation("axis_index_groups", _groups)
OP = Violation("op", _op)
PARTLY = Violation("x", _partly_varying)
PERM = Violation("perm", _perm)
ROOT = Violation("root", _root)
