"""What a case that is read from a file must satisfy before its law means something: the preconditions of its contract.

A case of the error law breaks one, in the argument that it names, and no other.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from shardproof.oracles.dtypes import is_float
from shardproof.properties.cases.case import MOST_ELEMENTS, Case, Placement
from shardproof.properties.cases.chain import check_chain
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.contracts.collectives import is_divisible
from shardproof.properties.contracts.contract import Option, of_type
from shardproof.properties.contracts.features import KEYWORDS
from shardproof.properties.contracts.forbidden import PARTLY
from shardproof.properties.contracts.roles import axes_of
from shardproof.properties.laws.drawing import fitted
from shardproof.properties.laws.law import LAWS


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, tuple) and all(map(of_type(int), v)) for v in value)


def _dimension(case: Case, value: int) -> bool:
    if len(CONTRACTS[case.contract].operands) > 1:  # of a product's result, which has two
        return 0 <= value < 2
    return -len(case.operands[0].block) <= value < len(case.operands[0].block)


def _stacked_dimension(case: Case, value: int) -> bool:
    rank = len(case.operands[0].block) + (not case.keywords["tiled"])
    return -rank <= value < rank


def _permutation(case: Case, value: tuple[tuple[int, ...], ...]) -> bool:
    sides = list(zip(*value, strict=False))
    return all(len(pair) == 2 and min(pair) >= 0 and max(pair) < case.participants for pair in value) and all(
        len(set(side)) == len(side) for side in sides
    )


def _partition(case: Case, value: tuple[tuple[int, ...], ...]) -> bool:
    return all(value) and sorted(i for group in value for i in group) == list(range(case.participants))


PARAMETERS: dict[str, Option] = {
    "op": Option(of_type(str), lambda case, value: value in ("sum", "mean", "max", "min")),
    "tiled": Option(of_type(bool)),
    "axis": Option(of_type(int), _stacked_dimension),
    "scatter_dimension": Option(of_type(int), _dimension),
    "split_axis": Option(of_type(int), _dimension),
    "concat_axis": Option(of_type(int), _dimension),
    "offset": Option(of_type(int)),
    "root": Option(of_type(int), lambda case, value: 0 <= value < case.participants),
    "perm": Option(_are_numbers, _permutation),
    "axis_index_groups": Option(_are_numbers, _partition),
}
"""The keyword arguments of collectives and products."""


def check_case(law: str, case: Case) -> None:
    """The law is about such a case, and only an error case breaks its contract, in the one argument that it names.

    Raises:
        ValueError: if not.
    """
    _check_structure(case)
    _check_law(law, case)
    broken = set(_broken(case))
    if law != "error" and broken:
        raise ValueError(f"{min(broken)}: not as the contract of {case.contract} demands")
    if law == "error" and broken - {case.forbidden}:
        raise ValueError(f"{min(broken - {case.forbidden})}: not as the contract demands, besides {case.forbidden}")


def _check_structure(case: Case) -> None:
    """The operands, the parameters and the manual axes are of the contract and of the mesh."""
    contract = CONTRACTS[case.contract]
    if case.tree and len(contract.operands) == 1 <= len(case.operands):
        pass
    elif case.tree or len(case.operands) != len(contract.names(case)):
        raise ValueError(f"operands: {len(case.operands)} given, tree={case.tree}: expected {len(contract.operands)}")
    if sorted(role for role, _ in case.roles) != sorted(contract.roles):
        raise ValueError(f"roles={case.roles}: expected axes of {', '.join(contract.roles) or 'none'}")
    known = (*contract.parameters, *sorted({KEYWORDS[name] for name in contract.features if name in KEYWORDS}))
    for name, value in case.params:
        if name not in known:
            raise ValueError(f"parameter={name!r}: expected one of {', '.join(known)}")
        option = contract.options.get(name) or PARAMETERS.get(name)
        if option is None or not option.holds(value):
            raise ValueError(f"{name}: a {type(value).__name__}, which it never is")
    missing = [name for name in contract.parameters if name not in case.keywords]
    if missing:
        raise ValueError(f"parameter={missing[0]!r}: not given")
    for operand in case.operands:
        _check_placement(case, operand.placement, len(operand.block))
        elements = case.mesh.size * math.prod(max(side, 1) for side in operand.block)
        if elements > MOST_ELEMENTS:
            raise ValueError(f"block={operand.block}: {elements} elements on all devices, expected {MOST_ELEMENTS}")
    if case.out is not None:
        for placed in case.out:
            _check_placement(case, placed, len(placed.spec))
    if len(set(case.manual)) != len(case.manual) or bool(case.manual) != ("partial_manual" in case.chain):
        raise ValueError(f"manual={case.manual}: expected distinct axes under partial_manual, and none elsewhere")
    varying = frozenset[str]().union(*(operand.placement.axes for operand in case.operands))
    for name in case.manual or case.mesh.axis_names:
        case.mesh.axis_size(name)
    if case.manual and not {*case.axes, *varying} <= set(case.manual):
        raise ValueError(f"manual={case.manual}: expected the axes of axis_name and of the operands in it")


def _check_placement(case: Case, placement: Placement, rank: int) -> None:
    names = [*placement.stacked, *(name for entry in placement.spec for name in entry)]
    if len(placement.spec) != rank:
        raise ValueError(f"spec={placement.spec}: expected an entry for each of {rank} dimensions")
    if len(set(names)) != len(names) or not set(names) <= set(case.mesh.axis_names):
        raise ValueError(f"spec={placement.spec}, stacked={placement.stacked}: expected axes of the mesh, each once")


def _check_law(name: str, case: Case) -> None:
    """The law draws such cases."""
    law, contract = LAWS[name], CONTRACTS[case.contract]
    check_chain(case.chain)
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
    if name == "error" and case.forbidden not in wrong:
        raise ValueError(f"forbidden={case.forbidden!r}: expected one of {', '.join(sorted(wrong))}")
    if name != "error" and case.forbidden:
        raise ValueError(f"forbidden={case.forbidden!r}: expected none but for the law of errors")
    if not case.data:
        raise ValueError("data: expected at least one data set")


def _broken(case: Case) -> Iterator[str]:
    """The arguments that break the contract, so far as they show without computing anything."""
    axes, contract = case.axes, CONTRACTS[case.contract]
    of_roles = tuple(dict.fromkeys(axis for role in axes_of(case.roles).values() for axis in role))
    if case.roles and axes != of_roles:  # which may be of no axis
        yield "axis_name"
        return
    if not (axes or case.roles) or len(set(axes)) != len(axes) or not set(axes) <= set(case.mesh.axis_names):
        yield "axis_name"
        return  # the others are judged by the number of participants
    for name, value in case.params:
        if not (contract.options.get(name) or PARAMETERS[name]).accepts(case, value):
            yield name
    if PARTLY in contract.violations and len({name in case.operands[0].placement.axes for name in axes}) > 1:
        yield PARTLY.argument
    op, dtypes = case.keywords.get("op"), [operand.numpy_dtype for operand in case.operands]
    if (op in ("max", "min") and any(d.kind == "c" for d in dtypes)) or (
        op == "mean" and not all(d != np.bool_ and is_divisible(data, d) for d in dtypes for data in case.data)
    ):
        yield "op"


def check_oracle(law: str, case: Case) -> None:
    """The oracle has an answer, or none for the case of an error; shapes alone decide, so the data is zeros.

    Raises:
        ValueError: if not.
    """
    if law == "error" and any(_broken(case)):
        return
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    try:
        results = CONTRACTS[case.contract].oracle(case, zeros)
    except Exception as error:
        if law == "error":
            return
        raise ValueError(f"no case of {case.contract}: {error}") from error
    if law == "error":
        raise ValueError(f"forbidden={case.forbidden!r}: nothing is wrong with it")
    ranks = [result.ndim - len(case.mesh.sizes) for result in results]
    if case.out is not None and [len(placed.spec) for placed in case.out] != ranks:
        raise ValueError(f"out={case.out}: expected one with {ranks} entries")
