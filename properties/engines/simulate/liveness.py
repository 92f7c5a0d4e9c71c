"""How long values live: which are read for the last time where, and how many bytes that keeps alive."""

import weakref
from collections.abc import Iterator
from typing import Any

from jax.extend import core

from properties.engines.simulate.record import bytes_of

_PEAKS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def opened(jaxpr: Any) -> tuple[Any, list[Any]]:
    """A jaxpr, closed or not, as its equations and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, as they stand there."""
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


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


def peak_bytes(jaxpr: Any) -> int:
    """The most bytes alive at one time while a body runs: its arguments and everything inside it.

    An equation's operands and results are alive together, and so is what its inner jaxprs hold
    besides their own arguments, which are the operands.
    """
    jaxpr_, _ = opened(jaxpr)
    return sum(bytes_of(v.aval) for v in (*jaxpr_.invars, *jaxpr_.constvars)) + _inner_peak(jaxpr)


def _inner_peak(jaxpr: Any) -> int:
    """As `peak_bytes`, less what the arguments hold: negative where they die early."""
    if jaxpr in _PEAKS:
        return _PEAKS[jaxpr]
    body, _ = opened(jaxpr)
    alive = peak = 0
    for equation, ends in zip(body.eqns, last_reads(jaxpr), strict=True):
        alive += sum(bytes_of(v.aval) for v in equation.outvars)
        inside = max((_inner_peak(inner) for inner in subjaxprs(equation)), default=0)
        peak = max(peak, alive + max(inside, 0))
        alive -= sum(bytes_of(v.aval) for v in ends)
    _PEAKS[jaxpr] = peak
    return peak
