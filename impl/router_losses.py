"""Losses of a router: one that balances experts, and one that keeps logits small.

All run inside `jax.shard_map`. Over one axis or a tuple of axes in any order (`Y`) they are of the tokens of *all*
participants. The first one is no mean of the participants' losses: if each participant used one expert, all would call
that unbalanced. Losses of a shard (`shard_…`) are of its own tokens, name no axis, and send nothing. Logits of 16-bit
floats are widened to float32, and the result is rounded once.
"""

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_rank, is_integer, refuse
from shardproof.impl.collectives import Block, cast_varying
from shardproof.impl.dtypes import accumulator


def load_balancing_loss(logits: Block, axis_name: AxisName, *, top_k: int) -> Block:
    """`logits [T_Y, E]` to `[]`, typed invariant: E times the sum over experts of share times mean probability.

    The share is that of the choices of all tokens, of which each makes `top_k`, ties to the lowest expert, and has no
    gradient; the mean is that of the softmax over all logits of a token (Fedus, Zoph and Shazeer, Switch Transformers,
    2021, equations 4 to 6; with k choices, of all choices). 1 where everything is even, 0 without tokens. Two sums of E
    numbers travel. Logits are floating-point and finite, and the loss has their dtype.
    """
    axes, wide = check_axes("load_balancing_loss", axis_name), _check("load_balancing_loss", logits, top_k)
    counts, totals = lax.psum(cast_varying(_balance(wide, top_k), axes), axes)
    return _unevenness(counts, totals, logits.shape[0] * lax.axis_size(axes), top_k).astype(logits.dtype)


def router_z_loss(logits: Block, axis_name: AxisName) -> Block:
    """`logits [T_Y, E]` to `[]`, typed invariant: the mean of the squared logarithm of the sum of `exp(logits)`.

    The mean is over the tokens of all participants (Zoph et al., ST-MoE, 2022, equation 5). One number travels.
    Arguments, result and errors are those of `load_balancing_loss`, but for `top_k`.
    """
    axes, wide = check_axes("router_z_loss", axis_name), _check("router_z_loss", logits)
    total = lax.psum(cast_varying(_squares(wide), axes), axes)
    return (total / max(1, logits.shape[0] * lax.axis_size(axes))).astype(logits.dtype)


def shard_load_balancing_loss(logits: Block, *, top_k: int) -> Block:
    """`logits [T_Y, E]` to `[]`, typed as they are: `load_balancing_loss` of a shard's own tokens.

    It is lowest if each shard spreads its own tokens over all experts, which capacities per sender need, and capacities
    for all tokens do not. Arguments, result and errors are otherwise those of `load_balancing_loss`.
    """
    wide = _check("shard_load_balancing_loss", logits, top_k)
    return _unevenness(*_balance(wide, top_k), logits.shape[0], top_k).astype(logits.dtype)


def shard_router_z_loss(logits: Block) -> Block:
    """`logits [T_Y, E]` to `[]`, typed as they are: `router_z_loss` of a shard's own tokens.

    Shards have equally many, so that the mean of their losses is that of all tokens. Arguments, result and errors are
    otherwise those of `router_z_loss`.
    """
    wide = _check("shard_router_z_loss", logits)
    return (_squares(wide) / max(1, logits.shape[0])).astype(logits.dtype)


def _balance(logits: Block, top_k: int) -> tuple[Block, Block]:
    """The number of choices of each expert, `[E]` in int32, and the sum of its probabilities `[E]`."""
    _, chosen = lax.top_k(lax.stop_gradient(jnp.where(logits == 0, 0, logits)), top_k)  # the two zeros are equal
    hits = chosen.reshape(-1, 1) == jnp.arange(logits.shape[1])
    return jnp.sum(hits, axis=0, dtype=jnp.int32), jnp.sum(jax.nn.softmax(logits, axis=1), axis=0)


def _unevenness(counts: Block, totals: Block, tokens: int, top_k: int) -> Block:
    shares = counts.astype(totals.dtype) / max(1, tokens * top_k)  # integers divide in float32
    return counts.size * jnp.sum(shares * (totals / max(1, tokens)))


def _squares(logits: Block) -> Block:
    return jnp.sum(jnp.square(jax.nn.logsumexp(logits, axis=1)))


def _check(function: str, logits: Block, top_k: int = 1) -> Block:
    """The logits in the dtype of sums."""
    check_rank(function, "logits", logits, 2)
    check_floating(function, logits=logits)
    experts = logits.shape[1]
    if not is_integer(top_k) or not 1 <= top_k <= experts:
        refuse(function, "top_k", top_k, f"an integer in [1, {experts}], the number of experts")
    return logits.astype(accumulator(logits))
