"""The contract of a mixture of experts, which one axis tuple shards with the tokens.

Each expert is a matrix, or a gated MLP.
"""

import math
from typing import Any

from hypothesis import strategies as st

from shardproof.impl import moe as implementations
from shardproof.oracles import moe
from shardproof.oracles.moe.dropping import POLICIES
from shardproof.oracles.moe.routing import GATES
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts import moe_claims
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation, of_type
from shardproof.properties.contracts.forbidden import longer, longer_block, wrong_dtype, wrong_value
from shardproof.properties.contracts.operation import Described, Drawn, Params, operation
from shardproof.properties.contracts.token_classes import clear

FEATURES = frozenset({
    "empty_blocks", "explained_errors", "first_senders", "gated_experts", "gates_of_all", "nan_logits", "nan_tokens",
    "replicated_operands", "sender_capacity", "x64",
})  # fmt: skip

MANY = 520
"""The tokens of all participants, where there are many: too many to be counted in 8 bits, or in bfloat16."""

CROWD = 384
"""Many experts: more than numbers of 8 bits are, and than bfloat16 has odd ones for."""

LONG = (9, 12, 17, 65, 130)
"""Long sides, above and between the sizes of tiles."""

MOST_MEMBERS = 64
"""The largest mesh: there are as many experts as participants, and a token has a logit for each of them."""


def _sizes(draw: st.DrawFn, participants: int, scope: Scope) -> tuple[str, int, int, int, int]:
    """The sizes of a participant: its tokens, experts, features and outputs; first the name of what is many, if any."""
    held = draw(sampled((1, 2, 3)), label="experts of each")
    if scope.large:
        return "", 1, held, 2, 1
    many = draw(st.one_of(st.just(""), sampled(("sides", "tokens", "experts"))), label="many")
    if many == "tokens":
        return many, MANY // participants, 1, 2, 1
    if many == "experts":
        return many, 1, -(-CROWD // participants), 1, 1
    tokens = draw(sampled((1, 2, 3, 4, 5, *((0,) if "empty_blocks" in scope.features else ()))), label="tokens")
    features, outputs = draw(st.tuples(st.integers(1, 4), st.integers(1, 2)), label="features, outputs")
    if many == "sides":
        side = draw(sampled(LONG), label="long side")
        features, outputs = draw(sampled(((side, 1), (1, side))), label="features, outputs")
    return many, tokens, held, features, outputs


def _arguments(draw: st.DrawFn, participants: int, scope: Scope) -> Drawn:
    many, tokens, held, features, outputs = _sizes(draw, participants, scope)
    experts = participants * held
    top_k = min(experts, draw(sampled((1, 2) if many == "tokens" else (1, 2, 3, 8)), label="top_k"))
    share = math.ceil(tokens * participants * top_k / experts)
    capacities = (None, share, 1, max(1, share // 2), share + 1, 0, tokens * participants)
    policies = POLICIES if "first_senders" in scope.features else tuple(p for p in POLICIES if p != "sender")
    params = {
        "top_k": top_k,
        "capacity": draw(sampled(capacities), label="capacity"),
        "policy": draw(sampled(policies), label="policy"),
    }
    if "gates_of_all" in scope.features:
        params["over"] = draw(sampled(GATES), label="over")
    if "sender_capacity" in scope.features:
        sent = (None, 1, max(1, share // participants), 2, 0)
        params["capacity_per_sender"] = draw(sampled(sent), label="capacity_per_sender")
    router = Described((features, experts), varies=False)
    arrays = [Described((tokens, features)), router]
    if "gated_experts" in scope.features and draw(st.booleans(), label="gated experts"):
        hidden = draw(st.integers(1, 2), label="hidden")
        gate = Described((held, features, hidden))
        return [*arrays, gate, gate, Described((held, hidden, outputs))], params
    return [*arrays, Described((held, features, outputs))], params


def _kinds(scope: Scope, dtype: str, params: Params) -> tuple[str, ...]:
    unknown = {"nan_logits": "nan", "nan_tokens": "special"}
    return ("real", "distinct", *(kind for feature, kind in unknown.items() if feature in scope.features))


def _more_columns(case: Case) -> st.SearchStrategy[Case]:
    """Experts that are no multiple of the participants that have them, of which there are several."""
    alone = case.operands[1].block[1] == case.operands[2].block[0]
    return st.nothing() if alone else st.just(longer_block(case, 1, 1))


def _wrong_claim(argument: str, *values: Any) -> Violation:
    """Wrong values of what is in a case only of those who claim it."""
    return wrong_value(argument, lambda case: values if argument in case.keywords else ())


def _is_limit(value: Any) -> bool:
    return value is None or type(value) is int


NAMES = ("tokens", "router_weights")
ARRAYS = (*NAMES, "expert_weights")
GATED = tuple(f"expert_weights[{i}]" for i in range(3))

DISPATCHES = {
    "sorted": Claim(implementations.sorted_moe, FEATURES, communication=moe_claims.WEIGHTS),
    "all_gather": Claim(implementations.all_gather_moe, FEATURES, communication=moe_claims.GATHERED),
    "all_to_all": Claim(implementations.all_to_all_moe, FEATURES, communication=moe_claims.BUFFERS),
    "ragged": Claim(implementations.ragged_moe, FEATURES, communication=moe_claims.RAGGED),
    "ring": Claim(implementations.ring_moe, FEATURES, communication=moe_claims.RING),
}

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "moe_layer",
        moe.moe_layer,
        _arguments,
        operands=ARRAYS,
        tree=ARRAYS,
        deeper=((*NAMES, GATED),),
        options={
            "top_k": Option(of_type(int), lambda case, value: 1 <= value <= case.operands[1].block[1]),
            "capacity": Option(_is_limit, lambda case, n: n is None or n >= 0),
            "policy": Option(of_type(str), lambda case, value: value in POLICIES),
            "over": Option(of_type(str), lambda case, value: value in GATES),
            "capacity_per_sender": Option(_is_limit, lambda case, n: n is None or n >= 0),
        },
        kinds=_kinds,
        sets=3,
        features=FEATURES,
        violations=(
            wrong_value("top_k", lambda case: (0, -1, case.operands[1].block[1] + 1)),
            wrong_value("capacity", lambda case: (-1,)),
            wrong_value("policy", lambda case: ("random", "", "POSITION")),
            _wrong_claim("over", "kept"),
            _wrong_claim("capacity_per_sender", -1),
            Violation("router_weights", _more_columns),
            longer("router_weights", 1, 0),
            longer("expert_weights", 2, 1),
            wrong_dtype("tokens", 0, "int32"),
        ),
        most=MOST_MEMBERS,
        replicated=("router_weights",),
        adapt=clear,
        accumulator="float32",
        shapes=(((8192, 1024), 0, ""), ((1024, 64), None, ""), ((64, 1024, 1024), 0, "")),
        usual={"top_k": 2, "capacity": 320, "policy": "probability"},  # a quarter more room than even routing takes
        sizes=moe_claims.SIZES,
        implementations=DISPATCHES,
    ),
)
