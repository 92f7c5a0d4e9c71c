"""The contract of a pipeline of layers, of which every participant has one, or every p-th one."""

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import pipeline as implementations
from shardproof.oracles import pipeline
from shardproof.oracles.communication import NOTHING, Cost, summed_replicas
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract, Scope, Violation
from shardproof.properties.contracts.costs import bits, elements, is_replica, replicas, something
from shardproof.properties.contracts.floats import scaled_to
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.operation import APART, Described, Drawn, operation

OF_ONE_LAYER = frozenset({APART, "explained_errors", "replicated_operands", "x64"})
FEATURES = OF_ONE_LAYER | {"several_layers"}

MOST_MEMBERS = 32
"""The largest mesh: a tanh of a tanh, and so on, is a constant in the end."""

MANY = (4, 5, 6, 7, 8, 9, 12, 16)
"""How many microbatches, rows or features there are now and then, and few of the others."""

REACH = 1.5
"""About the largest weight, and the largest element of x: at larger ones tanh has no slope, at smaller ones no bend."""


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    most = 2 if scope.large else 3
    microbatches = draw(st.integers(1, 2 if scope.large else 4), label="microbatches")
    rows, features = draw(st.tuples(st.integers(1, 2), st.integers(1, most)), label="rows, features")
    if not scope.large and draw(st.integers(0, 5), label="many") == 5:
        many = draw(sampled(MANY), label="how many")
        at = draw(st.integers(0, 2), label="which")
        microbatches, rows, features = (many if i == at else n for i, n in enumerate((microbatches, rows, features)))
    layers = 1
    if "several_layers" in scope.features:
        layers = draw(st.integers(1, 2), label="layers of each participant")
    return [Described((layers * features, features)), Described((microbatches, rows, features), varies=False)], {}


def _in_reach(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Weights and x by powers of two, so that layers neither saturate nor vanish; weights are finite.

    One that is NaN makes all results NaN, which tells nothing.
    """
    weights, x = (scaled_to(array, REACH) for array in arrays)
    return [np.where(np.isfinite(weights.astype(np.float64)), weights, np.ones((), weights.dtype)), x]


def _no_layer(case: Case) -> st.SearchStrategy[Case]:
    rows, features = case.operands[0].block
    blocks = [(rows, features + 1), *([(rows + 1, features)] if features > 1 else [])]
    return st.sampled_from(blocks).map(lambda block: changed(case, 0, block=block))


def _batch(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 1, block=(*case.operands[1].block, 1)))


def _integers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 0, dtype="int32"))


def _layers(case: Case) -> int:
    rows, features = case.operands[0].block
    return rows // features


def _whole_layers(case: Case, backward: bool) -> Cost:
    """The result varies as x and the weights do along other axes than those of the tuple."""
    own = pipeline.gathered_cost(elements(case), bits=bits(case))
    beside = set[str]().union(*(operand.placement.axes for operand in case.operands)) - set(case.axes)
    of_x = summed_replicas(elements(case, 1), bits=bits(case)) if is_replica(case.operands[1], beside) else NOTHING
    return own + replicas(case, 0, elements(case), bits(case)) + of_x if backward else own


def _steps(case: Case, backward: bool, steps: int) -> Cost:
    microbatches, rows, features = case.operands[1].block
    own = pipeline.permutes_cost(
        case.participants, microbatches, rows * features, steps=steps, bits=bits(case), backward=backward
    )
    for place in (0, 1) if backward else ():
        own += replicas(case, place, elements(case, place), bits(case))
    return own


def _one_after_the_other(case: Case, backward: bool) -> Cost:
    return _steps(case, backward, pipeline.gpipe_steps(case.participants, case.operands[1].block[0]))


def _round_the_ring(case: Case, backward: bool) -> Cost:
    steps = pipeline.circular_steps(case.participants, case.operands[1].block[0], _layers(case))
    return _steps(case, backward, steps)


CONTRACT: Contract = operation(
    "pipeline",
    pipeline.pipeline,
    _arguments,
    operands=("weights", "x"),
    alike=frozenset({"x"}),
    invariant=True,
    kinds=("real", "nan"),
    sets=2,
    budget="layers",
    features=FEATURES,
    violations=(Violation("weights", _no_layer), Violation("x", _batch), Violation("weights", _integers)),
    most=MOST_MEMBERS,
    terms=lambda case: case.operands[1].block[-1],
    degree=2,
    adapt=_in_reach,
    nonlinear=True,  # its accumulator is that of each layer, whose result is rounded, as it is what travels
    shapes=(((4 * 1024, 1024), 0, ""), ((8, 512, 1024), None, "")),
    leading=1,
    least=something(0),
    implementations={
        "gathered": Claim(implementations.gathered_pipeline, FEATURES, communication=_whole_layers),
        "gpipe": Claim(implementations.pipeline, OF_ONE_LAYER, communication=_one_after_the_other),
        "circular": Claim(implementations.circular_pipeline, FEATURES, communication=_round_the_ring),
    },
)
