"""Planted bugs of mixtures of experts, by the relation between two calls that catches each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from shardproof.impl.moe import all_to_all_moe, global_all_to_all_moe
from shardproof.impl.moe.dispatch.dense import dense_moe
from shardproof.properties.mutants import moe_dropping, moe_global, moe_options
from shardproof.properties.mutants.moe import Layer, Pairs, choose, keep, places, serve
from shardproof.properties.programs.implementations import Implementation

Function = Callable[..., Array]


@dataclass(frozen=True)
class Planted:
    """A bug, and the relation that catches it.

    Arguments:
        relation: its name.
        function: the layer.
        features: the options that it has beyond `top_k`, `capacity` and `policy`, by the features that ask for them.
        whole: whether it takes global arrays.
    """

    relation: str
    function: Function
    features: frozenset[str] = frozenset()
    whole: bool = False

    @property
    def implementation(self) -> Implementation:
        """The layer as one that claims to be right."""
        contract = "global_moe_layer" if self.whole else "moe_layer"
        return Implementation(contract, self.function.__name__, self.function, self.features, whole=self.whole)


SENDERS = frozenset({"first_senders", "gates_of_all", "sender_capacity"})


def by_position_where_gates_decide(*operands: Any, policy: str, **options: Any) -> Array:
    """The first tokens are kept where the highest gates should be."""
    return all_to_all_moe(*operands, policy="position" if policy == "probability" else policy, **options)


def by_rounded_gates(*operands: Any, **options: Any) -> Array:
    """Gates are compared after they are rounded to eighths: near ones go to the first token."""

    def rounded(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        return keep(replace(pairs, gate=jnp.round(pairs.gate * 8)), capacity, policy)

    return Layer(keep=rounded)(*operands, **options)


def favouring_low_experts(*operands: Any, **options: Any) -> Array:
    """Logits are compared in halves, so that the lower of two experts is chosen where they are near."""
    return Layer(choose=lambda logits, top_k: choose(jnp.round(logits * 2), top_k))(*operands, **options)


def filling_low_experts_first(*operands: Any, **options: Any) -> Array:
    """The lower experts of a participant take the room of its higher ones."""

    def shared(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        if capacity is None or policy == "sender":
            return keep(pairs, capacity, policy)
        return places(pairs.receiver, (pairs.expert, pairs.token)) < capacity * pairs.held

    return Layer(keep=shared)(*operands, **options)


def with_less_room_at_the_last(*operands: Any, capacity: int | None, policy: str, **options: Any) -> Array:
    """By "sender" the last participant has room for one pair less."""

    def short(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        kept = keep(pairs, capacity, policy)
        if capacity is None or policy != "sender":
            return kept
        fewer = keep(pairs, max(0, capacity - 1), policy)
        return jnp.where(pairs.receiver == jnp.max(pairs.receiver), fewer, kept)

    for name in ("over", "capacity_per_sender"):
        options.pop(name, None)
    return Layer(keep=short)(*operands, capacity=capacity, policy=policy, **options)


def with_half_the_room_if_odd(*operands: Any, capacity: int | None, **options: Any) -> Array:
    """An odd capacity is halved."""
    room = capacity // 2 if capacity is not None and capacity % 2 else capacity
    return all_to_all_moe(*operands, capacity=room, **options)


def counting_all_rows(*operands: Any, **options: Any) -> Array:
    """A pair's place in its expert's queue counts all rows before it, whichever expert they choose."""

    def rows(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        return keep(pairs, None, policy) if capacity is None else pairs.token < capacity

    return Layer(keep=rows)(*operands, **options)


def keeping_of_a_full_shard(*operands: Any, **options: Any) -> Array:
    """A shard all of whose pairs are dropped keeps them instead."""

    def kept(pairs: Pairs, capacity: int | None, policy: str) -> Array:
        right = keep(pairs, capacity, policy)
        some = jnp.any((pairs.sender[:, None] == pairs.sender[None]) & right[None], axis=1)
        return right | ~some

    return Layer(keep=kept)(*operands, **options)


def learning_from_the_mean_expert(*operands: Any, **options: Any) -> Array:
    """The derivative of an expert has a part of that of all others of its participant."""

    def shared(rows: Array, weights: Array) -> Array:
        mean = jnp.mean(weights, axis=0, keepdims=True) / 100
        return serve(rows, weights + mean - lax.stop_gradient(mean))

    return Layer(serve=shared)(*operands, **options)


def not_learning_in_the_first_expert(*operands: Any, **options: Any) -> Array:
    """The first expert of every participant is a constant."""

    def constant(rows: Array, weights: Array) -> Array:
        return serve(rows, weights.at[0].set(lax.stop_gradient(weights[0])))

    return Layer(serve=constant)(*operands, **options)


def with_gates_of_zero(*operands: Any, **options: Any) -> Array:
    """What an expert does not choose is weighed by zero, which NaN does not become."""
    return Layer()(*operands, **options)


def global_by_position(*operands: Any, policy: str, **options: Any) -> Array:
    """The first tokens of the whole array are kept where the highest gates should be."""
    return global_all_to_all_moe(*operands, policy="position" if policy == "probability" else policy, **options)


def of_senders(relation: str, *functions: Function) -> list[Planted]:
    """Bugs of layers that have all options."""
    return [Planted(relation, function, SENDERS) for function in functions]


def of_blocks(relation: str, *functions: Function) -> list[Planted]:
    """Bugs of layers of blocks."""
    return [Planted(relation, function) for function in functions]


def of_arrays(relation: str, *functions: Function) -> list[Planted]:
    """Bugs of layers of global arrays."""
    return [Planted(relation, function, whole=True) for function in functions]


PLANTED = (
    *of_blocks(
        "permuted tokens",
        by_position_where_gates_decide,
        by_rounded_gates,
    ),
    *of_senders("permuted tokens", moe_options.moe_of_first_come_senders),
    *of_arrays("permuted tokens", global_by_position),
    *of_blocks("relabelled experts", favouring_low_experts, filling_low_experts_first),
    *of_senders("relabelled experts", with_less_room_at_the_last),
    *of_blocks(
        "another mesh",
        moe_dropping.moe_with_room_for_each_sender,
        moe_dropping.moe_by_choice_within_senders,
        moe_dropping.moe_by_position_within_tokens,
        moe_dropping.moe_numbering_in_mesh_order,
    ),
    *of_arrays("another mesh", moe_global.global_moe_of_groups, moe_global.global_moe_numbering_experts_first),
    *of_blocks(
        "more room",
        with_half_the_room_if_odd,
        moe_dropping.moe_without_room_for_none,
        moe_dropping.moe_with_one_place_more,
        moe_dropping.moe_with_room_for_its_own,
    ),
    *of_blocks("padding", counting_all_rows, keeping_of_a_full_shard, moe_dropping.moe_with_one_buffer_of_several),
    *of_blocks("idle experts", learning_from_the_mean_expert, not_learning_in_the_first_expert),
    *of_blocks("a token of NaN", with_gates_of_zero, dense_moe),
)
