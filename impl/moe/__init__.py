"""Mixture of experts: routing, capacity, and interchangeable ways on which tokens travel to experts and back."""

from shardproof.impl.moe.capacity import POLICIES, capacity_of
from shardproof.impl.moe.dispatch.all_gather import all_gather_moe
from shardproof.impl.moe.dispatch.all_to_all import all_to_all_moe
from shardproof.impl.moe.dispatch.dense import dense_moe
from shardproof.impl.moe.routing import load_balancing_loss, z_loss

__all__ = [
    "POLICIES",
    "all_gather_moe",
    "all_to_all_moe",
    "capacity_of",
    "dense_moe",
    "load_balancing_loss",
    "z_loss",
]
