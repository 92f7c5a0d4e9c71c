"""The contracts of what every shard computes by itself: nothing is sent, and there is no axis to name."""

from hypothesis import strategies as st

from shardproof.impl import local as implementations
from shardproof.oracles import local
from shardproof.properties.cases.case import Case, Placement
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.contract import Claim, Contract, Scope
from shardproof.properties.contracts.costs import NOTHING
from shardproof.properties.contracts.drawing import sides
from shardproof.properties.contracts.operation import Described, Drawn, operation

FEATURES = frozenset({"x64"})

MOST_SHIFT = 9
"""By how many rows a block is rolled, at most, in either direction: also by more than it has."""


def _mean(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    return [Described(sides.within(draw, scope, 2))], {}


def _roll(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    shift = draw(st.integers(-MOST_SHIFT, MOST_SHIFT), label="shift")
    return [Described(sides.within(draw, scope, 2))], {"shift": shift}


def _as_operand(case: Case) -> tuple[Placement, ...]:
    """A global array of means has a row for every shard, which is where those of the operand are."""
    return (case.operands[0].placement,)


CONTRACTS: tuple[Contract, ...] = (
    operation(
        "shard_mean",
        local.shard_mean_of_block,
        _mean,
        operands=("x",),
        local=True,
        features=FEATURES,
        accumulator="float32",
        placed=_as_operand,
        least=lambda case: 0,
        implementations={
            "mean": Claim(implementations.shard_mean_of_block, communication=NOTHING),
            "global": Claim(implementations.shard_mean, communication=NOTHING, whole=True),
        },
    ),
    operation(
        "shard_roll",
        local.shard_roll_of_block,
        _roll,
        operands=("x",),
        options={"shift": Option(of_type(int))},
        local=True,
        kinds=("distinct", "exact", "real", "nan", "scaled"),
        features=FEATURES,
        linear=True,
        placed=_as_operand,
        least=lambda case: 0,
        implementations={
            "roll": Claim(implementations.shard_roll_of_block, communication=NOTHING),
            "global": Claim(implementations.shard_roll, communication=NOTHING, whole=True),
        },
    ),
)
