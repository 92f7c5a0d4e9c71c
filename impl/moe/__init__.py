"""Mixture of experts: routing, capacity, and interchangeable ways on which tokens travel to experts and back."""

from shardproof.impl.moe.capacity import POLICIES, Counters, Room, capacity_of, count_drops, kept
from shardproof.impl.moe.dispatch import Dispatcher, all_gather_moe, all_to_all_moe, ragged_moe, ring_moe, sorted_moe
from shardproof.impl.moe.routing import Routing, route

__all__ = [
    "POLICIES",
    "Counters",
    "Dispatcher",
    "Room",
    "Routing",
    "all_gather_moe",
    "all_to_all_moe",
    "capacity_of",
    "count_drops",
    "kept",
    "ragged_moe",
    "ring_moe",
    "route",
    "sorted_moe",
]
