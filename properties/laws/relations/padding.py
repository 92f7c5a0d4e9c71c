"""The relation of padding: rows that fill up blocks, and choose experts that no token does, change no token's result.

With them a shard may have no token at all, and all that it has may be dropped.
"""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardproof.properties.contracts import Scope
from shardproof.properties.laws.relations.call import Runs
from shardproof.properties.laws.relations.operands import bound
from shardproof.properties.laws.relations.relation import Finding, Pair, different_rows, numbers
from shardproof.properties.laws.relations.settings import Setting, kinds, roomy, settings
from shardproof.properties.programs.implementations import Implementation

MOST_CHOICES = 3
"""There are twice as many experts, or more: those of tokens, and those of padding."""


@st.composite
def padded(draw: Any, implementation: Implementation, scope: Scope) -> Pair:
    """The same tokens in the same order, among rows of padding that choose other experts.

    Holds by "probability", "position" and "choice", by which no expert's queue depends on another's, wherever padding
    stands, and however many of the tokens each shard has: one has none in every second case. Where senders matter, by
    "sender" and where they drop themselves, each keeps the tokens that it has, and if one has none the first call has
    padding as well, but less; by "sender" the experts of padding are all those of one participant, since those of one
    share their room.

    Rows of padding are all alike, so that their experts keep the first of them.
    """
    setting = draw(settings(implementation, scope))
    alone = draw(st.booleans(), label="a shard without tokens") and setting.place.shards > 1
    dropped = alone and draw(st.booleans(), label="whose rows are all dropped")
    setting = _with_room_for_padding(setting)
    if dropped and setting.options["policy"] == "sender":
        setting = setting.having(policy="position")
    setting = draw(roomy(setting))
    if dropped:
        setting = setting.having(capacity=1, capacity_per_sender=None)
    rng = setting.rng()
    others = _experts_of_padding(setting, rng)
    call = setting.call(draw(kinds(repeated=True)), rng, avoided=others.tolist())
    counts = _counts(setting, rng, alone=alone, last=dropped)
    more = draw(st.integers(int(len({*counts}) == 1 or dropped or setting.senders_matter), 2), label="rows of padding")
    block = int(counts.max()) + more
    compact = np.arange(len(call.tokens))
    first = compact, call.tokens
    if setting.senders_matter and alone:  # whose tokens are whose is to stay
        first = _among_padding(call.tokens, counts, block - more, rng)
    at, rows = _among_padding(call.tokens, counts, block, rng)
    one, other = (dataclasses.replace(call, tokens=tokens) for tokens in (first[1], rows))
    padding = np.setdiff1d(np.arange(len(rows)), at)
    here, there = (" ".join(map(str, places)) for places in (first[0], at))
    change = f"in {len(rows)} rows, with those at {here} at {there}, and padding elsewhere"
    off = bound(one.tokens, call.experts, setting.options["top_k"])
    details = {"padding": padding, "kept": _kept(setting, padding, block)}
    return Pair((one, other), change, (first[0], at), off, details)


def _among_padding(
    tokens: np.ndarray, counts: np.ndarray, block: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Where tokens stand among rows of padding, so many of them in each block, and all rows."""
    at = np.concatenate([i * block + np.sort(rng.permutation(block)[:n]) for i, n in enumerate(counts)])
    rows = np.zeros((block * len(counts), tokens.shape[1]), np.float32)
    rows[:, 0], rows[:, -1] = -1, 1
    rows[at] = tokens
    return at, rows


def _with_room_for_padding(setting: Setting) -> Setting:
    """With experts enough for tokens and for padding."""
    shared = setting.options["policy"] == "sender" and setting.options["capacity"] is not None
    if shared and setting.place.participants == 1:
        setting, shared = setting.having(policy="position"), False
    top_k = min(setting.options["top_k"], MOST_CHOICES)
    needed = top_k if shared else -(-2 * top_k // setting.place.participants)
    return dataclasses.replace(setting.having(top_k=top_k), held=max(setting.held, needed))


def _experts_of_padding(setting: Setting, rng: np.random.Generator) -> np.ndarray:
    """The experts that padding may choose."""
    if setting.options["policy"] == "sender" and setting.options["capacity"] is not None:
        return rng.integers(setting.place.participants) * setting.held + np.arange(setting.held)
    most = setting.experts - setting.options["top_k"]
    return rng.permutation(setting.experts)[: rng.integers(setting.options["top_k"], most + 1)]


def _counts(setting: Setting, rng: np.random.Generator, *, alone: bool, last: bool) -> np.ndarray:
    """How many tokens each shard has: all as many where senders matter, but for one that has none if `alone`."""
    shards = setting.place.shards
    if setting.senders_matter and not alone:
        return np.full(shards, setting.tokens)
    open_to = np.ones(shards)
    if alone:
        open_to[shards - 1 if last else rng.integers(shards)] = 0
    return rng.multinomial(setting.count, open_to / open_to.sum())


def _kept(setting: Setting, padding: np.ndarray, block: int) -> np.ndarray:
    """Of each row of padding, whether its experts keep it; where they share their room that is not said: all True."""
    if setting.options["policy"] == "sender":
        return np.ones(len(padding), bool)
    sent, capacity = setting.options.get("capacity_per_sender"), setting.options["capacity"]
    shard = padding // block
    before = np.array([(shard[:i] == shard[i]).sum() for i in range(len(padding))], int)
    leaves = np.ones(len(padding), bool) if sent is None else before < sent
    return leaves if capacity is None else leaves & (np.cumsum(leaves) <= capacity)


def counted(pair: Pair, results: Runs) -> Finding | None:
    """The first token that padding changes, or the first row of padding that should have been dropped, and is not."""
    found = different_rows(pair, [run[0] for run in results])
    if found is not None:
        return found
    padding, kept = pair.details["padding"], pair.details["kept"]
    for row, keeps in zip(padding, kept, strict=True):
        result = results[1][0][row]
        if not keeps and result.any():
            return Finding(f"row {row} of padding is dropped, and is not zero", (("its result", numbers(result)),))
    return None
