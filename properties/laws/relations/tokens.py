"""Relations of results: permuted tokens, relabelled experts, another mesh, more room, padding."""

import dataclasses
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.laws.relations.call import Call, Runs
from shardproof.properties.laws.relations.operands import Kind, bound
from shardproof.properties.laws.relations.relation import Finding, Pair, numbers
from shardproof.properties.laws.relations.settings import (
    MOST_EXPERTS,
    MOST_TOKENS,
    Setting,
    kinds,
    other_places,
    places_alike,
    roomy,
    settings,
)
from shardproof.properties.programs.implementations import Implementation


def pair_of(first: Call, second: Call, change: str, rows: tuple[np.ndarray, np.ndarray] | None = None) -> Pair:
    """Two calls, the same tokens of which are compared, in their order if `rows` says no other."""
    every = np.arange(len(first.tokens))
    off = bound(first.tokens, first.experts, first.options["top_k"])
    return Pair((first, second), change, (every, every) if rows is None else rows, off)


@st.composite
def permuted(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """The same tokens in another order.

    Holds by "probability", where gates alone say who is kept, if none are equal; by every policy where nothing is
    dropped. What senders drop themselves depends on which tokens one has: there, senders change places, each with all
    of its tokens, which it has in another order.
    """
    setting = draw(settings(implementation, scope))
    if setting.limited and setting.options["policy"] != "probability":
        by_gates = draw(st.integers(0, 3), label="by gates") > 0
        setting = setting.having(policy="probability") if by_gates else setting.unlimited()
    setting = with_different_gates(setting)
    call = setting.call(draw(kinds()))
    rng, size = setting.rng(), setting.tokens
    if setting.senders_matter:
        blocks = rng.permutation(setting.place.shards)
        order = np.concatenate([block * size + rng.permutation(size) for block in blocks])
    else:
        order = rng.permutation(setting.count)
    second = dataclasses.replace(call, tokens=call.tokens[order])
    rows = (order, np.arange(len(order)))
    return pair_of(call, second, f"its tokens are those in the order {' '.join(map(str, order))}", rows)


def with_different_gates(setting: Setting) -> Setting:
    """The setting with gates that can differ where they decide, or with room for all."""
    options = setting.options
    if options["policy"] != "probability" or not setting.limited:
        return setting
    if setting.experts == 1:
        return setting.unlimited()
    if options["top_k"] == 1 and options.get("over", "chosen") == "chosen":
        return setting.having(over="all") if "over" in options else setting.having(top_k=2)
    return setting


@st.composite
def relabelled(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """The same experts under other numbers, with their columns of the router.

    Holds by "probability", "position" and "choice", each of which fills every expert's room by itself, so long as no
    token has equal logits, of which the lowest number wins. By "sender" the experts of a participant share one room:
    there, participants change places, each with all of its experts in their order.
    """
    setting = draw(settings(implementation, scope))
    call = setting.call(draw(kinds(repeated=True)))
    rng, held = setting.rng(), setting.held
    if setting.options["policy"] == "sender" and setting.options["capacity"] is not None:
        order = np.concatenate([p * held + np.arange(held) for p in rng.permutation(setting.place.participants)])
    else:
        order = rng.permutation(setting.experts)
    second = dataclasses.replace(call, router=call.router[:, order], experts=call.experts[order])
    return pair_of(call, second, f"its experts are those in the order {' '.join(map(str, order))}")


@st.composite
def elsewhere(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """The same arrays on another mesh, over axes of its own.

    Holds by "probability", "position" and "choice", whose capacity counts over all participants, with equal gates and
    logits as well: ties go to the first token, and to the lowest expert, whoever has them. What counts by the sender,
    the policy "sender" and what senders drop themselves, depends on who has which tokens: there, the other mesh has as
    many participants, on other axes, in another order.
    """
    setting = draw(settings(implementation, scope))
    if setting.senders_matter:
        place = draw(places_alike(setting.place, scope))
    else:
        own = setting.place
        near = other_places(implementation, scope).filter(lambda p: math.lcm(own.shards, p.shards) <= MOST_TOKENS)
        places = draw(st.tuples(near, near))
        place = next((p for p in places if not p.in_mesh_order), places[0])
        rows, experts = math.lcm(own.shards, place.shards), math.lcm(own.participants, place.participants)
        each = max(1, min(setting.tokens * own.shards, MOST_TOKENS) // rows)
        held = max(1, min(setting.experts, MOST_EXPERTS) // experts)
        setting = dataclasses.replace(
            setting, tokens=each * rows // own.shards, held=held * experts // own.participants
        )
        setting = draw(roomy(setting.having(top_k=min(setting.options["top_k"], setting.experts))))
    call = setting.call(draw(kinds(repeated=True, tied=True)))
    return pair_of(call, dataclasses.replace(call, place=place), f"on {place}")


@st.composite
def with_more_room(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """The same with a larger capacity, or none; experts tell who they are.

    Holds by every policy, whose order does not depend on the capacity. What senders may send grows only where
    receivers have room for all: among what more of them send, others may come first.
    """
    setting = draw(settings(implementation, scope))
    of_senders = setting.options["capacity"] is None and setting.options.get("capacity_per_sender") is not None
    name = "capacity_per_sender" if of_senders else "capacity"
    less = draw(st.integers(0, setting.share + 1), label="less room")
    more = draw(st.one_of(st.integers(less + 1, less + 3), st.none()), label="more room")
    call = setting.having(**{name: less}).call(
        Kind(repeated=draw(st.booleans(), label="repeated tokens"), tied=False, telling=True)
    )
    return pair_of(call, call.with_options(**{name: more}), f"{name}={more!r}")


def lost(pair: Pair, results: Runs) -> Finding | None:
    """The first gate that is counted with less room, and is not, or is another one, with more."""
    less, more = (run[0].astype(np.float64) for run in results)
    wrong = (less != 0) & ~(np.abs(less - more) <= pair.bound)
    if wrong.any():
        token, expert = map(int, np.argwhere(wrong)[0])
        return Finding(
            f"token {token} loses expert {expert} with more room, with {wrong.sum()} such pairs",
            (("its gate with less room", numbers(less[token, expert])), ("with more", numbers(more[token, expert]))),
        )
    for call, gates in zip(pair.calls, (less, more), strict=True):
        found = _miscounted(call, gates)
        if found is not None:
            return found
    return None


def _miscounted(call: Call, gates: np.ndarray) -> Finding | None:
    """More pairs than an expert has room for, or fewer than all where there is room for all."""
    capacity, sent = call.options["capacity"], call.options.get("capacity_per_sender")
    kept = gates != 0
    if capacity is not None and call.options["policy"] != "sender" and (kept.sum(axis=0) > capacity).any():
        expert = int(np.argmax(kept.sum(axis=0) > capacity))
        return Finding(f"expert {expert} keeps {kept[:, expert].sum()} tokens with capacity={capacity}")
    is_room = (capacity is None or capacity >= len(gates)) and (sent is None or sent >= len(gates))
    short = kept.sum(axis=1) < call.options["top_k"]
    if is_room and short.any():
        token = int(np.argmax(short))
        what = f"token {token} is kept by {kept[token].sum()} of its {call.options['top_k']} experts"
        return Finding(f"{what}, where there is room for all")
    return None
