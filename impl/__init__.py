"""Implementations: device-local JAX functions that run inside `jax.shard_map`, and what is built from them.

They run over one axis or a tuple of axes in any order (`Y`, in logical order): participant i has the i-th contiguous
part of what is sharded. Sums of 16-bit floats are carried in float32, and results rounded once, unless a function says
otherwise.

Arguments are checked while a function is traced. One that is not as its docstring says raises a ValueError, which names
the function, the argument, its value, what was expected, and the mesh. A NotImplementedError says what a function does
not support although the contract allows it.
"""
