"""Attention over a sharded sequence: gathered, round a ring, and by heads.

Logits are scaled by 1 / sqrt(D), and the softmax is taken over the whole sequence, or up to and including the query's
own position in it (`causal`). Blocks travel in their own dtype, and so gradients of keys and values are added up in 16
bits across participants.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_rank, check_shape, raise_unsupported
from shardproof.impl.collectives import Block, accumulator, all_gather, all_to_all, axis_index, permute
from shardproof.impl.indices import remainder
from shardproof.impl.rings import align_types, pass_round

Heads: TypeAlias = Float[Array, "h s d"]
"""Queries, keys, values or results, heads first: of every head, positions and features."""

Logits: TypeAlias = Float[Array, "h s t"]
"""Each query by each key, for every head."""

Halves: TypeAlias = Float[Array, "2 h s d"]
"""A participant's early half, and its late one."""

State = tuple[Float[Array, "h s 1"], Float[Array, "h s 1"], Heads]
"""The largest logit so far, the sum of the weights, and the weighted sum of the values."""


def gathered_attention(q: Block, k: Block, v: Block, axis_name: AxisName, *, causal: bool = False) -> Block:
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`, typed varying: gathers keys and values, attends with its own queries.

    Operands are floating-point; the result has the dtype that they promote to, computed in float32 or wider. `causal`:
    a query sees only keys of its own position and of those before it; the values that it does not see must be finite.
    """
    axes, q, k, v = _operands("gathered_attention", q, k, v, axis_name)
    keys, values = (all_gather(x, axes, tiled=True) for x in (k, v))
    return _attend(q, keys, values, axis_index(axes) * q.shape[0] if causal else None)


def ring_attention(q: Block, k: Block, v: Block, axis_name: AxisName, *, causal: bool = False) -> Block:
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`, typed varying: keys and values go round the ring, in p - 1 steps.

    The softmax is taken block by block, its maximum and sums corrected on the way (Milakov and Gimelshein, Online
    normalizer calculation for softmax, 2018, algorithm 3; Liu, Zaharia and Abbeel, Ring Attention, 2023). A block
    travels on while it is attended to. Under `causal`, blocks of later positions travel as well.
    """
    axes, q, k, v = _operands("ring_attention", q, k, v, axis_name)
    mine = axis_index(axes)
    q, k, v = (jnp.swapaxes(x, 0, 1) for x in (q, k, v))
    state = _first_state(_logits(q, k, 0 if causal else None, accumulator(q, k, v)), v)

    def attend(state: State, others: tuple[Heads, Heads], step: Int[Array, ""] | int) -> State:
        k, v = others
        logits = _logits(q, k, None, accumulator(q, k, v))
        if causal:  # a block that has passed from the last participant to the first one is of later positions
            logits = jnp.where(step <= mine, logits, -jnp.inf)
        return _update(state, logits, v)

    state = pass_round([(k, v)], state, attend, axes)
    return _positions_first(_means(state), jnp.result_type(q, k, v))


def balanced_ring_attention(q: Block, k: Block, v: Block, axis_name: AxisName, *, causal: bool = False) -> Block:
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`, typed varying: as `ring_attention`, with even work under `causal`.

    A later piece of the sequence sees more keys than an early one. So participant i of p takes, of 2 p half pieces, the
    i-th and the i-th from the end, and multiplies 3 pairs of halves of its own, and 2 for each other participant, out
    of 4 (Zhu, zigzag ring attention, 2024; by stripes in place of halves: Brandon et al., Striped Attention, 2023).
    Permutes move halves in and out; without `causal` all is multiplied, and nothing is moved.

    Raises:
        NotImplementedError: under `causal`, if S is odd.
    """
    name = "balanced_ring_attention"
    axes, q, k, v = _operands(name, q, k, v, axis_name)
    if not causal:
        return ring_attention(q, k, v, axes)
    if q.shape[0] % 2:
        raise_unsupported(name, "q", str(jax.typeof(q)), "an even number of positions")
    wide, dtype, mine = accumulator(q, k, v), jnp.result_type(q, k, v), axis_index(axes)
    q, k, v = (_early_and_late(x, axes) for x in (q, k, v))
    early = _first_state(_logits(q[0], k[0], 0, wide), v[0])
    late = _update(_first_state(_logits(q[1], k[1], 0, wide), v[1]), _logits(q[1], k[0], None, wide), v[0])

    def attend(state: Any, others: tuple[Halves, Halves], step: Int[Array, ""] | int) -> Any:
        (early, late), (k, v) = state, others
        late = _update(late, _logits(q[1], k[0], None, wide), v[0])  # no early half is behind a late one
        before = step <= mine  # whose early half is before this one's, and its late half behind it

        def either(of_early: Any, of_late: Any) -> Any:
            return jax.tree.map(lambda one, other: jnp.where(before, one, other), of_early, of_late)

        seen = _logits(either(q[0], q[1]), either(k[0], k[1]), None, wide)
        state = _update(either(early, late), seen, either(v[0], v[1]))
        return either(state, early), either(late, state)

    early, late = pass_round([(k, v)], (early, late), attend, axes)
    return _contiguous(jnp.stack([_means(early), _means(late)]).astype(dtype), axes)


