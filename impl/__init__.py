"""Implementations: device-local JAX functions that run inside `jax.shard_map`."""
