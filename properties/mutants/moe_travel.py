"""Planted bugs of moe_layer on the way to the experts and back, made of the pieces of this project's own dispatch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from shardproof.impl.collectives import all_to_all
from shardproof.impl.moe import Dispatcher
from shardproof.impl.moe.capacity import count_pairs, places
from shardproof.impl.moe.experts import in_buffers, in_turn
from shardproof.impl.moe.plan import Plan, make_plan
from shardproof.properties.mutants.catalogue import mutant

Step = Callable[[Plan, Array], Array]
"""Something that is done with rows, or with numbers."""


def plan_for(operands: Any, options: Any) -> Plan:
    """Who goes where, in a call."""
    return make_plan("moe", *operands, **options)


def exchanged(plan: Plan, x: Array) -> Array:
    """An equal part of the rows to every participant."""
    return all_to_all(x, plan.axes, split_axis=0, concat_axis=0, tiled=True)


def _slots(plan: Plan) -> Array:
    """Of every pair its row in the buffers of all experts; of dropped ones a row behind the last."""
    queues = jnp.where(plan.kept, plan.experts, plan.count)
    place = queues * plan.most_sent + places(queues, plan.count)
    return jnp.where(plan.kept, place, plan.count * plan.most_sent)


def _buffers(plan: Plan) -> Array:
    """Buffers of a fixed size for every sender and expert, in whose last rows dropped pairs stand before."""
    place, rows = _slots(plan), plan.count * plan.most_sent
    before = jnp.where(plan.kept, rows, (plan.experts + 1) * plan.most_sent - 1)
    written, token = jnp.concatenate([before, place]), jnp.concatenate([plan.token, plan.token])
    source = jnp.full(rows, -1).at[written].set(token, mode="drop")
    filled = jnp.where(source[:, None] >= 0, plan.tokens[jnp.maximum(source, 0)], 0)
    arrived = exchanged(plan, filled.reshape(plan.count, plan.most_sent, -1))
    p, held = plan.participants, plan.held
    arrived = arrived.reshape(p, held, plan.most_sent, -1)
    outputs = in_buffers(jnp.swapaxes(arrived, 0, 1).reshape(held, p * plan.most_sent, -1), plan.weights)
    outputs = jnp.swapaxes(outputs.reshape(held, p, plan.most_sent, -1), 0, 1)
    home = exchanged(plan, outputs.reshape(p * held, plan.most_sent, -1)).reshape(rows, -1)
    return plan.combined(home[jnp.minimum(place, rows - 1)])


@mutant("moe_layer", smallest=(1,))
def moe_written_over(*operands: Any, **options: Any) -> Array:
    """Dropped tokens are written to the last row, and others over them: a scatter may do so in the other order."""
    return plan_for(operands, options).result(_buffers)


@mutant("moe_layer", smallest=(2,))
def moe_received_as_sent(*operands: Any, **options: Any) -> Array:
    """Expects as many rows from a participant as it sends to it."""
    return plan_for(operands, options).result(_ragged)


def _ragged(plan: Plan) -> Array:
    """Just what is kept travels, there with the wrong sizes; pairs that are dropped are holes in what is sent."""
    p, pairs, room = plan.participants, plan.experts.size, plan.most_received
    to = plan.experts // plan.held
    order = jnp.lexsort((plan.experts, ~plan.kept, to))
    loads = count_pairs(to, p)
    sent = count_pairs(jnp.where(plan.kept, plan.experts, plan.count), plan.count).reshape(p, plan.held)
    dispatcher = Dispatcher.of(jnp.cumsum(loads) - loads, jnp.sum(sent, axis=1), plan.axes)
    as_sent = replace(dispatcher, recv_sizes=dispatcher.send_sizes)
    rows = as_sent.there(plan.tokens[plan.token[order]], room)
    received = exchanged(plan, sent).ravel()
    behind = jnp.sum(jnp.cumsum(received) <= jnp.arange(room)[:, None], axis=1)
    own = jnp.where(dispatcher.arrived(room), behind % plan.held, -1)
    outputs = in_turn(rows, own[:, None], jnp.ones((room, 1), rows.dtype), plan.weights)
    home = dispatcher.back(outputs, pairs)
    valid = dispatcher.returned(pairs)
    return plan.combined(jnp.where(valid[:, None], home, 0)[jnp.argsort(order)])
