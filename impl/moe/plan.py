"""The plan of a mixture of experts, from which a dispatch starts: who goes where, and the sum of what returns.

A dispatch is a function of a plan, and moves rows. Everything is carried in float32 for 16-bit floats: operands are
widened as they come in, gradients are added up wide, and the result is rounded once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from shardproof.impl.arguments import Axes, AxisName, check_axes, check_floating, check_rank, refuse
from shardproof.impl.collectives import Block, accumulator, all_to_all, axis_index, cast_varying, varying
from shardproof.impl.indices import quotient
from shardproof.impl.moe.capacity import Room, kept
from shardproof.impl.moe.experts import Weights
from shardproof.impl.moe.routing import check_operands, route

ExpertWeights = Block | Sequence[Block]
"""One array `[E_Y, D, F]`, or the three of gated MLPs."""


@dataclass(frozen=True)
class Plan:
    """The plan of one participant, with T tokens of k choices each: N = T k pairs, token by token."""

    tokens: Float[Array, "t d"]  # `[T, D]`, wide
    weights: Weights  # of its own e experts, wide
    experts: Int[Array, "n"]  # `[N]`, the number of each pair's expert, of those of all participants
    gates: Float[Array, "n"]  # `[N]`, wide
    kept: Bool[Array, "n"]  # `[N]`, whether the expert keeps it
    axes: Axes  # the axis tuple of the participants
    participants: int  # how many there are
    held: int  # e, the experts of each participant
    count: int  # the experts of all participants
    features: int  # F, of a result
    top_k: int  # k
    most_sent: int  # the most pairs that a participant sends to one expert
    most_received: int  # the most pairs that a participant gets for all its experts
    sent: Any  # the dtype in which tokens travel
    weighed: Any  # the dtype in which weights travel
    dtype: Any  # that of the result

    @property
    def token(self) -> Int[Array, "n"]:
        """The token of each pair."""
        return quotient(jnp.arange(self.experts.size), self.top_k)

    @property
    def choices(self) -> Int[Array, "t k"]:
        """The numbers of the experts that keep each token; -1 for those that drop it."""
        return jnp.where(self.kept, self.experts, -1).reshape(-1, self.top_k)

    def own(self, experts: Int[Array, "..."]) -> Int[Array, "..."]:
        """Numbers of experts among this participant's own; other participants' experts, and -1, are out of [0, e)."""
        return experts - axis_index(self.axes) * self.held

    def exchanged(self, x: Block) -> Block:
        """An equal part of the rows to every participant, and from every one: an all-to-all."""
        return all_to_all(x, self.axes, split_axis=0, concat_axis=0, tiled=True)

    def combined(self, outputs: Float[Array, "n f"]) -> Float[Array, "t f"]:
        """The sum of gate times output over each token's kept choices, rounded once."""
        held = jnp.where(self.kept[:, None], outputs, 0)  # what comes back for a dropped pair, if anything, is ignored
        weighted = held * self.gates[:, None]
        return jnp.sum(weighted.reshape(-1, self.top_k, self.features), axis=1).astype(self.dtype)


