"""Which equations of a program are of constants, whatever it is given: compilers evaluate them beforehand."""

import math
from collections.abc import Sequence
from typing import Any

from jax.extend import core

from shardproof.properties.engines.simulate.control import scan_counts
from shardproof.properties.engines.simulate.liveness import opened, subjaxprs


def of_constants(program: Any) -> list[Any]:
    """The equations all of whose operands are the same whatever the program is given."""
    found: list[Any] = []
    _follow(program, [False] * len(opened(program)[0].invars), found)
    return found


def _follow(jaxpr: Any, known: Sequence[bool], found: list[Any]) -> list[bool]:
    """Which results of a jaxpr are constant, given which of its arguments are; collects equations of constants."""
    body, _ = opened(jaxpr)
    constant = {*body.constvars, *(v for v, is_known in zip(body.invars, known, strict=True) if is_known)}

    def is_constant(atom: Any) -> bool:
        return isinstance(atom, core.Literal) or atom in constant

    for equation in body.eqns:
        inputs = [is_constant(atom) for atom in equation.invars]
        if all(inputs):
            found.append(equation)
        outputs = [all(inputs) or is_empty_product(equation)] * len(equation.outvars)
        if equation.primitive.name == "scan":
            outputs = _carried(equation, inputs, found)
        for inner in () if equation.primitive.name == "scan" else subjaxprs(equation):
            arguments, results = len(opened(inner)[0].invars), len(opened(inner)[0].outvars)
            same = arguments == len(inputs) and results == len(outputs)
            flags = _follow(inner, inputs if same else [False] * arguments, found)
            if same and equation.primitive.name != "while":  # whose arguments change from step to step
                outputs = flags
        constant.update(v for v, is_known in zip(equation.outvars, outputs, strict=True) if is_known)
    return [is_constant(atom) for atom in body.outvars]


def _carried(equation: Any, inputs: Sequence[bool], found: list[Any]) -> list[bool]:
    """The same of a scan: what it carries is constant if it begins so, and every step leaves it so."""
    (inner,), (consts, carried) = subjaxprs(equation), scan_counts(equation)
    flags = list(inputs)
    while True:
        inside: list[Any] = []
        results = _follow(inner, flags, inside)
        kept = [flag and left for flag, left in zip(flags[consts : consts + carried], results, strict=False)]
        if kept == flags[consts : consts + carried]:
            found.extend(inside)
            return [*kept, *results[carried:]]
        flags[consts : consts + carried] = kept


def is_empty_product(equation: Any) -> bool:
    """Whether it is a product that adds up nothing, so that it is zero."""
    if equation.primitive.name != "dot_general":
        return False
    (contracted, _), _ = equation.params["dimension_numbers"]
    return math.prod(equation.invars[0].aval.shape[d] for d in contracted) == 0
