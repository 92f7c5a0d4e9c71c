"""The contract of attention: queries, keys and values of one sequence, of which every participant holds a piece."""

import math

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import attention as implementations
from shardproof.oracles import attention
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Option, of_type
from shardproof.properties.contracts.costs import added_up, replicas
from shardproof.properties.contracts.drawing import Drawn, Given, sides
from shardproof.properties.contracts.forbidden import deeper, longer, wrong_dtype
from shardproof.properties.contracts.numbers import finite, scaled_to
from shardproof.properties.contracts.operation import INDEPENDENT, operation

MOST_HEADS = 32
"""The most participants that have a head each: the logits of all together grow with the cube of their number."""

LONGEST = 544
"""The longest whole sequence, for the same reason: longer than chunks of 512."""

REACHES = (2.0, 20.0, 200.0, 20_000.0, -20_000.0)
"""About the largest logits of a data set: nearly a mean; a choice; one that overflows in float32 as a power; one above
the number that half of all code uses for infinity; and, under a mask, all below the one used for minus infinity."""


def _draw_sizes(draw: st.DrawFn, given: Given) -> Drawn:
    rows, heads, features = sides(draw, given.scope, 3)
    rows = min(rows, max(1, LONGEST // given.participants))
    if given.participants <= MOST_HEADS and draw(st.booleans(), label="heads for all participants"):
        rows, heads = min(rows, 4), given.participants * (1 if given.scope.large or heads < 3 else 2)
    return Drawn({"rows": rows, "heads": heads, "features": features})


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Queries and keys by powers of two, so that logits are of all sizes; values that a query does not see are finite.

    A weight of zero makes NaN of a value that is not finite, where an implementation multiplies by it.
    """
    q, k, v = arrays
    reach = REACHES[int(np.signbit(v).sum()) % len(REACHES)]
    most = math.sqrt(abs(reach) / math.sqrt(case.operands[0].block[-1]))
    if case.keywords["causal"]:
        v = finite(v)
        if "compose" in case.chain:  # a result that is NaN becomes a value of the next call
            q, k = finite(q), finite(k)
        if reach < 0:  # or the highest logit that a query sees is rarely as low
            q, k = -np.abs(q), np.abs(k)
    return [scaled_to(q, most), scaled_to(k, most), v]


CASTS = added_up("q", "k", "v")
"""Queries, keys and values are all cast as they come in."""

STEPS = f"steps=2*(p-1)+{replicas('q', 'k', 'v')}"
MOVED = "causal*(p>1)*(elements(q)>1)"
HALF = "elements(q)//2*itemsize(q)"

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "attention",
        attention.attention,
        dict.fromkeys(("q", "k", "v"), "rows@axis_name heads features"),
        draw_sizes=_draw_sizes,
        options={"causal": Option(of_type(bool), values=(False, True))},
        kinds=("real", "exact", "distinct", "nan", "real"),
        features=frozenset({INDEPENDENT, "explained_errors", "replicated_operands", "x64"}),
        violations=(longer("k", 1, 1), longer("v", 2, 2), deeper("q", 0), wrong_dtype("v", 2, "int32")),
        # logits grow with the square of the number of participants, on each set of them
        most=64,
        adapt=_in_reach,
        accumulator="float32",
        usual_sizes={"rows": 8192, "heads": 16, "features": 128},
        usual={"causal": False},
        implementations={
            "gathered": Claim(
                implementations.gathered_attention,
                communication=f"all_gather=2,bytes=2*q;grad:all_gather=2,all_gather_bytes=2*q,reduce_scatter=2,reduce_scatter_bytes=2*p*q,{CASTS}",
            ),
            "ring": Claim(
                implementations.ring_attention,
                # keys and values go round side by side; backward, again, and back (Liu et al. 2023, section 3)
                communication=f"permute=2*(p-1),bytes=2*(p-1)*q,steps=p-1;grad:permute=4*(p-1),permute_bytes=4*(p-1)*q,{CASTS},{STEPS}",
            ),
            "balanced_ring": Claim(
                implementations.balanced_ring_attention,
                # besides, halves of queries, keys and values are moved in, and of the result out
                communication=f"permute=2*(p-1)+8*{MOVED},bytes=2*(p-1)*q+8*{MOVED}*{HALF},steps=p-1+2*{MOVED};"
                f"grad:permute=4*(p-1)+14*{MOVED},permute_bytes=4*(p-1)*q+14*{MOVED}*{HALF},{CASTS},{STEPS}+3*{MOVED}",
                supports=lambda case: not case.keywords["causal"] or case.operands[0].block[0] % 2 == 0,
            ),
            "heads": Claim(
                implementations.heads_attention,
                # no gradient needs the result that the last one moves (Jacobs et al. 2023, section 3)
                communication=f"all_to_all=4,bytes=4*q;grad:all_to_all=7,all_to_all_bytes=7*q,{CASTS}",
                supports=lambda case: case.operands[0].block[1] % case.participants == 0,
            ),
        },
    ),
)
