"""Calls that feed one another: which operands a second call of a function can get from the results of the first."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.chain import FED, LINKS

Value = TypeVar("Value")

Fed = Mapping[int, int]
"""The number of the result that an operand is, by the operand's place."""


def can_feed(case: Case) -> bool:
    """Whether every call in the case that is fed has an operand that results of a call are like, whatever is around it.

    A link inside of it that maps an operand not, and its results, makes them unlike.
    """
    if FED not in case.chain:
        return True
    if not case.contract.linear:  # data are made to fit a function, and its results need not be
        return False
    fed = fed_operands(case)
    inside = [LINKS[name] for name in case.chain[case.chain.index(FED) :]]
    alike = all(link.maps_operand(place) for link in inside if link.batched for place in fed)
    return bool(fed) and alike


def fed_operands(case: Case) -> Fed:
    """The operands that a second call gets from the results of the first: each has the shape, dtype and type of one.

    A result that varies less is cast. One may be typed to vary along all axes of the tuple, and wherever an operand
    does, whatever the function: so an operand that varies less is like none.
    """
    return MappingProxyType(dict(_pairs(dataclasses.replace(case.structure, chain=(), manual=(), out=None))))


def refilled(fed: Fed, operands: Sequence[Value], results: Sequence[Value]) -> list[Value]:
    """The operands of the next call."""
    return [results[fed[place]] if place in fed else operand for place, operand in enumerate(operands)]


@lru_cache(maxsize=256)
def _pairs(case: Case) -> tuple[tuple[int, int], ...]:
    contract = case.contract
    zeros = [np.zeros((*case.mesh.sizes, *o.block), o.numpy_dtype) for o in case.operands]
    shapes = [result.shape[len(case.mesh.sizes) :] for result in contract.oracle.value(case, zeros)]
    dtypes = contract.oracle.result_dtypes(case, [o.numpy_dtype for o in case.operands])
    varying = frozenset(case.axes).union(*(o.placement.axes for o in case.operands))
    placed = None if contract.call.placed is None else contract.call.placed(case)
    pairs: dict[int, int] = {}
    for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False)):  # a product has one result
        for place in [number] if case.tree else contract.call.moving(case):
            operand = case.operands[place]
            like = (operand.block, operand.numpy_dtype) == (shape, dtype) and varying <= operand.placement.axes
            if place not in pairs and like and (placed is None or placed[number] == operand.placement):
                pairs[place] = number
                break
    return tuple(pairs.items())
