"""Mixture of experts: routing, capacity, and interchangeable ways on which tokens travel to experts and back."""

from shardproof.impl.moe.by_experts import expert_choice_moe
from shardproof.impl.moe.capacity import POLICIES, Counters, Room, capacity_of, count_drops, kept
from shardproof.impl.moe.dispatch.all_gather import all_gather_moe
from shardproof.impl.moe.dispatch.all_to_all import all_to_all_moe
from shardproof.impl.moe.dispatch.chunked import chunked_moe
from shardproof.impl.moe.dispatch.dense import dense_moe
from shardproof.impl.moe.dispatch.local import scanned_moe, sorted_moe
from shardproof.impl.moe.dispatch.ragged import Dispatcher, ragged_moe
from shardproof.impl.moe.dispatch.ring import ring_moe
from shardproof.impl.moe.on_mesh import GlobalMoeLayer, global_all_to_all_moe, global_ring_moe, global_sorted_moe
from shardproof.impl.moe.routing import Routing, route

__all__ = [
    "POLICIES",
    "Counters",
    "Dispatcher",
    "GlobalMoeLayer",
    "Room",
    "Routing",
    "all_gather_moe",
    "all_to_all_moe",
    "capacity_of",
    "chunked_moe",
    "count_drops",
    "dense_moe",
    "expert_choice_moe",
    "global_all_to_all_moe",
    "global_ring_moe",
    "global_sorted_moe",
    "kept",
    "ragged_moe",
    "ring_moe",
    "route",
    "scanned_moe",
    "sorted_moe",
]
