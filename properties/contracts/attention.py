"""The contract of attention: queries, keys and values of one sequence, of which every participant holds a piece."""

import math

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import attention as implementations
from shardproof.oracles import attention
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.cases.strategies.shapes import LONG
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.claims import added_up, replicas
from shardproof.properties.contracts.contract import Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import something
from shardproof.properties.contracts.floats import scaled_to
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation

FEATURES = frozenset({APART, "explained_errors", "replicated_operands", "x64"})

MOST_MEMBERS = 64
"""The largest mesh: logits grow with the square of the number of participants, on each set of them."""

MOST_HEADS = 32
"""The most participants that have a head each: the logits of all together grow with the cube of their number."""

LONGEST = 544
"""The longest whole sequence, for the same reason: longer than chunks of 512."""

REACHES = (2.0, 20.0, 200.0, 20_000.0, 20.0, -20_000.0)
"""About the largest logits of a data set: nearly a mean; a choice; one that overflows in float32 as a power; one above
what half of all code takes for infinity; and, under a mask, all below what takes the place of minus infinity."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    small = st.integers(1, 2 if scope.large else 3)
    rows = small if scope.large else st.sampled_from((1, 2, 3, 4))  # of which halves are made where they can be
    sides = list(draw(st.tuples(rows, small, small), label="rows, heads, features"))
    if participants <= MOST_HEADS and draw(st.booleans(), label="heads for all participants"):
        sides[1] = participants * (1 if scope.large else 1 + sides[1] // 3)
    elif not scope.large and draw(st.integers(0, 5), label="long") == 5:
        at = draw(sampled((1, 2, 0, 0, 0)), label="which")
        most = max(1, LONGEST // participants) if at == 0 else max(LONG)
        sides[at] = draw(sampled([side for side in LONG if side <= most] or [most]), label="long side")
    causal = draw(st.integers(0, 3), label="causal") > 0  # mostly, since only then the order of positions counts
    like = None if APART in scope.features else 0
    return [Described(tuple(sides)), *[Described(tuple(sides), like=like)] * 2], {"causal": causal}


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Queries and keys by powers of two, so that logits are of all sizes; values that a query does not see are finite.

    A weight of zero makes NaN of a value that is not finite, where an implementation multiplies by it.
    """
    q, k, v = arrays
    reach = REACHES[int(np.signbit(v).sum()) % len(REACHES)]
    most = math.sqrt(abs(reach) / math.sqrt(case.operands[0].block[-1]))
    if case.keywords["causal"]:
        v = _finite(v)
        if "fed" in case.chain:  # a result that is NaN becomes such a value
            q, k = _finite(q), _finite(k)
        if reach < 0:  # or the highest logit that a query sees is rarely as low
            q, k = -np.abs(q), np.abs(k)
    return [scaled_to(q, most), scaled_to(k, most), v]


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x.astype(np.float64)), x, np.ones((), x.dtype))


def _another_head(case: Case) -> st.SearchStrategy[Case]:
    rows, heads, features = case.operands[1].block
    return st.just(changed(case, 1, block=(rows, heads + 1, features)))


def _other_features(case: Case) -> st.SearchStrategy[Case]:
    rows, heads, features = case.operands[2].block
    return st.just(changed(case, 2, block=(rows, heads, features + 1)))


def _batch(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 0, block=(*case.operands[0].block, 1)))


def _integers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 2, dtype="int32"))


def _heads_divide(case: Case) -> bool:
    return case.operands[0].block[1] % case.participants == 0


def _halves(case: Case) -> bool:
    return not case.keywords["causal"] or case.operands[0].block[0] % 2 == 0


CASTS = added_up("q", "k", "v")
"""Queries, keys and values are all cast as they come in."""

STEPS = f"steps=2*(p-1)+{replicas('q', 'k', 'v')}"
MOVED = "causal*(p>1)*(elements(q)>1)"
HALF = "elements(q)//2*itemsize(q)"

CONTRACT: Contract = operation(
    "attention",
    attention.attention,
    _arguments,
    operands=("q", "k", "v"),
    options={"causal": Option(of_type(bool))},
    kinds=("real", "exact", "distinct", "nan", "real"),
    features=FEATURES,
    violations=(
        Violation("k", _another_head),
        Violation("v", _other_features),
        Violation("q", _batch),
        Violation("v", _integers),
    ),
    most=MOST_MEMBERS,
    adapt=_in_reach,
    accumulator="float32",
    shapes=(((8192, 16, 128), 0, ""),) * 3,
    usual={"causal": False},
    leading=0,
    least=something(0, 1, 2),
    implementations={
        "gathered": Claim(
            implementations.gathered_attention,
            FEATURES,
            communication=f"all_gather=2,bytes=2*q;grad:all_gather=2,all_gather_bytes=2*q,reduce_scatter=2,reduce_scatter_bytes=2*p*q,{CASTS}",
        ),
        "ring": Claim(
            implementations.ring_attention,
            FEATURES,
            # keys and values go round side by side; backward, again, and back (Liu et al. 2023, section 3)
            communication=f"permute=2*(p-1),bytes=2*(p-1)*q,steps=p-1;grad:permute=4*(p-1),permute_bytes=4*(p-1)*q,{CASTS},{STEPS}",
        ),
        "balanced_ring": Claim(
            implementations.balanced_ring_attention,
            FEATURES,
            # besides, halves of queries, keys and values are moved in, and of the result out
            communication=f"permute=2*(p-1)+8*{MOVED},bytes=2*(p-1)*q+8*{MOVED}*{HALF},steps=p-1+2*{MOVED};"
            f"grad:permute=4*(p-1)+14*{MOVED},permute_bytes=4*(p-1)*q+14*{MOVED}*{HALF},{CASTS},{STEPS}+3*{MOVED}",
            supports=_halves,
        ),
        "heads": Claim(
            implementations.heads_attention,
            FEATURES,
            # no gradient needs the result that the last one moves (Jacobs et al. 2023, section 3)
            communication=f"all_to_all=4,bytes=4*q;grad:all_to_all=7,all_to_all_bytes=7*q,{CASTS}",
            supports=_heads_divide,
        ),
    },
)
