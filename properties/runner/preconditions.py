"""Checks that a case from a file is one of its contract, and of its law."""

import math
from collections.abc import Iterator

import numpy as np

from shardproof.properties.cases.case import MOST_ELEMENTS, Case
from shardproof.properties.cases.reading import shown
from shardproof.properties.cases.suggestion import RequestError
from shardproof.properties.contracts.contract import KEYWORDS
from shardproof.properties.contracts.forbidden import PARTLY
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.laws import LAWS
from shardproof.properties.laws.drawing import fit_chain


class NotAFailure(RequestError):
    """A file has no failure that this version can run again; the message says why."""


def check_case(law: str, case: Case) -> None:
    """Raises ValueError unless the operands, parameters and axes fit the contract and the mesh, and the law applies."""
    contract = case.contract
    for operand in case.operands:
        elements = case.mesh.size * math.prod(max(side, 1) for side in operand.block)
        if elements > MOST_ELEMENTS:
            raise ValueError(f"block={operand.block}: {elements} elements on all devices, expected {MOST_ELEMENTS}")
    wanted = len(contract.call.operands)
    several = case.tree and wanted == 1 <= len(case.operands)
    if not several and (case.tree or len(case.operands) != len(contract.call.names(case))):
        raise ValueError(f"operands: {len(case.operands)} given, tree={case.tree}: expected {wanted}")
    if sorted(role for role, _ in case.roles) != sorted(contract.call.roles):
        raise ValueError(f"roles={case.roles}: expected axes of {', '.join(contract.call.roles) or 'none'}")
    known = (*contract.call.parameters, *sorted({KEYWORDS[name] for name in contract.features if name in KEYWORDS}))
    missing = [name for name in contract.call.parameters if name not in case.keywords]
    if missing:
        raise ValueError(f"parameter={missing[0]!r}: not given")
    for name, value in case.params:
        if name not in known:
            raise ValueError(f"parameter={name!r}: expected one of {', '.join(known)}")
        option = contract.call.options.get(name)
        if option is not None and not option.holds(value):
            raise ValueError(f"{name}={shown(value)}: expected a value as {case.contract.name} takes it")
    if len(set(case.manual)) != len(case.manual) or bool(case.manual) != ("partial_manual" in case.chain):
        raise ValueError(f"manual={case.manual}: expected distinct axes under partial_manual, and none elsewhere")
    case.mesh.axis_size(case.manual)
    varying = frozenset[str]().union(*(operand.placement.axes for operand in case.operands))
    if case.manual and not {*case.axes, *varying} <= set(case.manual):
        raise ValueError(f"manual={case.manual}: expected the axes of axis_name and of the operands in it")
    _check_law(law, case)


def _check_law(name: str, case: Case) -> None:
    """Raises ValueError unless the law draws such cases."""
    law, contract = LAWS[name], case.contract
    wrong = {violation.argument for violation in contract.violations}
    if case.forbidden not in (wrong if name == "error" else {""}):
        expected = ", ".join(sorted(wrong)) if name == "error" else "none but for the law of errors"
        raise ValueError(f"forbidden={case.forbidden!r}: expected {expected}")
    its = law.of(case) if case.data else case
    if its is None:
        raise ValueError(f"law={name!r}: expected a case that it applies to, such as one that has a gradient")
    if its.out != case.out:
        raise ValueError(f"out: expected for the law of types, and for no other, got law={name!r}")
    if fit_chain(case) != case:
        raise ValueError(f"chain={case.chain}: expected {fit_chain(case).chain} around a call on such operands")
    if not case.data:
        raise ValueError("data: expected at least one data set")
    for argument in _wrong_arguments(case):
        if argument != case.forbidden:
            if argument == "axis_name":
                expected = f"distinct axes of the mesh {case.mesh}, those of the roles"
                raise ValueError(f"axis_name={case.axes}: expected {expected}")
            value = shown(case.keywords.get(argument))
            raise ValueError(f"{argument}={value}: expected a value as {case.contract.name} takes it")


def _wrong_arguments(case: Case) -> Iterator[str]:
    """The arguments that are not as the contract demands, as far as that is known without computing anything."""
    axes, contract = case.axes, case.contract
    of_roles = tuple(dict.fromkeys(axis for role in axes_of(case.roles).values() for axis in role))
    if axes != of_roles if case.roles else not axes or len({*axes}) != len(axes) or not {*axes} <= {*case.mesh.shape}:
        yield "axis_name"
        return  # the others are judged by the number of participants
    for name, value in case.params:
        option = contract.call.options.get(name)
        if option is not None and not option.accepts(case, value):
            yield name
    if PARTLY in contract.violations and len({name in case.operands[0].placement.axes for name in axes}) > 1:
        yield PARTLY.argument


def check_oracle(law: str, case: Case) -> None:
    """Raises ValueError unless the oracle has a result on zeros, or has none where an argument is forbidden."""
    if law == "error" and any(_wrong_arguments(case)):
        return
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    try:
        results = case.contract.oracle.value(case, zeros)
    except Exception as error:
        if law == "error":
            return
        raise ValueError(f"no case of {case.contract.name}: {type(error).__name__}: {error}") from error
    if law == "error":
        raise ValueError(f"forbidden={case.forbidden!r}: nothing is wrong with it")
    ranks = [result.ndim - len(case.mesh.sizes) for result in results]
    if case.out is not None and [len(placed.spec) for placed in case.out] != ranks:
        raise ValueError(f"out={case.out}: expected one with {ranks} entries")
