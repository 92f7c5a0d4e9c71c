"""A mixture of experts: who goes where, who is dropped, and what comes back."""

from shardproof.oracles.moe.layer import MoeLayer, moe_layer

__all__ = ["MoeLayer", "moe_layer"]
