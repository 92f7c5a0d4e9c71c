"""What the answer is, in NumPy alone: one definition for every operation that shardproof verifies.

Nothing in this room imports JAX or an implementation: an oracle is written from the definition of
its operation, so that agreement with an implementation is evidence and not tautology.
"""
