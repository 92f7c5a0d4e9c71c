"""Tokens whose choices, and whose gates, do not depend on roundings.

Which logits are the highest, and whose gates, must not depend on them: a right function and the oracle would choose
differently. So a token's logits are those of its *class*: a row of the router, which holds small integers, by a small
factor, so that they are exact in every dtype, in whatever order they are added up. All further features of a token are
free, and the router has zeros for them; but in 16 bits the first of these is 1, and the router may have a large number
there, the same for all experts: then logits are exact in float32, and not in the operands' dtype. All tokens have it,
since equal gates may be rounded differently beside it. Where the highest gates win, tokens are of the same class, or
their gates differ clearly, or are 0, 1 or a half: those of two equal logits, however they are computed.

A token that is drawn with infinities is NaN in their place, and so are all its logits: a class of its own.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import product

import ml_dtypes
import numpy as np

from shardproof.oracles.layout import unshard
from shardproof.oracles.moe.routing import route
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.numbers import finite

FACTORS = (1, 2, -1, 0)
"""A class is a row of the router by one of these; by 0 all experts tie."""

LEVELS = 4
"""Most routers' numbers are 1 to 4, so that gates differ much, or not at all; none is 0, of which there are two."""

OFFSETS = (0, 96, -96)
"""Numbers that are added to all logits of a row, and change no gate: powers overflow in float32, or vanish."""

FAR = 4096
"""The same in dtypes that have it: beside it a logit is no other than the next in 16 bits."""

NEAR = (8, 9)
"""An expert's numbers where all others have 1, so that gates are near one another: not equal, but in 16 bits."""

TIED, FAVOURITE, SKEWED, PAIRED, CLOSE = range(5)
STYLES = 7
"""Styles of routers: all numbers are the same; one expert has the highest; experts of low numbers often have; two have
in each row; or one is far above the others, which are equal. Other styles are random. PAIRED is for every second router
where the highest of two gates wins; CLOSE for a quarter of the rest at least where gates win that have more than 16
bits."""

Class = tuple[int, int]
"""A row of the router, and the factor."""

CLEAR = 1 / 64
"""Gates of different classes differ by this part of the larger one, at least, where they are compared in 16 bits."""

DISTINCT = 1 / 4096
"""The same where they are compared in more: far above roundings there, and below the resolution of 16 bits."""


