"""The right answers, in NumPy alone: one definition for every operation that shardproof verifies.

Nothing in this room imports JAX or an implementation: an oracle is written from the definition of
its operation, so that agreement with an implementation is evidence and not tautology.

Operands and results are blocks `[*mesh.sizes, *block]` of all devices, where a module does not say that they are whole
arrays. Derivatives are exact, in `oracles.dtypes.wide`, and their transpose is taken over all blocks of all devices:
each has its own cotangent (see `oracles.collectives`). Integers and masks have none.
"""