def _check(
    function: str, tokens: Block, router_weights: Block, expert_weights: ExpertWeights, axis_name: AxisName
) -> tuple[Axes, Weights]:
    axes = check_axes(function, axis_name)
    weights: list[Any] = [*expert_weights] if isinstance(expert_weights, list | tuple) else [expert_weights]
    if len(weights) not in (1, 3):
        refuse(function, "expert_weights", f"{len(weights)} arrays", "one array, or the three of gated MLPs")
    check_operands(function, tokens, router_weights)
    for w in weights:
        check_floating(function, expert_weights=w)
        check_rank(function, "expert_weights", w, 3)
    features, experts = router_weights.shape
    p, (held, _, hidden) = lax.axis_size(axes), weights[0].shape
    if experts % p:
        expected = (
            f"a number of experts that is a multiple of {p}, the participants of {axis_name!r} (it has {experts})"
        )
        refuse(function, "router_weights", str(jax.typeof(router_weights)), expected)
    shapes = [(held, features, hidden)] if len(weights) == 1 else [(held, features, hidden)] * 2 + [(held, hidden, -1)]
    for at, (w, shape) in enumerate(zip(weights, shapes, strict=True)):
        if held * p != experts or any(a not in (b, -1) for a, b in zip(shape, w.shape, strict=True)):
            sides = ", ".join("F" if side == -1 else str(side) for side in (experts // p, *shape[1:]))
            expected = f"[{sides}], {experts // p} of the {experts} experts on each of {p} participants"
            which = f" of array {at}" if len(weights) > 1 else ""
            refuse(function, "expert_weights", f"{jax.typeof(w)}{which}", expected)
    return axes, weights


def moe_layer(dispatch: Callable[[Plan], Block]) -> Callable[..., Block]:
    """Decorate a dispatch, to be a layer: operands are checked and widened, tokens routed, and some of them kept.

    Where nothing can be kept it is zero and sends nothing.
    """
    name = dispatch.__name__

    def layer(
        tokens: Block,
        router_weights: Block,
        expert_weights: ExpertWeights,
        axis_name: AxisName,
        *,
        top_k: int,
        capacity: int | None = None,
        policy: str = "probability",
        over: str = "chosen",
        capacity_per_sender: int | None = None,
    ) -> Block:
        axes, weights = _check(name, tokens, router_weights, expert_weights, axis_name)
        room = Room(capacity, policy, capacity_per_sender)
        room.check(name)
        operands = (tokens, router_weights, *weights)
        along = {*axes, *(axis for x in operands for axis in varying(x))}
        # widened before they are cast varying: what is summed over participants in a derivative is wide
        rows, router, *own = (cast_varying(x.astype(accumulator(*operands)), along) for x in operands)
        routing = route(rows, router, top_k, over=over, function=name)
        t, p, held = tokens.shape[0], lax.axis_size(axes), own[0].shape[0]
        most = p * t if room.capacity is None else room.capacity
        each = t if room.capacity_per_sender is None else room.capacity_per_sender
        most_sent = min(t, each, most * held if policy == "sender" else most)
        plan = Plan(
            tokens=rows,
            weights=own,
            experts=routing.experts.ravel(),
            gates=routing.gates.ravel(),
            kept=kept(routing.experts, routing.gates, held * p, room, axes).ravel(),
            axes=axes,
            participants=p,
            held=held,
            count=held * p,
            features=own[-1].shape[2],
            top_k=top_k,
            most_sent=most_sent,
            most_received=min(p * min(held * most_sent, t * top_k), most * held),
            sent=jnp.dtype(tokens.dtype),
            weighed=jnp.result_type(*weights),
            dtype=jnp.result_type(*operands),
        )
        if plan.most_sent and plan.most_received and rows.size and plan.features:
            return dispatch(plan)
        return cast_varying(jnp.zeros((t, plan.features), plan.dtype), varying(rows))

    layer.__name__ = layer.__qualname__ = name
    layer.__module__, layer.__doc__ = dispatch.__module__, dispatch.__doc__
    return layer


def narrowly(
    transfer: Callable[..., Block], rows: Block, dtype: Any, *numbers: PyTree[Block], own_derivative: bool = False
) -> Block:
    """`transfer(rows, *numbers)`, sent in `dtype`, which holds the rows without a loss; derivatives are sent as wide.

    So a 16-bit token travels in 16 bits, and its gradient, a sum of what comes from several experts, is rounded once.
    `transfer` moves rows to where integers say, a linear function that adds nothing up. It may have its
    `own_derivative`, a rule without which JAX does not transpose it.
    """
    if rows.dtype == jnp.dtype(dtype):
        return transfer(rows, *numbers)

    @jax.custom_jvp
    def sent(rows: Block, *numbers: PyTree[Block]) -> Block:
        return transfer(rows.astype(dtype), *numbers).astype(rows.dtype)

    @sent.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Block, Block]:
        (rows, *numbers), (along, *_) = primals, tangents
        if not own_derivative:
            return sent(*primals), transfer(along, *numbers)
        # the rows are not sent again with the tangent: outside of loops JAX removes dead code
        return sent(*primals), jax.jvp(lambda x: transfer(x, *numbers), (rows,), (along,))[1]

    return sent(rows, *numbers)
