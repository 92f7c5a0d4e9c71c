"""The contract of masked_mean: the mean over the elements that count, of all participants."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import masked_mean as implementations
from shardproof.oracles import masked_mean
from shardproof.oracles.communication import Cost
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.contract import Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import bits, elements, something, sum_bits
from shardproof.properties.contracts.drawing import further_dimensions
from shardproof.properties.contracts.floats import float32_accumulator
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation

FEATURES = frozenset({"any_rank", APART, "explained_errors", "replicated_operands", "x64"})


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    usual = st.integers(1, 2 if scope.large else 6)
    long = not scope.large and draw(st.integers(0, 9), label="long") == 9
    size = draw(sampled(LONG) if long else usual, label="elements")
    block = (*further_dimensions(draw, scope), size)
    return [Described(block), Described(block, "bool", like=0)], {}


def _masked(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The mask: of one participant's elements, of all, or of none; what is not finite is masked half of the time.

    Drawn booleans count about half of the elements of each participant, so that a mean of means is nearly right.
    """
    values, mask = arrays
    style = int(np.count_nonzero(mask)) % 5
    if style == 0:
        mask = np.zeros_like(mask)
    elif style == 1:
        mask = np.ones_like(mask)
    elif style == 2:  # the first elements count, so that participants count different numbers of them
        mask = np.arange(mask.size).reshape(mask.shape) <= mask.size // 3
    if style != 1:
        finite = case.aligned(0, np.isfinite(values.astype(np.float64))) & np.ones_like(case.aligned(1, mask))
        shared = tuple(len(case.operands[1].placement.stacked) + at for at in case.shared_dimensions(1))
        mask = mask & finite.all(axis=shared).reshape(mask.shape)
    return [values, mask]


def _taller(case: Case) -> st.SearchStrategy[Case]:
    *more, size = case.operands[1].block
    return st.just(changed(case, 1, block=(*more, size + 1)))


def _numbers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 1, dtype="float32"))


def _two_numbers(case: Case, backward: bool) -> Cost:
    return masked_mean.sums_cost(sum_bits=sum_bits(case), backward=backward)


def _all_values(case: Case, backward: bool) -> Cost:
    return masked_mean.gathered_cost(elements(case), bits=bits(case), backward=backward)


CONTRACT: Contract = operation(
    "masked_mean",
    masked_mean.masked_mean,
    _arguments,
    operands=("values", "mask"),
    auxiliary=frozenset({"mask"}),
    invariant=True,
    kinds=("exact", "real", "nan", "scaled", "special", "nan"),
    features=FEATURES,
    violations=(Violation("mask", _taller), Violation("mask", _numbers)),
    adapt=_masked,
    weighs=True,
    terms=lambda case: elements(case) * case.participants,
    divides=lambda case: True,
    quotient=True,
    even=lambda case: False,  # it divides by how many count, which only the mask tells
    accumulator=float32_accumulator,
    shapes=(((65536,), 0, ""), ((65536,), 0, "bool")),
    leading=0,
    least=something(0),
    implementations={
        "sums": Claim(implementations.masked_mean, FEATURES, communication=_two_numbers),
        "gathered": Claim(implementations.gathered_masked_mean, FEATURES, communication=_all_values),
    },
)
