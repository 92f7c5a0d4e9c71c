"""Losses of a router: one that balances experts, and one that keeps logits small.

Both are of the tokens of *all* participants. The first one is no mean of the participants' losses: if each participant
used one expert, all would call that unbalanced.
"""

import jax
import jax.numpy as jnp
from jax import lax

from shardproof.impl.arguments import AxisName, check_axes, check_floating, check_rank, is_integer, refuse
from shardproof.impl.collectives import Block, accumulator, cast_varying


def load_balancing_loss(logits: Block, axis_name: AxisName, *, top_k: int) -> Block:
    """`logits [T_Y, E]` to `[]`, typed invariant: E times the sum over experts of share times mean probability.

    The share is that of the choices of all tokens, of which each makes `top_k`, ties to the lowest expert, and has no
    gradient; the mean is that of the softmax over all logits of a token (Fedus, Zoph and Shazeer, Switch Transformers,
    2021, equations 4 to 6; with k choices, of all choices). 1 where everything is even, 0 without tokens. Two sums of E
    numbers travel. Logits are floating-point and finite, and the loss has their dtype.
    """
    axes, wide = check_axes("load_balancing_loss", axis_name), _check("load_balancing_loss", logits, top_k)
    _, chosen = lax.top_k(lax.stop_gradient(jnp.where(wide == 0, 0, wide)), top_k)  # the two zeros are equal
    hits = chosen.reshape(-1, 1) == jnp.arange(wide.shape[1])
    counts = jnp.sum(hits, axis=0, dtype=jnp.int32)
    counts, totals = lax.psum(cast_varying((counts, jnp.sum(jax.nn.softmax(wide, axis=1), axis=0)), axes), axes)
    tokens = logits.shape[0] * lax.axis_size(axes)
    shares = counts.astype(totals.dtype) / max(1, tokens * top_k)  # integers divide in float32
    return (counts.size * jnp.sum(shares * (totals / max(1, tokens)))).astype(logits.dtype)


def router_z_loss(logits: Block, axis_name: AxisName) -> Block:
    """`logits [T_Y, E]` to `[]`, typed invariant: the mean of the squared logarithm of the sum of `exp(logits)`.

    The mean is over the tokens of all participants (Zoph et al., ST-MoE, 2022, equation 5). One number travels.
    Arguments, result and errors are those of `load_balancing_loss`, but for `top_k`.
    """
    axes, wide = check_axes("router_z_loss", axis_name), _check("router_z_loss", logits)
    squares = jnp.square(jax.nn.logsumexp(wide, axis=1))
    total = lax.psum(cast_varying(jnp.sum(squares), axes), axes)
    return (total / max(1, logits.shape[0] * lax.axis_size(axes))).astype(logits.dtype)


def _check(function: str, logits: Block, top_k: int = 1) -> Block:
    """The logits in the dtype of sums."""
    check_rank(function, "logits", logits, 2)
    check_floating(function, logits=logits)
    experts = logits.shape[1]
    if not is_integer(top_k) or not 1 <= top_k <= experts:
        refuse(function, "top_k", top_k, f"an integer in [1, {experts}], the number of experts")
    return logits.astype(accumulator(logits))
