"""The contracts of load_balancing_loss and router_z_loss, of the tokens of all participants."""

import zlib
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import router_losses as implementations
from shardproof.oracles import router_losses
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract, Option, of_type
from shardproof.properties.contracts.drawing import Drawn, Given
from shardproof.properties.contracts.forbidden import wrong_dtype, wrong_value
from shardproof.properties.contracts.operation import operation

SHIFTS = (0, 96, -96)
"""Shifts of all logits of a data set, or, in every second one, of each token's: powers overflow in float32, or vanish,
although probabilities do not. In a quarter of the data sets logits are 1, -1 or 0, and often tie."""

EXPERTS = (2, 3, 4, 5, 1)
"""The numbers of experts; with one nothing is chosen."""

MANY = 300
"""The tokens of a participant for each expert, where there are many: more than bfloat16 counts."""


def _draw_sizes(draw: st.DrawFn, given: Given, *, chooses: bool) -> Drawn:
    experts = draw(sampled((2,) if given.scope.few else EXPERTS), label="experts")
    tokens = draw(sampled((1,) if given.scope.few else (1, 2, 3, 4, MANY * experts)), label="tokens")
    # where all are chosen the loss is 1
    top_k = {"top_k": draw(st.integers(1, experts), label="top_k")} if chooses else {}
    return Drawn({"tokens": tokens, "experts": experts}, top_k)


def _shifted(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    (logits,) = arrays
    drawn = zlib.crc32(logits.tobytes())
    style, separately, tied = drawn % 3, drawn // 3 % 2, drawn // 6 % 4 == 0
    levels = np.sign(logits) if tied else logits
    each = np.random.default_rng(drawn).choice(SHIFTS, (*logits.shape[:-1], 1))
    return [levels + np.asarray(each if separately else SHIFTS[style]).astype(logits.dtype)]


def _loss(name: str, *, communication: str, **more: Any) -> Contract:
    """The contract of a loss of the tokens of all participants."""
    chooses = name == "load_balancing_loss"
    top_k = Option(of_type(int), lambda case, value: 1 <= value <= case.operands[0].block[1])
    too_many = wrong_value("top_k", lambda case: (0, case.operands[0].block[1] + 1))
    return operation(
        name,
        getattr(router_losses, name),
        {"logits": "tokens@axis_name experts"},
        draw_sizes=partial(_draw_sizes, chooses=chooses),
        kinds=("real", "exact", "real"),
        options={"top_k": top_k} if chooses else {},
        usual={"top_k": 2} if chooses else {},
        violations=(*[too_many] * chooses, wrong_dtype("logits", 0, "int32")),
        adapt=_shifted,
        accumulator="float32",
        usual_sizes={"tokens": 8192, "experts": 64},
        invariant=True,
        implementations={"sums": Claim(getattr(implementations, name), communication=communication)},
        **more,
    )


CONTRACTS: tuple[Contract, ...] = (
    _loss(
        "load_balancing_loss",  # choices, and probabilities
        communication="all_reduce=2,bytes=size(logits,1)*(4+sum_itemsize(logits));"
        "grad:all_reduce=1,bytes=4*size(logits,1)",
        least=None,  # where all experts are chosen the loss is 1
    ),
    _loss(
        "router_z_loss",
        communication="all_reduce=1,bytes=sum_itemsize(logits);grad:bytes=0",
    ),
)
