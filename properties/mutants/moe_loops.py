"""Planted bugs of moe_layer in loops: chunks that are exchanged one after the other, and tokens round a ring."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.collectives import cast_varying, varying
from shardproof.impl.moe.capacity import argsort, count_pairs
from shardproof.impl.moe.experts import in_turn
from shardproof.impl.moe.plan import Plan, narrowly
from shardproof.properties.mutants.catalogue import mutant
from shardproof.properties.mutants.moe_travel import Step, exchanged, plan_for


def _chunked(plan: Plan, *, steps: Step, size: Callable[[int, int], int], start: int = 0) -> Array:
    """A loop of all-to-alls of some rows to each participant; `steps` is given how many each is left."""
    p, chunk = plan.participants, size(plan.experts.size, plan.participants)
    order = argsort(jnp.where(plan.kept, plan.experts, plan.count))
    sizes = count_pairs(jnp.where(plan.kept, plan.experts, plan.count) // plan.held, p)
    begin, token, expert = jnp.cumsum(sizes) - sizes, plan.token[order], plan.experts[order]

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        step, result = state
        within = step * chunk + jnp.arange(chunk)
        left = (within < sizes[:, None]).ravel()
        at = jnp.where(left, (begin[:, None] + within).ravel(), 0)
        rows = jnp.where(left[:, None], plan.tokens[token[at]], 0)
        rows = narrowly(lambda x: exchanged(plan, x), rows, plan.sent)
        own = plan.own(exchanged(plan, jnp.where(left, expert[at], -1)))
        outputs = exchanged(plan, in_turn(rows, own[:, None], jnp.ones((p * chunk, 1), rows.dtype), plan.weights))
        added = jnp.where(left[:, None], outputs, 0) * plan.gates[order][at][:, None]
        return step + 1, result.at[token[at]].add(added)

    last = steps(plan, -(-sizes // chunk))
    along = varying(plan.tokens) | varying(last)
    blank = cast_varying(jnp.zeros((plan.tokens.shape[0], plan.features), plan.tokens.dtype), along)
    state = cast_varying(jnp.int32(start), varying(last)), blank
    return lax.while_loop(lambda state: state[0] < last, body, state)[1].astype(plan.dtype)


def _agreed(plan: Plan, chunks: Array) -> Array:
    return lax.pmax(jnp.max(chunks), plan.axes)


@mutant("moe_layer", smallest=(2,))
def moe_leaving_early(*operands: Any, **options: Any) -> Array:
    """A participant leaves the loop when it has nothing left itself, and the others wait for it."""
    return plan_for(operands, options).result(
        lambda plan: _chunked(plan, steps=lambda plan, n: jnp.max(n), size=lambda pairs, p: -(-pairs // p))
    )
