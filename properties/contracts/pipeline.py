"""The contract of a pipeline of layers, of which every participant has one, or every p-th one."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import pipeline as implementations
from shardproof.oracles import pipeline
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Violation
from shardproof.properties.contracts.costs import added_up
from shardproof.properties.contracts.drawing import Drawn, Given, sides
from shardproof.properties.contracts.forbidden import deeper, longer, longer_block, wrong_dtype
from shardproof.properties.contracts.numbers import finite, scaled_to
from shardproof.properties.contracts.operation import INDEPENDENT, operation

FEATURES = frozenset({INDEPENDENT, "explained_errors", "replicated_operands", "several_layers", "x64"})

MANY = (4, 5, 6, 7, 8, 9, 12, 16)
"""The numbers of microbatches, rows or features that are sometimes drawn, beside few of the others."""

REACH = 1.5
"""About the largest weight, and the largest element of x: at larger ones tanh has no slope, at smaller ones no bend."""


def _draw_sizes(draw: st.DrawFn, given: Given) -> Drawn:
    microbatches, batch, features = sides(draw, given.scope, 3, long=MANY)
    layers = (
        draw(st.integers(1, 2), label="layers of each participant") if "several_layers" in given.scope.features else 1
    )
    return Drawn({"microbatches": microbatches, "batch": batch, "features": features, "rows": layers * features})


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Weights and x by powers of two, so that layers neither saturate nor vanish; no weight is NaN: all would be."""
    weights, x = (scaled_to(array, REACH) for array in arrays)
    return [finite(weights), x]


def _no_layer(case: Case) -> st.SearchStrategy[Case]:
    return st.just(longer_block(case, 0, 0)) if case.operands[0].block[1] > 1 else st.nothing()


def _spread(case: Case) -> int:
    """True if weights vary along an axis beside the tuple along which x does not, so that the result does."""
    weights, x = (operand.placement.axes for operand in case.operands)
    return int(bool(weights - x - set(case.axes)))


def _handed_on(moves: str) -> str:
    """A microbatch is sent in `moves` permutes, and the result added up with zeros; backward it goes there and back."""
    sent = f"({moves})*(p>1)"
    size = "size(x,1)*size(x,2)*itemsize(x)"
    forward = f"permute={sent},permute_bytes={sent}*{size},all_reduce=1,all_reduce_bytes=x"
    return f"{forward};grad:permute=2*{sent},permute_bytes=2*{sent}*{size},{added_up('weights', 'x')}"


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "pipeline",
        pipeline.pipeline,
        {"weights": "rows@axis_name features", "x": "microbatches batch features"},
        draw_sizes=_draw_sizes,
        invariant=True,
        kinds=("real", "nan"),
        features=FEATURES,
        violations=(
            longer("weights", 0, 1),
            Violation("weights", _no_layer),
            deeper("x", 1),
            wrong_dtype("weights", 0, "int32"),
        ),
        # a tanh of a tanh, and so on, is a constant in the end
        most=32,
        adapt=_in_reach,
        usual_sizes={"rows": 4 * 1024, "features": 1024, "microbatches": 8, "batch": 512},
        leading=1,
        sizes={"spread": _spread},
        implementations={
            "circular": Claim(
                implementations.pipeline,
                # a round of the first participant takes M steps, or p if it must wait (GPipe, section 2.3, of one)
                communication=_handed_on("(size(weights,0)/size(weights,1)-1)*max(size(x,0),p)+size(x,0)+p-2"),
            ),
        },
    ),
)
