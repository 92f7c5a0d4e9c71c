"""The communication of a layer of experts, whose buffers have room for all pairs of a token and an expert.

A gradient sends again what products need: tokens or weights on their way there, and the outputs of experts on their way
back, for the gradients of gates, unless these were added up. It also sends the transpose of each way, in the
accumulator's dtype: cotangents are sums.
"""

import math
from collections.abc import Callable
from typing import Any

from shardproof.properties.cases.case import Case


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

NARROW, WIDE, INTEGER = "itemsize(tokens)", "sum_itemsize(tokens)", 4
TOKENS = "size(tokens,1)"
GATES = f"pairs*({INTEGER}+{WIDE})"
"""The bytes of all pairs' experts and gates."""

GATHERS, SUMS = "(2*by_probability+(queue>0))", "by_choice"
GATHER_BYTES, SUM_BYTES = f"by_probability*{GATES}+{INTEGER}*queue", f"{INTEGER}*by_choice*queue"
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
    {"all_gather": ("3", f"tokens+{GATES}"), "reduce_scatter": ("1", f"members*{MADE}")},
    {
        "all_gather": ("4", f"tokens+{GATES}+{MADE}"),
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
    {"permute": (f"4*{STEPS}", f"{STEPS}*({MADE}+tokens+{GATES})")},
    {"permute": (f"6*{STEPS}", f"{STEPS}*({MADE}+tokens+{GATES}+(elements(tokens)+pairs)*{WIDE})")},
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
