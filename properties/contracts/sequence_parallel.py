"""The contract of a multilayer perceptron over a sequence whose positions are sharded."""

from hypothesis import strategies as st

from shardproof.impl import sequence_parallel as implementations
from shardproof.oracles import sequence_parallel
from shardproof.properties.contracts.contract import Claim, Contract, Scope, at_least_a_byte
from shardproof.properties.contracts.costs import added_up, replicas
from shardproof.properties.contracts.drawing import sides
from shardproof.properties.contracts.forbidden import longer
from shardproof.properties.contracts.matmul import signed
from shardproof.properties.contracts.operation import INDEPENDENT, Described, Drawn, operation, sharded_in

MOST_MEMBERS = 128
"""The largest mesh: every participant has the whole sequence, of as many positions as participants."""

DIMENSIONS = {
    "x": "positions@axis_name batch@others features",
    "w_in": "features hidden@axis_name",
    "w_out": "hidden@axis_name features",
}


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    sizes = zip(("positions", "batch", "features", "hidden"), sides.within(draw, scope, 4, most=3), strict=True)
    return Described.all_of([*DIMENSIONS.values()], dict(sizes), participants), {}


WIDE = "elements(x)*sum_itemsize(x)"
NAIVE = (
    f"all_gather=1,all_gather_bytes=x,reduce_scatter=1,reduce_scatter_bytes=p*{WIDE};"
    f"grad:all_gather=2,all_gather_bytes=x+{WIDE},reduce_scatter=1,reduce_scatter_bytes=p*x,{added_up(*DIMENSIONS)}"
)
"""The input is gathered, and a sum of as many elements scattered; backward the input is gathered again."""

HALVES = "(p-1)*(2 if size(x,0)*size(x,1)>1 else 1)"
BOTH_WAYS = (
    f"permute=2*{HALVES},bytes=(p-1)*(x+{WIDE}),steps=2*(p-1);"
    f"grad:permute=3*{HALVES},permute_bytes=(p-1)*(2*x+{WIDE}),"
    f"steps=3*(p-1)+{replicas(*DIMENSIONS)},{added_up(*DIMENSIONS)}"
)

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "sequence_parallel_mlp",
        sequence_parallel.sequence_parallel_mlp,
        _arguments,
        operands=tuple(DIMENSIONS),
        sets=4,
        kinds=("exact", "real", "special", "nan"),
        features=frozenset({"empty_blocks", INDEPENDENT, "explained_errors", "narrow_accumulation", "x64"}),
        violations=(longer("w_in", 1, 0), longer("w_out", 2, 0)),
        most=MOST_MEMBERS,
        adapt=signed,
        accumulator="float32 on a device",
        shapes=(((2048, 4, 2048), 0, ""), ((2048, 8192), 1, ""), ((8192, 2048), 0, "")),
        leading=0,
        least=at_least_a_byte(*sharded_in(DIMENSIONS)),
        implementations={
            "naive": Claim(implementations.sequence_parallel_mlp, communication=NAIVE),
            "bidirectional": Claim(
                implementations.bidirectional_sequence_parallel_mlp,
                communication=BOTH_WAYS,
                # sums of 16-bit floats have twice the bytes of what is gathered, and products are as long
                overlap="exposed<=1/6,directions=2",
            ),
        },
    ),
)
