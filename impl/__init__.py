"""Implementations: device-local JAX functions that run inside `jax.shard_map`, and what is built from them.

Arguments are checked while a function is traced. One that is not as its docstring says raises a ValueError, which names
the function, the argument, its value, what was expected, and the mesh. A NotImplementedError says what a function does
not support although the contract allows it.
"""
