"""Relations of gradients: an expert that nobody chooses has none, and a token that is NaN is in no other's."""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.laws.relations.call import Call, Runs
from shardproof.properties.laws.relations.operands import bound
from shardproof.properties.laws.relations.relation import Finding, Pair, different_rows, numbers
from shardproof.properties.laws.relations.settings import Setting, kinds, settings
from shardproof.properties.programs.implementations import Implementation


def _cotangents(call: Call, rng: np.random.Generator) -> np.ndarray:
    """Numbers of which none is zero, and no sums of a few are."""
    shape = (len(call.tokens), call.experts.shape[2])
    return (rng.choice([-1, 1], shape) * rng.uniform(0.5, 1, shape)).astype(np.float32)


@st.composite
def with_idle_experts(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """Some experts that no token chooses; a single call.

    Holds by every policy, and whatever is dropped. That all others learn holds where each keeps a token: by all
    policies but "sender", unless nothing is kept, and by that as well where nothing is dropped.
    """
    setting = draw(settings(implementation, scope))
    if draw(st.booleans(), label="room for all"):
        setting = setting.unlimited()
    if setting.experts == 1:
        setting = dataclasses.replace(setting, held=2)
    setting = setting.having(top_k=min(setting.options["top_k"], setting.experts - 1))
    rng, top_k = setting.rng(), setting.options["top_k"]
    idle = np.sort(rng.permutation(setting.experts)[: rng.integers(1, setting.experts - top_k + 1)])
    call = setting.call(draw(kinds(repeated=True)), rng, avoided=idle.tolist())
    logits = call.tokens.astype(np.float64) @ call.router
    chosen = np.unique(np.argsort(-logits, axis=1, kind="stable")[:, :top_k])
    details = {"idle": idle, "busy": chosen if _all_keep(setting) else chosen[:0], "cotangents": _cotangents(call, rng)}
    every = np.arange(setting.count)
    change = f"nobody chooses experts {' '.join(map(str, idle))}"
    return Pair((call,), change, (every, every), np.zeros(()), details)


def _all_keep(setting: Setting) -> bool:
    """Whether every expert that is chosen keeps a token."""
    limits = setting.options["capacity"], setting.options.get("capacity_per_sender")
    return not setting.limited or (0 not in limits and setting.options["policy"] != "sender")


def learned(pair: Pair, results: Runs) -> Finding | None:
    """The first idle expert that has a gradient, or the first busy one that has none."""
    gradient = results[0][2]
    for expert in pair.details["idle"]:
        if (gradient[expert] != 0).any():
            shown = (("its gradient", numbers(gradient[expert])),)
            return Finding(f"expert {expert}, which nobody chooses, has a gradient that is not zero", shown)
    for expert in pair.details["busy"]:
        if not gradient[expert].any():
            return Finding(f"expert {expert}, which keeps a token, has a gradient of zeros")
    return None


@st.composite
def with_a_token_of_nan(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """One token that is zero, and NaN in the second call: all its logits are equal, and it chooses the first experts.

    Holds by every policy, since it is kept, or dropped, by the same experts in both. In half of the cases nothing is
    dropped: the gradients of its experts are NaN.
    """
    setting = draw(settings(implementation, scope))
    if draw(st.booleans(), label="room for all"):
        setting = setting.unlimited()
    call = setting.call(draw(kinds()))
    rng = setting.rng()
    lost = int(rng.integers(setting.count))
    tokens = call.tokens.copy()
    tokens[lost] = 0
    first, spoilt = dataclasses.replace(call, tokens=tokens), tokens.copy()
    spoilt[lost] = np.nan
    others = np.delete(np.arange(setting.count), lost)
    off = bound(tokens, call.experts, setting.options["top_k"])
    details = {
        "first": np.arange(setting.options["top_k"]),
        "all": np.array(not setting.limited),
        "cotangents": _cotangents(call, rng),
    }
    second = dataclasses.replace(call, tokens=spoilt)
    return Pair((first, second), f"token {lost} is NaN, and not zero", (others, others), off, details)


def spread(pair: Pair, results: Runs) -> Finding | None:
    """The first token whose result or gradient is another, or the first expert whose gradient should not be."""
    found = different_rows(pair, [run[0] for run in results])
    if found is not None:
        return found
    rows, backward = pair.rows[0], _bounds(pair)
    for name, off, keeps, (one, other) in (
        ("token", backward[0], rows, [run[1] for run in results]),
        ("expert", backward[1], np.arange(len(results[0][2])), [run[2] for run in results]),
    ):
        for at in keeps:
            if (np.abs(one[at].astype(np.float64) - other[at]) <= off[at]).all():
                if name == "token" or at not in pair.details["first"] or not pair.details["all"]:
                    continue
            elif name == "expert" and at in pair.details["first"] and np.isnan(other[at]).all():
                continue
            shown = (("with a token of zeros", numbers(one[at])), ("with one of NaN", numbers(other[at])))
            return Finding(f"{name} {at} has another gradient", shown)
    return None


def _bounds(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """How far gradients of tokens `[N, D]` and of experts `[E, D, F]` may be off.

    That of an expert is a sum over tokens; that of a token one over its choices of products with the expert's columns,
    and by the gates of products with the router's rows: of each of E logits at most twice the largest product of a
    result and its cotangent. Roundings are counted as in `bound`.
    """
    call, cotangents = pair.calls[0], np.abs(pair.details["cotangents"]).astype(np.float64)
    tokens, router = (np.abs(x).astype(np.float64) for x in (call.tokens, call.router))
    largest = np.abs(call.experts).max(axis=0).astype(np.float64)
    steps = 2 * (sum(call.experts.shape) + len(tokens) + call.options["top_k"] + 12) * 2.0**-24
    through_gates = ((tokens @ largest) * cotangents).sum(axis=1)[:, None] * 2 * router.sum(axis=1)
    of_tokens = steps * (cotangents @ largest.T + through_gates)
    of_experts = np.broadcast_to(steps * tokens.T @ cotangents, call.experts.shape)
    return of_tokens, of_experts
