"""Dispatch in chunks: all-to-alls of a few rows each, until no participant has anything left to send."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from shardproof.impl.arguments import AxisName, check_count
from shardproof.impl.collectives import Block, cast_varying, varying
from shardproof.impl.indices import quotient
from shardproof.impl.moe.capacity import counted, sorting
from shardproof.impl.moe.experts import Weights, in_turn
from shardproof.impl.moe.plan import ExpertWeights, Plan, narrowly, planned

Numbers = tuple[Block, Block, Block, Block]
"""Of the pairs in the order in which they are sent: their token and their expert, `[N]`; and of every participant,
where the pairs that go to it begin, and how many they are, `[p]`."""

Operands = tuple[Block, Block, Weights]
"""Tokens, gates of the pairs in order, and the weights of this participant's experts."""


def chunked_moe(
    tokens: Block,
    router_weights: Block,
    expert_weights: ExpertWeights,
    axis_name: AxisName,
    *,
    chunk: int | None = None,
    **settings: Any,
) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: a loop of all-to-alls.

    Pairs are sorted by expert. In each step a participant sends the next `chunk` pairs to each other one, and gets back
    what their experts make of them. The loop ends when nobody has anything left, on which all participants agree before
    it starts: by default after one step if routing is even, and after at most p. Never has an array of
    experts by tokens by features, but rows of p chunks, whatever the routing.

    Its derivative is a loop of the same number of steps, in which experts compute again (a `custom_vjp`, as JAX has no
    reverse mode of a `while_loop`; so there is no forward mode).

    Operands, result and other settings are those of `dense_moe`.

    Arguments:
        chunk: how many pairs are sent from a participant to another in one step; None: an even share of its pairs.

    Raises:
        ValueError: as `dense_moe`, and for a chunk that is no integer of at least 1.
    """
    plan = planned("chunked_moe", tokens, router_weights, expert_weights, axis_name, **settings)
    check_count("chunked_moe", "chunk", chunk, 1, optional=True)
    return plan.result(lambda plan: dispatch_in_chunks(plan, chunk))


def dispatch_in_chunks(plan: Plan, chunk: int | None = None) -> Block:
    """The result of a plan: `[T, F]`."""
    p, pairs = plan.participants, plan.experts.size
    size = chunk or -(-pairs // p)
    queues = jnp.where(plan.kept, plan.experts, plan.count)
    order = sorting(queues)
    sizes = counted(quotient(queues, plan.held), p)
    # the same on all participants: no one leaves early
    steps = lax.pmax(jnp.max(quotient(sizes + (size - 1), size)), plan.axes)
    numbers = (plan.token[order], plan.experts[order], jnp.cumsum(sizes) - sizes, sizes)
    operands = (plan.tokens, plan.gates[order], plan.weights)

    def added(operands: Operands, numbers: Numbers, step: Int[Array, ""]) -> Block:
        """What one step adds to the result: `[T, F]`."""
        (tokens, gates, weights), (token, expert, begin, sizes) = operands, numbers
        within = step * size + jnp.arange(size)
        left = (within < sizes[:, None]).ravel()  # [p chunk]: whether there is such a pair
        at = jnp.where(left, (begin[:, None] + within).ravel(), 0)
        rows = jnp.where(left[:, None], tokens[token[at]], 0)
        visitors = narrowly(plan.exchanged, rows, plan.sent)
        own = plan.own(plan.exchanged(jnp.where(left, expert[at], -1)))
        outputs = in_turn(visitors, own[:, None], jnp.ones((p * size, 1), rows.dtype), weights)
        returned = jnp.where(left[:, None], plan.exchanged(outputs), 0) * gates[at][:, None]
        blank = cast_varying(jnp.zeros((tokens.shape[0], plan.features), rows.dtype), varying(returned))
        return blank.at[token[at]].add(returned)

    @jax.custom_vjp
    def total(operands: Operands, numbers: Numbers, steps: Block) -> Block:
        start = cast_varying(jnp.zeros((plan.tokens.shape[0], plan.features), plan.tokens.dtype), varying(operands[0]))
        return _repeated(lambda step, result: result + added(operands, numbers, step), steps, start)

    def backward(known: Any, ct: Block) -> tuple[Operands, None, None]:
        operands, numbers, steps = known

        def body(step: Block, gradients: Operands) -> Operands:
            _, pull = jax.vjp(lambda operands: added(operands, numbers, step), operands)
            return jax.tree.map(jnp.add, gradients, pull(ct)[0])

        start = jax.tree.map(lambda x: cast_varying(jnp.zeros_like(x), varying(x)), operands)
        return _repeated(body, steps, start), None, None

    total.defvjp(lambda *known: (total(*known), known), backward)
    return total(operands, cast_varying(numbers, varying(plan.tokens)), steps).astype(plan.dtype)


def _repeated(body: Callable[[Block, Any], Any], steps: Block, start: Any) -> Any:
    """The last state of so many steps."""
    zero = cast_varying(jnp.int32(0), varying(steps))
    return lax.while_loop(lambda at: at[0] < steps, lambda at: (at[0] + 1, body(*at)), (zero, start))[1]
