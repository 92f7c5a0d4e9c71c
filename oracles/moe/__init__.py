"""What a mixture of experts means: who goes where, who is dropped, what comes back, and what it costs."""

from shardproof.oracles.moe.layer import MoeLayer, moe_layer

__all__ = ["MoeLayer", "moe_layer"]
