"""The contracts of load_balancing_loss and router_z_loss, of the tokens of all participants, and of each shard's."""

import zlib
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import router_losses as implementations
from shardproof.oracles import router_losses
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.contract import Claim, Contract, Scope
from shardproof.properties.contracts.costs import NOTHING, something
from shardproof.properties.contracts.forbidden import retyped, valued
from shardproof.properties.contracts.operation import Described, Drawn, operation

FEATURES = frozenset({"explained_errors", "replicated_operands", "x64"})
KINDS = ("real", "exact", "real")

SHIFTS = (0, 0, 96, -96)
"""What is added to all logits of a data set, and in every second one of any kind to those of each token by itself:
powers overflow in float32, or vanish, although probabilities do not. Those of the second kind are 1, -1 or 0, and often
tie."""

EXPERTS = (2, 3, 4, 5, 1)
"""How many there are; with one nothing is chosen."""

MANY = 300
"""The tokens of a participant for each expert, where there are many: more than bfloat16 counts."""


def _logits(draw: st.DrawFn, scope: Scope) -> Described:
    experts = draw(sampled((2,) if scope.large else EXPERTS), label="experts")
    tokens = draw(sampled((1,) if scope.large else (1, 2, 3, 4, MANY * experts)), label="tokens")
    return Described((tokens, experts))


def _balanced(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    logits = _logits(draw, scope)
    # where all are chosen the loss is 1, whatever they are: in one of so many draws
    return [logits], {"top_k": draw(st.integers(1, logits.block[1]), label="top_k")}


def _small(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    return [_logits(draw, scope)], {}


def _shifted(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    (logits,) = arrays
    drawn = zlib.crc32(logits.tobytes())
    style, apart = drawn % len(SHIFTS), drawn // len(SHIFTS) % 2
    levels = np.sign(logits) if style == 1 else logits
    each = np.random.default_rng(drawn).choice(SHIFTS, (*logits.shape[:-1], 1))
    return [levels + np.asarray(each if apart else SHIFTS[style]).astype(logits.dtype)]


TOO_MANY = valued("top_k", lambda case: (0, case.operands[0].block[1] + 1))
INTEGERS = retyped("logits", 0, "int32")

SHARED: dict[str, Any] = {
    "operands": ("logits",),
    "kinds": KINDS,
    "sets": 3,
    "adapt": _shifted,
    "accumulator": "float32",
    "shapes": (((8192, 64), 0, ""),),
}
"""What is the same of all of them."""

OF_CHOICES: dict[str, Any] = {
    "options": {"top_k": Option(of_type(int), lambda case, value: 1 <= value <= case.operands[0].block[1])},
    "usual": {"top_k": 2},
}
"""What goes with counting choices."""

OF_ALL: dict[str, Any] = {"invariant": True, "features": FEATURES}
"""What goes with the tokens of all participants."""

OF_SHARD: dict[str, Any] = {"local": True, "features": frozenset({"explained_errors", "x64"}), "least": lambda case: 0}
"""What goes with those of a shard."""

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "load_balancing_loss",
        router_losses.load_balancing_loss,
        _balanced,
        violations=(TOO_MANY, INTEGERS),
        implementations={
            "sums": Claim(
                implementations.load_balancing_loss,
                FEATURES,
                # choices, and probabilities
                communication="all_reduce=2,bytes=size(logits,1)*(4+sum_itemsize(logits));grad:all_reduce=1,bytes=4*size(logits,1)",
            ),
        },
        **SHARED | OF_CHOICES | OF_ALL,
    ),
    operation(
        "router_z_loss",
        router_losses.router_z_loss,
        _small,
        violations=(INTEGERS,),
        least=something(0),
        implementations={
            "sums": Claim(
                implementations.router_z_loss,
                FEATURES,
                communication="all_reduce=1,bytes=sum_itemsize(logits);grad:bytes=0",
            ),
        },
        **SHARED | OF_ALL,
    ),
    operation(
        "shard_load_balancing_loss",
        router_losses.shard_load_balancing_loss,
        _balanced,
        violations=(TOO_MANY, INTEGERS),
        implementations={
            "sums": Claim(implementations.shard_load_balancing_loss, OF_SHARD["features"], communication=NOTHING),
        },
        **SHARED | OF_CHOICES | OF_SHARD,
    ),
    operation(
        "shard_router_z_loss",
        router_losses.shard_router_z_loss,
        _small,
        violations=(INTEGERS,),
        implementations={
            "sums": Claim(implementations.shard_router_z_loss, OF_SHARD["features"], communication=NOTHING),
        },
        **SHARED | OF_SHARD,
    ),
)
