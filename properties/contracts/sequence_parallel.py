"""The contracts of a multilayer perceptron over a sequence whose positions are sharded, alone and behind a norm."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import sequence_parallel as implementations
from shardproof.oracles import sequence_parallel
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract, Scope, at_least_a_byte
from shardproof.properties.contracts.costs import replica_bytes, replicas
from shardproof.properties.contracts.drawing import sides
from shardproof.properties.contracts.forbidden import longer, wrong_value
from shardproof.properties.contracts.matmul import signed, with_signs
from shardproof.properties.contracts.norms import EPSILON, EPSILONS
from shardproof.properties.contracts.operation import INDEPENDENT, Arguments, Described, Drawn, operation, sharded_in

OWN = frozenset({"empty_blocks", INDEPENDENT, "explained_errors", "x64"})
FEATURES = OWN | {"narrow_accumulation"}

MOST_MEMBERS = 128
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""


MLP_OF = {
    "x": "positions@axis_name batch@others features",
    "w_in": "features hidden@axis_name",
    "w_out": "hidden@axis_name features",
}
NORM_OF = {"x": MLP_OF["x"], "scale": "features", **MLP_OF}


def _of(dimensions: Mapping[str, str]) -> Arguments:
    def arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
        sizes = zip(("positions", "batch", "features", "hidden"), sides.within(draw, scope, 4, most=3), strict=True)
        params = {"epsilon": draw(sampled(EPSILONS), label="epsilon")} if "scale" in dimensions else {}
        return Described.all_of([*dimensions.values()], dict(sizes), participants), params

    return arguments


def _clear_of_zero(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Hidden values that are far from zero, as in `signed`: a scale is above zero, so that features keep their signs.

    No position is all zeros, where without epsilon it would be NaN.
    """
    x, scale, w_in, w_out = arrays
    sizes = np.abs(scale.astype(np.float64))
    scale = np.where(sizes > 0, sizes, 1).astype(scale.dtype)
    # what is turned beside that depends on how large features are, and the norm changes that
    return [with_signs(x, -2), scale, with_signs(w_in, -1), w_out]


HIDDEN = "1/6"
"""The exposed part: sums of 16-bit floats have twice the bytes of what is gathered, and products are as long."""

WIDE = "elements(x)*sum_itemsize(x)"
NAIVE = (
    f"all_gather=1,all_gather_bytes=x,reduce_scatter=1,reduce_scatter_bytes=p*{WIDE};"
    f"grad:all_gather=2,all_gather_bytes=x+{WIDE},reduce_scatter=1,reduce_scatter_bytes=p*x"
)
"""The input is gathered, and a sum of as many elements scattered; backward the input is gathered again."""

HALVES = "(p-1)*(2 if size(x,0)*size(x,1)>1 else 1)"
BOTH_WAYS = (
    f"permute=2*{HALVES},bytes=(p-1)*(x+{WIDE}),steps=2*(p-1);"
    f"grad:permute=3*{HALVES},permute_bytes=(p-1)*(2*x+{WIDE}),steps=3*(p-1)"
)
SUMMED = f"{replica_bytes('w_in', 'w_out')}+{replica_bytes('x', 'scale', wide=True)}"
"""The scale's gradient is added up in the accumulator's dtype, as x is."""

SHAPES = (((2048, 4, 2048), 0, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, ""))


ADDED = f"2*({SUMMED})"
ALL_BUT_SUMS = f"exposed<=min(1,{HIDDEN}+{ADDED}/max(1,{ADDED}+(p-1)*(3*x+2*{WIDE})//2)),directions=2"
"""The exposed part of the normed one: also the sum of the scale's gradient, beside which nothing is left to do.

It is 2 (p - 1) / p of its bytes, less than twice, beside what permutes send, each way round.
"""


def _mlp(name: str, dimensions: Mapping[str, str], summed: str, overlap: str, **more: Any) -> Contract:
    """The contract of an MLP with arguments of these dimensions; `summed` bytes of replicas' gradients are added up."""
    count = replicas(*dimensions)
    sums = f"all_reduce={count},all_reduce_bytes={summed}"
    return operation(
        name,
        getattr(sequence_parallel, name),
        _of(dimensions),
        operands=tuple(dimensions),
        sets=4,
        most=MOST_MEMBERS,
        leading=0,
        least=at_least_a_byte(*sharded_in(dimensions)),
        implementations={
            "naive": Claim(getattr(implementations, name), communication=f"{NAIVE},{sums}"),
            "bidirectional": Claim(
                getattr(implementations, f"bidirectional_{name}"),
                communication=f"{BOTH_WAYS}+{count},{sums}",
                overlap=overlap,
            ),
        },
        **more,
    )


CONTRACTS: tuple[Contract, ...] = (
    _mlp(
        "sequence_parallel_mlp",
        MLP_OF,
        replica_bytes(*MLP_OF),
        f"exposed<={HIDDEN},directions=2",
        kinds=("exact", "real", "special", "nan"),
        features=FEATURES,
        violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
        adapt=signed,
        accumulator="float32 on a device",
        shapes=SHAPES,
    ),
    _mlp(
        "normalised_sequence_parallel_mlp",
        NORM_OF,
        SUMMED,
        ALL_BUT_SUMS,
        options={"epsilon": EPSILON},
        replicated=("scale",),
        kinds=("real", "exact", "distinct", "real"),
        features=OWN,
        violations=(
            longer("scale", 1, 0),
            wrong_value("epsilon", lambda case: (-1.0,)),
            longer("w_in", 2, 0),
            longer("w_out", 3, 0),
        ),
        adapt=_clear_of_zero,
        shapes=(SHAPES[0], ((2048,), None, ""), *SHAPES[1:]),
        usual={"epsilon": 1e-6},
    ),
)
