"""The laws of values and of gradients, one after the other."""

import dataclasses
from contextlib import suppress

from shardproof.properties.cases.case import Case
from shardproof.properties.engines import Engine
from shardproof.properties.laws.agreement import differentiable
from shardproof.properties.laws.gradient import check_gradient, derives_at
from shardproof.properties.laws.value import check_value
from shardproof.properties.programs.implementations import Implementation


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
    """Values, and gradients at one data set, where there are any; returns the data sets checked.

    Raises:
        Broken: if a law does not hold.
    """
    telling = tuple(data for data in case.data if derives_at(case, data))[-1:]
    derived = dataclasses.replace(case, data=telling)
    return check_value(implementation, case, engine) + (_gradients(implementation, derived, engine) if telling else 0)


def _gradients(implementation: Implementation, case: Case, engine: Engine) -> int:
    """The data sets whose gradients are right; none of what has no derivative."""
    if differentiable(case):
        with suppress(NotImplementedError):  # the values are right all the same
            return check_gradient(implementation, case, engine)
    return 0
