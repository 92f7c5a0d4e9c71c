"""Programs inside of programs: all equations of a jaxpr, and its values where calls are replaced by what they call."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jax.extend import core

from shardproof.properties.engines.simulate.record import bytes_of

ELEMENTS = 4_000
"""So many numbers count as an equation more."""


def opened(jaxpr: Any) -> tuple[Any, list[Any]]:
    """A jaxpr, closed or not, as its equations and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, as they stand there."""
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr in program order, those of inner jaxprs behind the one that they belong to."""
    for equation in opened(jaxpr)[0].eqns:
        yield equation
        for inner in subjaxprs(equation):
            yield from equations(inner)


def steps_of(jaxpr: Any, devices: int) -> float:
    """How long a program takes to interpret, in equations of few numbers; those of a loop count in every iteration.

    A `while` loop, of which the trace does not say how often it runs, counts once.
    """
    total = 0.0
    for equation in opened(jaxpr)[0].eqns:
        elements = sum(math.prod(getattr(one.aval, "shape", ())) for one in equation.outvars)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += 1 + elements * devices / ELEMENTS + times * sum(steps_of(one, devices) for one in subjaxprs(equation))
    return total


def widest(jaxpr: Any) -> int:
    """The most numbers of one value of a program, on all devices together; at least 1."""
    most = 1
    for equation in opened(jaxpr)[0].eqns:
        manual = equation.params.get("newly_manual_axes", ())
        devices = math.prod(equation.params["mesh"].shape[name] for name in manual)
        sizes = [math.prod(getattr(v.aval, "shape", ())) for v in (*equation.invars, *equation.outvars)]
        most = max([most, *sizes, *(devices * widest(inner) for inner in subjaxprs(equation))])
    return most


class Value:
    """What an equation makes, each time that it is called."""

    def __init__(self, aval: Any) -> None:
        self.bytes = bytes_of(aval) if getattr(aval, "shape", ()) else 0


class Step(NamedTuple):
    """An equation that is no call."""

    equation: Any
    reads: list[Value]
    writes: list[Value]

    @property
    def name(self) -> str:
        """The primitive's."""
        return str(self.equation.primitive.name)


def flattened(body: Any, names: dict[Any, Any], calls: Callable[[Any], bool]) -> tuple[list[Step], list[Any]]:
    """The equations of a body, calls replaced by what they call, and its results: values, and literals.

    Arguments:
        body: an open jaxpr.
        names: the values of its arguments; those of the rest are added.
        calls: whether an equation with a single inner jaxpr is a call of that.
    """
    steps: list[Step] = []

    def resolve(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else names[atom]

    for equation in body.eqns:
        inner = list(subjaxprs(equation))
        operands = [resolve(atom) for atom in equation.invars]
        if calls(equation) and len(inner) == 1:
            called, _ = opened(inner[0])
            constants = {v: Value(v.aval) for v in called.constvars}
            given = operands[len(operands) - len(called.invars) :]
            own, results = flattened(called, {**constants, **dict(zip(called.invars, given, strict=True))}, calls)
            steps += own
        else:
            results = [Value(v.aval) for v in equation.outvars]
            steps.append(Step(equation, [v for v in operands if isinstance(v, Value)], results))
        names.update(zip(equation.outvars, results, strict=True))
    return steps, [resolve(atom) for atom in body.outvars]