def clear(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Tokens of classes, some of them NaN, a router of small integers, and experts that are finite."""
    tokens, router, *experts = arrays
    rows, drawn = (case.operands[0].block[-1] + 1) // 2, zlib.crc32(router.tobytes())
    style, further, close = drawn % STYLES, drawn // STYLES, _wide(case) and _gates_win(case)
    if _pairs_win(case) and further % 2:
        style = PAIRED
    elif close and further % 8 < 2:
        style = CLOSE
    elif style == CLOSE and not close:
        style = STYLES
    unknown = bool(np.isnan(router.astype(np.float64)).any())
    levels = _of_blocks(case, 1, router, lambda rng, x: _router(rng, x, rows, style, unknown))
    factors = FACTORS[:2] if style in (FAVOURITE, CLOSE) else FACTORS
    lost = bool(np.isinf(tokens.astype(np.float64)).any())
    classes = _classes(case, levels, rows, factors, lost)
    if lost and not classes:  # none differs clearly from NaN
        lost, classes = False, _classes(case, levels, rows, factors, False)
    classed = _of_blocks(case, 0, tokens, lambda rng, x: _tokens(rng, x, rows, classes, lost))
    return [classed, levels, *map(finite, experts)]


CROWDED = 32
"""Beyond this many experts, all but three have a router's lowest number: the first experts would win all ties."""

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
    if experts > CROWDED:
        levels[...] = 1
        levels[:, rng.permutation(experts)[: LEVELS - 1]] = 2 + rng.permutation(LEVELS - 1)
    if style == TIED:
        levels[...] = 1
    elif style == FAVOURITE:
        levels[:, rng.integers(experts)] = LEVELS + 1
    elif style == CLOSE:
        levels[...] = 1
        levels[:, rng.integers(experts)] = rng.choice(NEAR, rows)
    elif style == PAIRED:
        levels[...] = 1
        first = rng.integers(experts) + (np.arange(rows) + rng.integers(2)) % 2  # so that rows have one in common
        np.put_along_axis(levels, (first[:, None] + np.arange(2)) % experts, LEVELS + 1, axis=1)
    elif style == SKEWED:
        levels[rng.random((rows, experts)) < 1 / (1 + np.arange(experts))] = LEVELS + 1
    result = np.zeros_like(x)
    offsets = (*OFFSETS, FAR) if x.dtype.itemsize >= 4 else OFFSETS
    result[:rows] = levels + rng.choice(offsets, (rows, 1))
    if x.dtype.itemsize == 2 and rng.random() < 1 / 2:
        result[rows : rows + 1] = 2.0 ** (ml_dtypes.finfo(x.dtype).nmant + 2)
    return np.where(unknown & (rng.random(experts) < 1 / 3), np.full_like(x, np.nan), result)


def _tokens(rng: np.random.Generator, x: np.ndarray, rows: int, classes: Sequence[Class], lost: bool) -> np.ndarray:
    """The class of every token in its first features, and further ones as they were drawn; NaN for what is infinite."""
    result = finite(x)
    result[:, :rows] = 0
    if x.dtype.itemsize == 2:
        result[:, rows : rows + 1] = 1
    for t, chosen in enumerate(rng.integers(0, len(classes), len(x))):
        row, factor = classes[chosen]
        result[t, row] = factor
    return np.where(lost & np.isinf(x.astype(np.float64)), np.full_like(x, np.nan), result)


def _classes(case: Case, router: np.ndarray, rows: int, factors: Sequence[int], lost: bool) -> list[Class]:
    """The classes of tokens: all, or those of gates that differ clearly, from those of NaN too if some are `lost`."""
    every, least = list(product(range(rows), factors)), DISTINCT if _wide(case) else CLEAR
    block, options = case.operands[1].block, case.keywords
    # experts that choose do so by the probabilities of all of them
    top_k, over = options.get("top_k", block[1]), options.get("over", "chosen" if "top_k" in options else "all")
    if (top_k == 1 and over == "chosen") or not _gates_win(case):
        return every
    routers = np.unique(case.blocks(1, router).astype(np.float64).reshape(-1, math.prod(block)), axis=0)
    kept: list[Class] = []
    unknown = _gates(np.full(block[1], np.nan), top_k, over)
    gates: list[np.ndarray] = [np.stack([unknown] * len(routers))] if lost else []
    for row, factor in every:
        own = np.stack([_gates(factor * r.reshape(block)[row], top_k, over) for r in routers])
        if all(_differ(own, other, least) for other in gates):
            kept.append((row, factor))
            gates.append(own)
    return kept


def _wide(case: Case) -> bool:
    """True if logits are of more than 16 bits."""
    return case.operands[1].numpy_dtype.itemsize > 2


def _gates_win(case: Case) -> bool:
    """True if the highest gates are kept, and some may not be: so experts choose that have no policy."""
    options = case.keywords
    limits = (options["capacity"], options.get("capacity_per_sender"))
    return options.get("policy", "probability") == "probability" and limits != (None, None)


def _pairs_win(case: Case) -> bool:
    """True if of all tokens' two gates the highest are kept, and some may not be."""
    options = case.keywords
    known = options.get("top_k") == 2 and options["policy"] == "probability" and options.get("over") != "all"
    return known and options["capacity"] is not None


def _gates(logits: np.ndarray, top_k: int, over: str) -> np.ndarray:
    """The gate of every expert `[E]`, NaN of those that are not chosen."""
    routing = route(logits[None], top_k, over=over)
    gates = np.full(len(logits), np.nan)
    gates[routing.experts[0]] = routing.gates[0]
    return gates


def _differ(own: np.ndarray, other: np.ndarray, least: float) -> bool:
    """True if gates of two classes differ wherever both choose an expert, or are certainly equal: 0, 1, or a half."""
    certain = (own == other) & np.isin(own, (0, 0.5, 1))
    return not (np.abs(own - other) <= np.where(certain, -1, least * np.maximum(own, other))).any()
