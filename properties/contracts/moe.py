"""The contract of moe_layer: a mixture of experts, tokens and experts sharded over the same axis tuple.

Which logits are the highest, and whose gates, must not depend on roundings: a right function and the oracle would
choose differently. So a token's logits are those of its *class*: a row of the router, which holds small integers, by a
small factor, so that they are exact in every dtype, in whatever order they are added up. All further features of a
token are free, and the router has zeros for them. Where the highest gates win, tokens are of the same class, or their
gates are clearly apart.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from hypothesis import strategies as st

from shardproof.impl import moe as implementations
from shardproof.oracles import moe
from shardproof.oracles.communication import Cost
from shardproof.oracles.layout import unshard
from shardproof.oracles.moe import costs
from shardproof.oracles.moe.dropping import POLICIES
from shardproof.oracles.moe.routing import route
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Option, Scope, Violation, of_type
from shardproof.properties.contracts.costs import bits, sum_bits
from shardproof.properties.contracts.floats import float32_accumulator
from shardproof.properties.contracts.forbidden import changed
from shardproof.properties.contracts.mistakes import moe as mistakes
from shardproof.properties.contracts.operation import Described, Drawn, operation

FEATURES = frozenset({"empty_blocks", "explained_errors", "first_senders", "nan_logits", "replicated_operands", "x64"})

MOST_MEMBERS = 64
"""The largest mesh: there are as many experts as participants, and a token has a logit for each of them."""

FACTORS = (1, 2, -1, 0)
"""A class is a row of the router by one of these; by 0 all experts tie."""

LEVELS = 4
"""A router's numbers are 1 to 4, so that gates are far apart, and often equal; none is zero, of which there are two."""

OFFSETS = (0, 0, 96, -96)
"""What is added to all logits of a row, and is in no gate: its powers overflow in float32, or vanish."""

TIED, FAVOURITE, SKEWED = range(3)
STYLES = 6
"""What routers are like: all numbers are the same, one expert has the highest, those of a low number often have. Most
are like none of these."""

Class = tuple[int, int]
"""A row of the router, and the factor."""

CLEAR = 1 / 64
"""Gates of different classes differ by this part of the larger one, at least, where they are compared."""


