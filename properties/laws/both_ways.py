"""The laws of values and of gradients, one after the other."""

import dataclasses
from contextlib import suppress

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.engines.running import ready
from shardproof.properties.engines.simulate.liveness import equations
from shardproof.properties.laws.agreement import REFERENCE, differentiable
from shardproof.properties.laws.gradient import check_gradient, derives_at
from shardproof.properties.laws.value import check_value
from shardproof.properties.programs.implementations import Implementation

LONG = 40
"""The equations from which the law without `jit` looks at one set of values alone: each is compiled by itself, anew in
every run, in tens of milliseconds, and the gradients of a program have several times as many."""


def check_scale(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The laws of values and of gradients, where there is one; returns the data sets checked.

    Raises:
        Broken: if one does not hold.
    """
    checked = check_value(implementation, case, engine)
    if differentiable(case):
        checked += check_gradient(implementation, case, engine)
    return checked


def check_interpreted(implementation: Implementation, case: Case, engine: Engine) -> int:
    """What the law of agreement compares, held against the oracle; returns the data sets checked.

    Raises:
        Broken: if a law does not hold.
    """
    return check_value(implementation, case, engine) + _gradients(implementation, case, engine)


def check_eager(implementation: Implementation, case: Case, engine: Engine) -> int:
    """Values at two data sets, and gradients at one, where there are any; values at one of a program that is `LONG`.

    Returns:
        The data sets checked.

    Raises:
        Broken: if a law does not hold.
    """
    program = ready("value", implementation, case, REFERENCE).prepared.jaxpr
    long = sum(1 for _ in equations(program)) > LONG
    values = dataclasses.replace(case, data=case.data[: 1 if long else 2])
    checked = check_value(implementation, values, engine)
    telling = [data for data in case.data if derives_at(case, data)]
    if long or not telling:
        return checked
    return checked + _gradients(implementation, dataclasses.replace(case, data=(telling[0],)), engine)


def _gradients(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The data sets whose gradients are right; none of what has no derivative."""
    if differentiable(case):
        with suppress(NotImplementedError):  # the values are right all the same
            return check_gradient(implementation, case, engine)
    return 0
