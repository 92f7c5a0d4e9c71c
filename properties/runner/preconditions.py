"""Preconditions of a case that is read from a file: it is one of its contract, and of its law."""

import math
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import MOST_ELEMENTS, Case
from shardproof.properties.cases.reading import shown
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.features import KEYWORDS
from shardproof.properties.contracts.forbidden import PARTLY
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.laws.drawing import fitted
from shardproof.properties.laws.law import LAWS


def check_case(law: str, case: Case) -> None:
    """The operands, parameters and axes are of the contract and of the mesh, and the law is about such a case.

    Raises:
        ValueError: naming what is not, its value, and what was expected.
    """
    contract = CONTRACTS[case.contract]
    for operand in case.operands:
        elements = case.mesh.size * math.prod(max(side, 1) for side in operand.block)
        if elements > MOST_ELEMENTS:
            raise ValueError(f"block={operand.block}: {elements} elements on all devices, expected {MOST_ELEMENTS}")
    several = case.tree and len(contract.operands) == 1 <= len(case.operands)
    if not several and (case.tree or len(case.operands) != len(contract.names(case))):
        raise ValueError(f"operands: {len(case.operands)} given, tree={case.tree}: expected {len(contract.operands)}")
    if sorted(role for role, _ in case.roles) != sorted(contract.roles):
        raise ValueError(f"roles={case.roles}: expected axes of {', '.join(contract.roles) or 'none'}")
    known = (*contract.parameters, *sorted({KEYWORDS[name] for name in contract.features if name in KEYWORDS}))
    missing = [name for name in contract.parameters if name not in case.keywords]
    if missing:
        raise ValueError(f"parameter={missing[0]!r}: not given")
    for name, value in case.params:
        if name not in known:
            raise ValueError(f"parameter={name!r}: expected one of {', '.join(known)}")
        option = contract.options.get(name)
        if option is not None and not (option.holds(value) and (law == "error" or option.accepts(case, value))):
            raise ValueError(f"{name}={shown(value)}: expected a value as {case.contract} takes it")
    if len(set(case.manual)) != len(case.manual) or bool(case.manual) != ("partial_manual" in case.chain):
        raise ValueError(f"manual={case.manual}: expected distinct axes under partial_manual, and none elsewhere")
    case.mesh.axis_size(case.manual)
    varying = frozenset[str]().union(*(operand.placement.axes for operand in case.operands))
    if case.manual and not {*case.axes, *varying} <= set(case.manual):
        raise ValueError(f"manual={case.manual}: expected the axes of axis_name and of the operands in it")
    _check_law(law, case)


def _check_law(name: str, case: Case) -> None:
    """The law draws such cases."""
    law, contract = LAWS[name], CONTRACTS[case.contract]
    if not law.chains.allows(case.chain):
        raise ValueError(f"chain={case.chain}: the law {name!r} draws no such chain")
    if fitted(case) != case:
        raise ValueError(f"chain={case.chain}: expected {fitted(case).chain} around a call on such operands")
    if name != "type" and case.out is not None:
        raise ValueError(f"out: expected for the law of types, and for no other, got law={name!r}")
    floating = all(is_float(case.operands[i].numpy_dtype) for i in contract.moving(case))
    if law.floating and not (floating and contract.differentiable(case)):
        raise ValueError(f"law={name!r}: expected a case that has a gradient")
    wrong = {violation.argument for violation in contract.violations}
    if case.forbidden not in (wrong if name == "error" else {""}):
        expected = ", ".join(sorted(wrong)) if name == "error" else "none but for the law of errors"
        raise ValueError(f"forbidden={case.forbidden!r}: expected {expected}")
    if not case.data:
        raise ValueError("data: expected at least one data set")
    if name != "error" and not _has_valid_axes(case):
        raise ValueError(f"axis_name={case.axes}: expected distinct axes of the mesh {case.mesh}, those of the roles")
    for argument, value in case.params:
        if name != "error" and argument not in contract.options and not _is_accepted(case, argument, value):
            raise ValueError(f"{argument}={shown(value)}: expected a value as {case.contract} takes it")


def _has_valid_axes(case: Case) -> bool:
    """Whether they are distinct axes of the mesh, and those of the roles, which may be none."""
    axes = case.axes
    of_roles = tuple(dict.fromkeys(axis for role in axes_of(case.roles).values() for axis in role))
    valid = len(set(axes)) == len(axes) and set(axes) <= set(case.mesh.axis_names)
    return valid and (axes == of_roles if case.roles else bool(axes))


def _is_wrong(case: Case) -> bool:
    """Whether an argument is wrong, so far as that shows without computing anything."""
    contract = CONTRACTS[case.contract]
    if not _has_valid_axes(case):
        return True
    for name, value in case.params:
        option = contract.options.get(name)
        if not (_is_accepted(case, name, value) if option is None else option.accepts(case, value)):
            return True
    varies = {name in case.operands[0].placement.axes for name in case.axes}
    return PARTLY in contract.violations and len(varies) > 1


def _is_accepted(case: Case, name: str, value: Any) -> bool:
    """Whether a keyword argument of a collective or product is one of its participants, or of its dimensions."""
    p, several = case.participants, len(CONTRACTS[case.contract].operands) > 1
    try:
        if name == "root":
            return 0 <= value < p
        if name == "perm":
            return all(0 <= i < p for pair in value for i in pair) and all(
                len(set(side)) == len(side) for side in zip(*value, strict=True)
            )
        if name in ("axis", "scatter_dimension", "split_axis", "concat_axis"):
            rank = 2 if several else len(case.operands[0].block) + (name == "axis" and not case.keywords["tiled"])
            return (0 if several else -rank) <= value < rank
    except (TypeError, ValueError):  # of another type
        return False
    return True


def check_oracle(law: str, case: Case) -> None:
    """The oracle has an answer, or none for the case of an error; shapes alone decide, so the data is zeros.

    Raises:
        ValueError: if not.
    """
    if law == "error" and _is_wrong(case):
        return
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    try:
        results = CONTRACTS[case.contract].oracle(case, zeros)
    except Exception as error:
        if law == "error":
            return
        raise ValueError(f"no case of {case.contract}: {type(error).__name__}: {error}") from error
    if law == "error":
        raise ValueError(f"forbidden={case.forbidden!r}: nothing is wrong with it")
    ranks = [result.ndim - len(case.mesh.sizes) for result in results]
    if case.out is not None and [len(placed.spec) for placed in case.out] != ranks:
        raise ValueError(f"out={case.out}: expected one with {ranks} entries")