def heads_attention(q: Block, k: Block, v: Block, axis_name: AxisName, *, causal: bool = False) -> Block:
    """`q, k, v [S_Y, H, D]` to `[S_Y, H, D]`, typed varying: whole sequences of H / p heads each, by all-to-alls.

    Four of them: one of each operand, and one of the result (Jacobs et al., DeepSpeed Ulysses, 2023).

    Raises:
        NotImplementedError: if H is not a multiple of p.
    """
    axes, q, k, v = _operands("heads_attention", q, k, v, axis_name)
    p = lax.axis_size(axes)
    if q.shape[1] % p:
        raise_unsupported("heads_attention", "q", str(jax.typeof(q)), f"a number of heads that is a multiple of {p}")
    q, k, v = (all_to_all(x, axes, split_axis=1, concat_axis=0, tiled=True) for x in (q, k, v))
    return all_to_all(_attend(q, k, v, 0 if causal else None), axes, split_axis=0, concat_axis=1, tiled=True)


def _half_pieces(p: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The permutations of the first halves of all pieces, and of the second ones.

    An even participant gets a first half as its early one, and a second half as its late one; an odd one the reverse.
    """
    first, second = ([(i, min(h, 2 * p - 1 - h)) for i, h in enumerate(range(at, 2 * p, 2))] for at in (0, 1))
    return first, second


def _early_and_late(x: Block, axes: tuple[str, ...]) -> Halves:
    """A participant's contiguous piece `[S, H, D]` to the two halves that it takes, heads first: `[2, H, S / 2, D]`."""
    p, halves = lax.axis_size(axes), jnp.swapaxes(x, 0, 1)
    halves = jnp.swapaxes(halves.reshape(halves.shape[0], 2, -1, halves.shape[2]), 0, 1)
    if p == 1:
        return halves
    moved = jnp.stack([permute(half, axes, perm=perm) for half, perm in zip(halves, _half_pieces(p), strict=True)])
    return jnp.where(remainder(axis_index(axes), 2) == 0, moved, moved[::-1])


def _contiguous(halves: Halves, axes: tuple[str, ...]) -> Block:
    """The way back: `[2, H, S / 2, D]` to `[S, H, D]`."""
    p = lax.axis_size(axes)
    if p > 1:
        halves = jnp.where(remainder(axis_index(axes), 2) == 0, halves, halves[::-1])
        back = [[(to, here) for here, to in perm] for perm in _half_pieces(p)]
        halves = jnp.stack([permute(half, axes, perm=perm) for half, perm in zip(halves, back, strict=True)])
    return jnp.swapaxes(jnp.concatenate([*halves], axis=1), 0, 1)


def _operands(
    function: str, q: Block, k: Block, v: Block, axis_name: AxisName
) -> tuple[tuple[str, ...], Block, Block, Block]:
    """The axis tuple, and the operands, typed varying along it and along whatever one of the others varies along."""
    axes = check_axes(function, axis_name)
    check_rank(function, "q", q, 3)
    check_floating(function, q=q, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        check_shape(function, name, x, q.shape, "that of q: positions, heads, features")
    return axes, *align_types(q, k, v, axis_name=axes)


def _logits(q: Heads, k: Float[Array, "h t d"], first_query: Int[Array, ""] | int | None, wide: Any) -> Logits:
    """Each query by each key; minus infinity for keys behind it, if the position of the first query is given."""
    products = lax.dot_general(q, k, (((2,), (2,)), ((0,), (0,))), preferred_element_type=wide)
    logits = products / jnp.sqrt(jnp.asarray(q.shape[-1], wide))
    if first_query is None:
        return logits
    visible = (first_query + jnp.arange(q.shape[1]))[:, None] >= jnp.arange(k.shape[1])
    return jnp.where(visible, logits, -jnp.inf)


def _weigh(weights: Logits, v: Float[Array, "h t d"]) -> Heads:
    return lax.dot_general(weights, v.astype(weights.dtype), (((2,), (1,)), ((0,), (0,))))


def _attend(q: Block, k: Block, v: Block, first_query: Int[Array, ""] | int | None) -> Block:
    """Attention of queries to whole sequences of keys and values."""
    q, k, v = (jnp.swapaxes(x, 0, 1) for x in (q, k, v))
    weights = jax.nn.softmax(_logits(q, k, first_query, accumulator(q, k, v)), axis=-1)
    return _positions_first(_weigh(weights, v), jnp.result_type(q, k, v))


def _first_state(logits: Logits, v: Float[Array, "h t d"]) -> State:
    """The state after a participant's own block; the maximum has no gradient, as the result does not depend on it."""
    highest = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(logits - highest)
    return highest, jnp.sum(weights, axis=-1, keepdims=True), _weigh(weights, v)


def _update(state: State, logits: Logits, v: Float[Array, "h t d"]) -> State:
    """The state after one more block: sums relative to the old maximum are scaled to the new one."""
    highest, total, weighted = state
    above = lax.stop_gradient(jnp.maximum(highest, jnp.max(logits, axis=-1, keepdims=True)))
    weights, scale = jnp.exp(logits - above), jnp.exp(highest - above)
    return above, total * scale + jnp.sum(weights, axis=-1, keepdims=True), weighted * scale + _weigh(weights, v)


def _means(state: State) -> Heads:
    """Every query's weighted mean of the values so far."""
    _, total, weighted = state
    return weighted / total


def _positions_first(x: Heads, dtype: Any) -> Block:
    return jnp.swapaxes(x, 0, 1).astype(dtype)
