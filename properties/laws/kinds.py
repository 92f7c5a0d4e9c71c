"""What cases are told apart by where few are drawn, so that all kinds are among them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.dtypes import as_dtype
from shardproof.properties.contracts import CONTRACTS

BEYOND = 2**30
"""More than an option may be that has a bound."""


@dataclass(frozen=True)
class Kinds:
    """The kinds of a law's cases.

    Arguments:
        of: the kind of a case.
        every: the kinds that cases like a given one may be of, some of which an implementation may not get.
    """

    of: Callable[[Case], str]
    every: Callable[[Case], frozenset[str]]


def _argument(case: Case) -> str:
    return case.forbidden


def _arguments(case: Case) -> frozenset[str]:
    return frozenset(violation.argument for violation in CONTRACTS[case.contract].violations)


def _sum(case: Case) -> str:
    return "wide" if _is_wider(case, case.operands[0].numpy_dtype) else "as it is"


def _sums(case: Case) -> frozenset[str]:
    return frozenset(("wide", "as it is") if _is_wider(case, as_dtype("bfloat16")) else ("as it is",))


def _is_wider(case: Case, dtype: np.dtype) -> bool:
    return CONTRACTS[case.contract].accumulator(dtype) != dtype


def _option(case: Case) -> str:
    return "largest" if _ends(case, 1) else "smaller"


def _options(case: Case) -> frozenset[str]:
    return frozenset(("largest", "smaller") if _ends(case, BEYOND) else ("smaller",))


def _ends(case: Case, more: int) -> bool:
    """Whether an integer among the options may not be so much more."""
    options = CONTRACTS[case.contract].options
    integers = [(name, value) for name, value in case.params if name in options and type(value) is int]
    return any(not options[name].accepts(case, value + more) for name, value in integers)


WRONG_ARGUMENTS = Kinds(_argument, _arguments)
"""Which argument is wrong."""

SUMS = Kinds(_sum, _sums)
"""Whether sums are of a wider dtype than what is added up, which the bytes tell."""

LARGEST_OPTIONS = Kinds(_option, _options)
"""Whether an option is as large as it may be: all experts are chosen, or all rows are sent."""
