"""How long values live: which are read for the last time where."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core


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


def last_reads(jaxpr: Any) -> list[list[Any]]:
    """For every equation, the variables that nothing reads any more once it is done."""
    jaxpr, _ = opened(jaxpr)
    alive = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    result = []
    for equation in reversed(jaxpr.eqns):
        mentioned = [v for v in (*equation.invars, *equation.outvars) if not isinstance(v, core.Literal)]
        ends = [v for v in dict.fromkeys(mentioned) if v not in alive]
        alive.update(ends)
        result.append(ends)
    return result[::-1]
