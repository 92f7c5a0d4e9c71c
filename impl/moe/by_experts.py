"""Expert choice: experts choose tokens, and not tokens experts (Zhou et al., 2022, section 3).

Every token asks every expert, by the softmax over all its logits; of all participants' tokens an expert keeps those
that suit it best, as many as it has room for. No expert is short of tokens while there are as many, but a token may
have none.
"""

from shardproof.impl.arguments import AxisName, check_count, check_rank, refuse
from shardproof.impl.collectives import Block
from shardproof.impl.moe.capacity import Room
from shardproof.impl.moe.dispatch import all_to_all
from shardproof.impl.moe.plan import ExpertWeights, planned


def expert_choice_moe(
    tokens: Block, router_weights: Block, expert_weights: ExpertWeights, axis_name: AxisName, *, capacity: int
) -> Block:
    """`tokens [T_Y, D]`, `router [D, E]`, `experts [E_Y, D, F]` to `[T_Y, F]`, typed varying: two all-to-alls.

    A token gets the sum of what the experts that chose it make of it, each by its probability; ties go to the first
    token, in logical order.

    Arguments:
        tokens: floating-point blocks; those of participant 0 are the first, in logical order.
        router_weights: floating-point, the same on all participants.
        expert_weights: floating-point blocks of experts, one array, or a sequence of the three of gated MLPs.
        axis_name: the axis or axis tuple over which tokens and experts are sharded.
        capacity: how many tokens an expert chooses, of all participants.

    Returns:
        Blocks in the dtype that all operands promote to, computed in float32 or wider, and rounded once.

    Raises:
        ValueError: for an unknown axis; operands that are not floating, or of another rank or shape; a router of no
            experts, or experts that are no multiple of the participants; a `capacity` that is none.
    """
    name = "expert_choice_moe"
    check_rank(name, "router_weights", router_weights, 2)
    check_count(name, "capacity", capacity)
    if not router_weights.shape[1]:
        refuse(name, "router_weights", list(router_weights.shape), "[D, E] of at least one expert")
    room, experts = Room(capacity, "probability"), router_weights.shape[1]
    plan = planned(name, tokens, router_weights, expert_weights, axis_name, top_k=experts, room=room, over="all")
    return plan.result(all_to_all.dispatched)
