"""The contracts of functions that every shard computes by itself: nothing is sent, and no axis is named."""

from typing import Any

from hypothesis import strategies as st

from shardproof.impl import local as implementations
from shardproof.oracles import local
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, of_type
from shardproof.properties.contracts.costs import NOTHING
from shardproof.properties.contracts.operation import Arguments, Drawn, one_matrix, operation

MOST_SHIFT = 9
"""The most rows by which a block is rolled, in either direction: also more than it has."""


def _roll(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    shift = draw(st.integers(-MOST_SHIFT, MOST_SHIFT), label="shift")
    return one_matrix(draw, participants, scope)[0], {"shift": shift}


def _local(name: str, arguments: Arguments, **more: Any) -> Contract:
    """The contract of a function of a block, and one of a global array, whose result is sharded as x is."""
    of_block = getattr(implementations, f"{name}_of_block")
    return operation(
        name,
        getattr(local, f"{name}_of_block"),
        arguments,
        operands=("x",),
        local=True,
        features=frozenset({"x64"}),
        placed=lambda case: (case.operands[0].placement,),
        least=lambda case: 0,
        implementations={
            name.removeprefix("shard_"): Claim(of_block, communication=NOTHING),
            "global": Claim(getattr(implementations, name), communication=NOTHING, whole=True),
        },
        **more,
    )


CONTRACTS: tuple[Contract, ...] = (
    _local("shard_mean", one_matrix, accumulator="float32"),
    _local(
        "shard_roll",
        _roll,
        options={"shift": Option(of_type(int))},
        kinds=("distinct", "exact", "real", "nan", "scaled"),
        linear=True,
    ),
)
