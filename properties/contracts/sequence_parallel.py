"""The contracts of a multilayer perceptron over a sequence whose positions are sharded, alone and behind a norm."""

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import sequence_parallel as implementations
from shardproof.oracles import sequence_parallel
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract, Scope
from shardproof.properties.contracts.costs import added_up, replica_bytes, replicas, something
from shardproof.properties.contracts.drawing import sides
from shardproof.properties.contracts.forbidden import longer, valued
from shardproof.properties.contracts.matmul import signed, with_signs
from shardproof.properties.contracts.norms import EPSILON, EPSILONS
from shardproof.properties.contracts.operation import APART, Arguments, Described, Drawn, operation

OWN = frozenset({"empty_blocks", APART, "explained_errors", "x64"})
FEATURES = OWN | {"narrow_accumulation"}

MOST_MEMBERS = 128
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""


MLP_OF = {"x": "positions@over batch@free features", "w_in": "features hidden@over", "w_out": "hidden@over features"}
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
"""What is exposed: of 16-bit floats, sums have twice the bytes of what is gathered, and products are as long."""

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
OF_MLP, OF_NORM = tuple(MLP_OF), tuple(NORM_OF)
SUMS = added_up(*OF_MLP)
COUNT, SIZE = replicas(*OF_NORM), f"{replica_bytes('w_in', 'w_out')}+{replica_bytes('x', 'scale', wide=True)}"
NORM_SUMS = f"all_reduce={COUNT},all_reduce_bytes={SIZE}"
"""The scale's gradient is added up in the accumulator's dtype, as x is."""

ADDED = f"2*({SIZE})"
ALL_BUT_SUMS = f"exposed<=min(1,{HIDDEN}+{ADDED}/max(1,{ADDED}+(p-1)*(3*x+2*{WIDE})//2)),directions=2"
"""What is exposed of the normed one: besides, the sum of the scale's gradient, behind which nothing is left to do.

It is 2 (p - 1) / p of its bytes, less than twice, beside what permutes send, each way round.
"""

MLP: Contract = operation(
    "sequence_parallel_mlp",
    sequence_parallel.sequence_parallel_mlp,
    _of(MLP_OF),
    operands=OF_MLP,
    kinds=("exact", "real", "special", "nan"),
    sets=4,
    features=FEATURES,
    violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
    most=MOST_MEMBERS,
    adapt=signed,
    accumulator="float32 on a device",
    shapes=(((2048, 4, 2048), 0, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
    leading=0,
    least=something(0, 1, 2),
    implementations={
        "naive": Claim(implementations.sequence_parallel_mlp, communication=f"{NAIVE},{SUMS}"),
        "bidirectional": Claim(
            implementations.bidirectional_sequence_parallel_mlp,
            communication=f"{BOTH_WAYS}+{replicas(*OF_MLP)},{SUMS}",
            overlap=f"exposed<={HIDDEN},directions=2",
        ),
    },
)

NORMALISED: Contract = operation(
    "normalised_sequence_parallel_mlp",
    sequence_parallel.normalised_sequence_parallel_mlp,
    _of(NORM_OF),
    operands=OF_NORM,
    options={"epsilon": EPSILON},
    alike=("scale",),
    kinds=("real", "exact", "distinct", "real"),
    sets=4,
    features=OWN,
    violations=(
        longer("scale", 1, 0),
        valued("epsilon", lambda case: (-1.0,)),
        longer("w_in", 2, 0),
        longer("w_out", 3, 0),
    ),
    most=MOST_MEMBERS,
    adapt=_clear_of_zero,
    shapes=(((2048, 4, 2048), 0, ""), ((2048,), None, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
    usual={"epsilon": 1e-6},
    leading=0,
    least=something(0, 2, 3),
    implementations={
        "naive": Claim(implementations.normalised_sequence_parallel_mlp, communication=f"{NAIVE},{NORM_SUMS}"),
        "bidirectional": Claim(
            implementations.bidirectional_normalised_sequence_parallel_mlp,
            communication=f"{BOTH_WAYS}+{COUNT},{NORM_SUMS}",
            overlap=ALL_BUT_SUMS,
        ),
    },
)

CONTRACTS: tuple[Contract, ...] = (MLP, NORMALISED)
