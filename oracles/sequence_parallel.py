"""A multilayer perceptron over a sharded sequence.

Operands are blocks `x [*mesh.sizes, S, B, D]`, `w_in [*mesh.sizes, D, F]` and `w_out [*mesh.sizes, F, D]`.
"""

from shardproof.oracles.collective_matmul import TransformerBlock

sequence_parallel_mlp = TransformerBlock(-3)
"""`X[S_Y, B, D] -> gathered -> W_in[D, F_Y] -> relu -> W_out[F_Y, D] -> [S_Y, B, D]`: a block, of whole positions."""
