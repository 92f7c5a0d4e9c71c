"""The contract of a mixture of experts, which one axis tuple shards with the tokens.

Each expert is a matrix, or a gated MLP.
"""

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from shardproof.impl import moe as implementations
from shardproof.oracles import moe
from shardproof.oracles.moe.dropping import POLICIES
from shardproof.oracles.moe.routing import GATES
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.strategies.making import sampled
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation, of_type
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import Drawn, Given
from shardproof.properties.contracts.forbidden import longer, longer_block, wrong_dtype, wrong_value
from shardproof.properties.contracts.operation import Params, operation
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


def _sizes_of_a_participant(draw: st.DrawFn, given: Given) -> tuple[str, int, int, int, int]:
    """The name of what is many, if anything is, and a participant's tokens, experts, features and outputs."""
    held = draw(sampled((1, 2, 3)), label="experts of each")
    if given.scope.few:
        return "", 1, held, 2, 1
    many = draw(st.one_of(st.just(""), sampled(("sides", "tokens", "experts"))), label="many")
    if many == "tokens":
        return many, MANY // given.participants, 1, 2, 1
    if many == "experts":
        return many, 1, -(-CROWD // given.participants), 1, 1
    tokens = draw(sampled((1, 2, 3, 4, 5, *((0,) if "empty_blocks" in given.scope.features else ()))), label="tokens")
    features, outputs = draw(st.tuples(st.integers(1, 4), st.integers(1, 2)), label="features, outputs")
    if many == "sides":
        side = draw(sampled(LONG), label="long side")
        features, outputs = draw(sampled(((side, 1), (1, side))), label="features, outputs")
    return many, tokens, held, features, outputs


def _draw_sizes(draw: st.DrawFn, given: Given) -> Drawn:
    many, tokens, held, features, outputs = _sizes_of_a_participant(draw, given)
    sizes = {"tokens": tokens, "experts": held, "features": features, "outputs": outputs}
    experts = given.participants * held
    top_k = min(experts, draw(sampled((1, 2) if many == "tokens" else (1, 2, 3, 8)), label="top_k"))
    share = math.ceil(tokens * given.participants * top_k / experts)
    capacities = (None, share, 1, max(1, share // 2), share + 1, 0, tokens * given.participants)
    policies = POLICIES if "first_senders" in given.scope.features else tuple(p for p in POLICIES if p != "sender")
    params = {
        "top_k": top_k,
        "capacity": draw(sampled(capacities), label="capacity"),
        "policy": draw(sampled(policies), label="policy"),
    }
    if "gates_of_all" in given.scope.features:
        params["over"] = draw(sampled(GATES), label="over")
    if "sender_capacity" in given.scope.features:
        sent = (None, 1, max(1, share // given.participants), 2, 0)
        params["capacity_per_sender"] = draw(sampled(sent), label="capacity_per_sender")
    if "hidden" in given.parts:
        sizes["hidden"] = draw(st.integers(1, 2), label="hidden")
    return Drawn(sizes, params)


def _kinds(scope: Scope, dtype: str, params: Params) -> tuple[str, ...]:
    unknown = {"nan_logits": "nan", "nan_tokens": "special"}
    return ("real", "distinct", *([kind for claim, kind in unknown.items() if claim in scope.features] or ["real"]))


def _more_columns(case: Case) -> st.SearchStrategy[Case]:
    """Experts that are no multiple of the participants that have them, of which there are several."""
    alone = case.operands[1].block[1] == case.operands[2].block[0]
    return st.nothing() if alone else st.just(longer_block(case, 1, 1))


def _wrong_claim(argument: str, *values: Any) -> Violation:
    """Wrong values of what is in a case only of those who claim it."""
    return wrong_value(argument, lambda case: values if argument in case.keywords else ())


def _is_limit(value: Any) -> bool:
    return value is None or type(value) is int


def held(case: Case) -> int:
    """The number of experts of each participant."""
    return case.operands[2].block[0]


def pairs(case: Case) -> int:
    """The pairs of a token and an expert of each participant."""
    return case.operands[0].block[0] * int(case.keywords["top_k"])


def room(case: Case) -> int:
    """The most pairs that a participant can send to one expert, each of another token."""
    options, tokens = case.keywords, case.operands[0].block[0]
    per_sender, capacity = options.get("capacity_per_sender"), options["capacity"]
    most = tokens if per_sender is None else min(tokens, per_sender)
    return most if capacity is None else min(most, capacity * (held(case) if policy(case) == "sender" else 1))


def buffer(case: Case) -> int:
    """The most pairs that a participant can keep."""
    most, capacity = case.participants * min(held(case) * room(case), pairs(case)), case.keywords["capacity"]
    return most if capacity is None else min(most, capacity * held(case))


def policy(case: Case) -> str:
    """The policy; empty if all pairs are kept, since nothing must be agreed on then."""
    return "" if case.keywords["capacity"] is None else str(case.keywords["policy"])


def queue(case: Case) -> int:
    """The entries of a participant's list of the lengths of queues, which decide who is kept.

    They are those of all experts by "position", of every expert's k-th choices by "choice", of every participant's
    buffer by "sender". By "probability" all pairs' experts and gates are gathered instead.
    """
    experts = case.participants * held(case)
    lists = {"position": experts, "choice": case.keywords["top_k"] * experts, "sender": case.participants}
    return lists.get(policy(case), 0)


def _replicated(case: Case) -> list[int]:
    """The elements of each operand that is the same along an axis along which another one varies."""
    along = set(case.axes).union(*(operand.placement.axes for operand in case.operands))
    return [math.prod(o.block) for o in case.operands if along - o.placement.axes and 0 not in o.block]


SIZES: dict[str, Callable[[Case], Any]] = {
    "members": lambda case: case.participants,
    "pairs": pairs,
    "experts": lambda case: case.participants * held(case),
    "outputs": lambda case: case.operands[-1].block[2],
    "matrices": lambda case: len(case.operands) - 2,
    "weights": lambda case: sum(math.prod(operand.block) for operand in case.operands[2:]),
    "room": room,
    "some": lambda case: int(room(case) > 0),
    "buffer": buffer,
    "by_probability": lambda case: int(policy(case) == "probability"),
    "by_choice": lambda case: int(policy(case) == "choice"),
    "queue": queue,
    "casts": lambda case: len(_replicated(case)),
    "cast": lambda case: sum(_replicated(case)),
}
"""`some` is whether any pair can be kept; `cast` counts elements of operands that are replicated, of which there are
`casts`: all operands are cast to the axes along which any of them varies, before anything else is done."""

# A gradient sends again what products need: tokens or weights on their way there, and the outputs of experts on their
# way back, for the gradients of gates, unless these were added up. It also sends the transpose of each way, in the
# accumulator's dtype: cotangents are sums.
NARROW, WIDE, INTEGER = "itemsize(tokens)", "sum_itemsize(tokens)", 4
TOKENS = "size(tokens,1)"
PAIRED = f"pairs*({INTEGER}+{WIDE})"
"""The bytes of all pairs' experts and gates."""

GATHERS, SUMS = "(2*by_probability+(queue>0))", "by_choice"
GATHER_BYTES, SUM_BYTES = f"by_probability*{PAIRED}+{INTEGER}*queue", f"{INTEGER}*by_choice*queue"
"""The collectives that decide who is kept; no token."""


def _claim(forward: dict[str, tuple[str, str]], backward: dict[str, tuple[str, str]], steps: tuple[str, str]) -> str:
    """The claim of collectives beside those, by kind: how many, and their bytes; nothing if no pair is kept."""
    passes = []
    for more, waiting, casts in ((forward, steps[0], ("0", "0")), (backward, steps[1], ("casts", f"cast*{WIDE}"))):
        own = {
            **more,
            "all_gather": _sum((GATHERS, GATHER_BYTES), more.get("all_gather")),
            "all_reduce": _sum(_sum((SUMS, SUM_BYTES), casts), more.get("all_reduce")),
        }
        terms = [f"{kind}=some*({count}),{kind}_bytes=some*({size})" for kind, (count, size) in own.items()]
        terms += [f"steps={waiting}+{GATHERS}+{SUMS}+{casts[0]}"] if waiting else []
        passes.append(",".join(terms))
    return ";grad:".join(passes)


def _sum(one: tuple[str, str], other: tuple[str, str] | None) -> tuple[str, str]:
    return one if other is None else (f"{one[0]}+{other[0]}", f"{one[1]}+{other[1]}")


THERE, BACK = f"experts*room*{TOKENS}*{NARROW}", f"experts*room*outputs*{WIDE}"
BUFFERS = _claim(
    {"all_to_all": ("2", f"{THERE}+{BACK}")},
    {"all_to_all": ("4", f"{THERE}+2*{BACK}+experts*room*{TOKENS}*{WIDE}")},
    ("", ""),
)
"""All-to-alls of a buffer of `room` rows for each of all experts: of tokens, and of what is made of them."""

MADE = f"size(tokens,0)*outputs*{WIDE}"
GATHERED = _claim(
    {"all_gather": ("3", f"tokens+{PAIRED}"), "reduce_scatter": ("1", f"members*{MADE}")},
    {
        "all_gather": ("4", f"tokens+{PAIRED}+{MADE}"),
        "reduce_scatter": ("2", f"members*(elements(tokens)+pairs)*{WIDE}"),
    },
    ("", ""),
)
"""Tokens, choices and gates are gathered, and the sums for all tokens scattered."""

OF_WEIGHTS = {"all_gather": ("matrices", f"weights*{NARROW}")}
WEIGHTS = _claim(OF_WEIGHTS, {**OF_WEIGHTS, "reduce_scatter": ("matrices", f"members*weights*{WIDE}")}, ("", ""))
"""The experts are gathered, and no token travels."""

STEPS = "(members-1)"
RING = _claim(
    {"permute": (f"4*{STEPS}", f"{STEPS}*({MADE}+tokens+{PAIRED})")},
    {"permute": (f"6*{STEPS}", f"{STEPS}*({MADE}+tokens+{PAIRED}+(elements(tokens)+pairs)*{WIDE})")},
    ("members", f"2*{STEPS}"),
)
"""Tokens, choices and gates go to the next participant, and the sums follow them, one step behind."""

LISTS = f"{INTEGER}*(3*members+experts)"
"""Offsets and sizes of each participant, where buffers begin, and how many rows are for which expert."""

SENT, RETURNED = f"pairs*{TOKENS}*{NARROW}", f"buffer*outputs*{WIDE}"
RAGGED = _claim(
    {"all_to_all": ("3", LISTS), "ragged_all_to_all": ("2", f"{SENT}+{RETURNED}")},
    {
        "all_to_all": ("5", f"{LISTS}+{4 * INTEGER}*members"),
        "ragged_all_to_all": ("4", f"{SENT}+{RETURNED}+(buffer*{TOKENS}+pairs*outputs)*{WIDE}"),
    },
    ("", ""),
)
"""Two ragged all-to-alls, of which what the operand holds is counted; backward two more, with two lists each."""

ARRAYS = ("tokens", "router_weights", "expert_weights")
ROUTED, EXPERT = ("tokens@axis_name features", "features experts"), "experts@axis_name features outputs"
GATED = (*["experts@axis_name features hidden"] * 2, "experts@axis_name hidden outputs")

DISPATCHES = {
    "sorted": Claim(implementations.sorted_moe, FEATURES, communication=WEIGHTS),
    "all_gather": Claim(implementations.all_gather_moe, FEATURES, communication=GATHERED),
    "all_to_all": Claim(implementations.all_to_all_moe, FEATURES, communication=BUFFERS),
    "ragged": Claim(implementations.ragged_moe, FEATURES, communication=RAGGED),
    "ring": Claim(implementations.ring_moe, FEATURES, communication=RING),
}

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "moe_layer",
        moe.moe_layer,
        (
            Signature.of(ARRAYS, (*ROUTED, EXPERT), ""),
            Signature.of(ARRAYS, (*ROUTED, GATED), "", feature="gated_experts"),
        ),
        draw_sizes=_draw_sizes,
        options={
            "top_k": Option(of_type(int), lambda case, value: 1 <= value <= case.operands[1].block[1]),
            "capacity": Option(_is_limit, lambda case, n: n is None or n >= 0),
            "policy": Option(of_type(str), lambda case, value: value in POLICIES),
            "over": Option(of_type(str), lambda case, value: value in GATES),
            "capacity_per_sender": Option(_is_limit, lambda case, n: n is None or n >= 0),
        },
        kinds=_kinds,
        least=None,  # nothing is sent where nothing can be kept
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
        adapt=clear,
        accumulator="float32",
        usual_sizes={"tokens": 8192, "features": 1024, "experts": 64, "outputs": 1024},
        usual={"top_k": 2, "capacity": 320, "policy": "probability"},  # a quarter more room than even routing takes
        sizes=SIZES,
        implementations=DISPATCHES,
    ),
)