def _arguments(draw: st.DrawFn, members: int, scope: Scope) -> Drawn:
    if scope.large:
        tokens, held, features, outputs = 1, draw(st.integers(1, 2), label="experts of each"), 2, 1
    else:
        least = 0 if "empty_blocks" in scope.features and draw(st.integers(0, 9), label="no tokens") == 9 else 1
        tokens = draw(st.integers(least, 0 if least == 0 else 5), label="tokens")
        held = draw(st.sampled_from((1, 2, 3)), label="experts of each")
        features, outputs = draw(st.tuples(st.integers(1, 4), st.integers(1, 2)), label="features, outputs")
    experts = members * held
    top_k = min(experts, draw(st.sampled_from((1, 2, 2, 3, 8)), label="top_k"))
    share = math.ceil(tokens * members * top_k / experts)
    capacities = st.sampled_from((None, share, 1, max(1, share // 2), share, 1, share + 1, 0, tokens * members))
    policies = POLICIES if "first_senders" in scope.features else tuple(p for p in POLICIES if p != "sender")
    params = {
        "top_k": top_k,
        "capacity": draw(capacities, label="capacity"),
        "policy": draw(st.sampled_from(policies), label="policy"),
    }
    router = Described((features, experts), varies=False)
    return [Described((tokens, features)), router, Described((held, features, outputs))], params


def _kinds(scope: Scope) -> tuple[str, ...]:
    usual = ("real", "distinct", "real")
    return (*usual, "nan") if "nan_logits" in scope.features else usual


def _clear(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Tokens of classes, a router of small integers, and experts that are finite."""
    tokens, router, experts = arrays
    rows, style = (case.operands[0].block[-1] + 1) // 2, zlib.crc32(router.tobytes()) % STYLES
    unknown = bool(np.isnan(router.astype(np.float64)).any())
    levels = _of_blocks(case, 1, router, lambda rng, x: _router(rng, x, rows, style, unknown))
    classes = _classes(case, levels, rows, FACTORS[:2] if style == FAVOURITE else FACTORS)
    classed = _of_blocks(case, 0, tokens, lambda rng, x: _tokens(rng, x, rows, classes))
    return [classed, levels, _finite(experts)]


Made = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""A block made of a drawn one, and of numbers that depend on that alone, so that replicas stay replicas."""


def _of_blocks(case: Case, place: int, array: np.ndarray, made: Made) -> np.ndarray:
    """The global array of an operand whose blocks are made of those of a drawn one."""
    block, placement = case.operands[place].block, case.operands[place].placement
    blocks = case.blocks(place, array)
    count = math.prod(blocks.shape[: -len(block)])
    each = [made(np.random.default_rng(zlib.crc32(x.tobytes())), x) for x in blocks.reshape(count, *block)]
    ones = (1,) * len(placement.stacked)
    spread = np.stack(each).reshape(*case.mesh.sizes, *ones, *case.batch_of(place), *block)
    return unshard(spread, case.mesh, case.partition(place))


def _router(rng: np.random.Generator, x: np.ndarray, rows: int, style: int, unknown: bool) -> np.ndarray:
    """Small integers in the first rows; some columns of a router are NaN where some may be unknown."""
    experts = x.shape[1]
    levels = rng.integers(1, LEVELS + 1, (rows, experts))
    if style == TIED:
        levels[...] = 1
    elif style == FAVOURITE:
        levels[:, rng.integers(experts)] = LEVELS + 1
    elif style == SKEWED:
        first = rng.random((rows, experts)) < 1 / (1 + np.arange(experts))
        levels = np.where(first, LEVELS + 1, levels)
    result = np.zeros_like(x)
    result[:rows] = levels + rng.choice(OFFSETS, (rows, 1))
    return np.where(unknown & (rng.random(experts) < 1 / 3), np.full_like(x, np.nan), result)


def _tokens(rng: np.random.Generator, x: np.ndarray, rows: int, classes: Sequence[Class]) -> np.ndarray:
    """The class of every token in its first features, and further ones as they were drawn."""
    result = _finite(x)
    result[:, :rows] = 0
    for t, chosen in enumerate(rng.integers(0, len(classes), len(x))):
        row, factor = classes[chosen]
        result[t, row] = factor
    return result


def _finite(x: np.ndarray) -> np.ndarray:
    """What is drawn, with ones for what is not finite: a sum over all experts, by a mask, is right as well."""
    return np.where(np.isfinite(x.astype(np.float64)), x, np.ones((), x.dtype))


def _classes(case: Case, router: np.ndarray, rows: int, factors: Sequence[int]) -> list[Class]:
    """The classes of tokens: all, or those whose gates are clearly apart where the highest ones win."""
    every = list(product(range(rows), factors))
    top_k, capacity = case.keywords["top_k"], case.keywords["capacity"]
    if top_k == 1 or capacity is None or case.keywords["policy"] != "probability":
        return every
    block = case.operands[1].block
    routers = np.unique(case.blocks(1, router).astype(np.float64).reshape(-1, math.prod(block)), axis=0)
    kept: list[Class] = []
    gates: list[np.ndarray] = []
    for row, factor in every:
        own = np.stack([_gates(factor * r.reshape(block)[row], top_k) for r in routers])
        if all(_apart(own, other) for other in gates):
            kept.append((row, factor))
            gates.append(own)
    return kept


def _gates(logits: np.ndarray, top_k: int) -> np.ndarray:
    """The gate of every expert `[E]`, NaN of those that are not chosen."""
    routing = route(logits[None], top_k)
    gates = np.full(len(logits), np.nan)
    gates[routing.experts[0]] = routing.gates[0]
    return gates


def _apart(own: np.ndarray, other: np.ndarray) -> bool:
    """Whether gates of two classes are clearly apart wherever both choose an expert, or certainly equal: 0, or 1."""
    certain = (own == other) & ((own == 0) | (own == 1))
    return not (np.abs(own - other) <= np.where(certain, -1, CLEAR * np.maximum(own, other))).any()


def _too_many(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from((0, -1, case.operands[1].block[1] + 1)).map(lambda k: case.with_params(top_k=k))


def _negative(case: Case) -> st.SearchStrategy[Case]:
    return st.just(case.with_params(capacity=-1))


def _unknown_policy(case: Case) -> st.SearchStrategy[Case]:
    return st.sampled_from(("random", "", "POSITION")).map(lambda policy: case.with_params(policy=policy))


def _more_columns(case: Case) -> st.SearchStrategy[Case]:
    """Experts that are no multiple of the participants."""
    features, experts = case.operands[1].block
    return st.nothing() if case.members == 1 else st.just(changed(case, 1, block=(features, experts + 1)))


def _more_rows(case: Case) -> st.SearchStrategy[Case]:
    features, experts = case.operands[1].block
    return st.just(changed(case, 1, block=(features + 1, experts)))


def _other_features(case: Case) -> st.SearchStrategy[Case]:
    held, features, outputs = case.operands[2].block
    return st.just(changed(case, 2, block=(held, features + 1, outputs)))


def _integers(case: Case) -> st.SearchStrategy[Case]:
    return st.just(changed(case, 0, dtype="int32"))


def sizes_of(case: Case) -> costs.Sizes:
    """The sizes of a layer."""
    (tokens, features), (held, _, outputs) = (case.operands[place].block for place in (0, 2))
    options = case.keywords
    return costs.Sizes(
        participants=case.members,
        tokens=tokens,
        features=features,
        outputs=outputs,
        held=held,
        top_k=options["top_k"],
        capacity=options["capacity"],
        policy=options["policy"],
        bits=bits(case),
        wide=sum_bits(case),
    )


def _claim(function: Callable[..., object], formula: Callable[[costs.Sizes], Cost] | None = None) -> Claim:
    """One of this project's own; without a formula what it sends depends on the data."""
    return Claim(
        function, FEATURES, communication=None if formula is None else lambda case, backward: formula(sizes_of(case))
    )


CONTRACT: Contract = operation(
    "moe_layer",
    moe.moe_layer,
    _arguments,
    operands=("tokens", "router_weights", "expert_weights"),
    parameters=("top_k", "capacity", "policy"),
    options={
        "top_k": Option(of_type(int), lambda case, value: 1 <= value <= case.operands[1].block[1]),
        "capacity": Option(lambda value: value is None or type(value) is int, lambda case, n: n is None or n >= 0),
        "policy": Option(of_type(str), lambda case, value: value in POLICIES),
    },
    kinds=_kinds,
    features=FEATURES,
    violations=(
        Violation("top_k", _too_many),
        Violation("capacity", _negative),
        Violation("policy", _unknown_policy),
        Violation("router_weights", _more_columns),
        Violation("router_weights", _more_rows),
        Violation("expert_weights", _other_features),
        Violation("tokens", _integers),
    ),
    most=MOST_MEMBERS,
    sets=3,
    terms=lambda case: case.operands[0].block[1],
    degree=3,
    shapes=(((8192, 1024), 0, ""), ((1024, 64), None, ""), ((64, 1024, 1024), 0, "")),
    usual={"top_k": 2, "capacity": 320, "policy": "probability"},  # a quarter more than if routing were even
    adapt=_clear,
    accumulator=float32_accumulator,
    nonlinear=True,
    decided=True,
    mistakes=mistakes.MISTAKES,
    implementations={
        "dense": _claim(implementations.dense_moe, costs.buffers_cost),
        "scanned": _claim(implementations.scanned_moe, costs.weights_cost),
        "sorted": _claim(implementations.sorted_moe, costs.weights_cost),
        "all_gather": _claim(implementations.all_gather_moe, costs.gathered_cost),
        "all_to_all": _claim(implementations.all_to_all_moe, costs.buffers_cost),
        "ragged": _claim(implementations.ragged_moe, costs.ragged_cost),
        "gathered_ragged": _claim(implementations.gathered_ragged_moe, costs.gathered_ragged_cost),
        "chunked": _claim(implementations.chunked_moe),
        "ring": _claim(implementations.ring_moe, costs.ring_cost),
    },
)
